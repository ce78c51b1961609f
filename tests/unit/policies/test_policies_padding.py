"""What is padding changes nothing: not a bit of an action, a score, a gradient or a statistic."""

# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollbus_policies import base, flow, mlp, transformer
from rollbus_policies._critics import QEnsemble
from rollbus_policies._normaliser import Normaliser
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import TASK, ActionSpec, ArraySpec, EnvSpec, TaskSpec

TASK_ARRAY = ArraySpec("int64", (), 0, 1, layout="onehot")
#: Task a has elements 0 and 2 of three, and not the last of four observations.
CONTINUOUS = EnvSpec(
    "padded", {"x": ArraySpec("float32", (4,)), TASK: TASK_ARRAY},
    ActionSpec("continuous", (3,), low=[-2.0] * 3, high=[2.0] * 3),
    tasks=[TaskSpec("a", action=[0, 2], observation={"x": [0, 1, 2]}), TaskSpec("b", action=[0, 1, 2])],
)  # fmt: skip
#: Task a has two of four choices of the first element, and none of the second.
CHOICES = EnvSpec(
    "choices", dict(CONTINUOUS.observation), ActionSpec("multi_discrete", (2,), num=[4, 3]),
    tasks=[TaskSpec("a", action=[0], num=[2], observation={"x": [0, 1, 2]}), TaskSpec("b", action=[0, 1], num=[4, 3])],
)  # fmt: skip
HEADS = ["gaussian", "state_gaussian", "tanh_gaussian", "bins", "gsde", "tanh_gsde"]


def policy(spec: EnvSpec = CONTINUOUS, family=mlp, **settings):
    torch.manual_seed(0)
    made = base.make(family.Config(normalise_obs=True, **settings), spec, critic=True)
    rows = {"obs/x": torch.randn(64, 4), f"obs/{TASK}": torch.arange(64) % 2}
    made.update_normaliser(rows, torch.ones(64, dtype=torch.bool))
    return made


def rows(garbage: float, num: int = 8):
    """Observations of rows of both tasks in turn, with ``garbage`` where task a has padding."""
    x = np.random.default_rng(0).normal(size=(num, 4)).astype(np.float32)
    x[::2, 3] = garbage
    return {"x": x, TASK: np.arange(num, dtype=np.int64) % 2}


CASES = [(CONTINUOUS, mlp, {"head": head}) for head in HEADS] + [
    (CONTINUOUS, mlp, {"chunk": 3, "execute": 2}), (CHOICES, mlp, {}), (CHOICES, mlp, {"chunk": 2}),
    (CONTINUOUS, transformer, {}), (CONTINUOUS, mlp, {"critic": "shared"}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "family", "settings"), CASES)
def test_padding_changes_no_bit(spec, family, settings):
    made, seeds = policy(spec, family, **settings), np.arange(8, dtype=np.uint64)
    want, found = ("log_prob", "entropy", "value"), []
    for garbage in (0.0, 1e6):
        obs = rows(garbage)
        act = made.act(obs, None, Ask("sample", want), seeds)
        action = torch.from_numpy(act.action.copy())
        if garbage:  # what task a does not have, as somebody else's data may hold it
            flat = action.view(8, -1, spec.action.size)
            flat[::2, :, 1] = 2 if action.dtype == torch.int64 else 77.0
        batch = {f"obs/{key}": torch.from_numpy(value) for key, value in obs.items()} | {"action": action}
        made.zero_grad()
        scores = made(batch, want)
        sum(value.sum() for value in scores.values()).backward()
        found.append(
            [torch.from_numpy(act.action.copy()), *map(torch.from_numpy, act.extras.values()), *scores.values(),
             *(p.grad.clone() for p in made.parameters() if p.grad is not None)]
        )  # fmt: skip
    assert len(found[0]) > 8 and all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    stored = found[0][0].reshape(8, -1, spec.action.size)
    assert not stored[::2, :, 1].any() and stored[1::2, :, 1].any()


def test_a_row_scores_as_the_unpadded_policy_with_the_same_weights():
    """Log-prob, entropy and value of task a are those of a policy of its own sizes."""
    own = EnvSpec(
        "own",
        {"x": ArraySpec("float32", (3,))},
        ActionSpec("continuous", (2,), low=[-2.0] * 2, high=[2.0] * 2),
    )
    torch.manual_seed(0)
    wide = base.make(mlp.Config(), CONTINUOUS, critic=True)
    small = base.make(mlp.Config(), own, critic=True)
    weights = dict(wide.state_dict())
    # Sorted keys: the task's two classes come first, then x.
    for name in ("encoder", "critic.body"):
        key = next(k for k in weights if k.startswith(name) and weights[k].shape[-1:] == (6,))
        weights[key.replace("weight", "bias")] = weights[key.replace("weight", "bias")] + weights[key][:, 0]
        weights[key] = weights[key][:, 2:5]
    keep = [0, 2]
    weights["output.weight"], weights["output.bias"] = (
        weights["output.weight"][keep],
        weights["output.bias"][keep],
    )
    weights["head.log_std"] = weights.pop("head.inner.log_std")[keep]
    small.load_state_dict(weights)
    x, action = torch.randn(16, 4), torch.randn(16, 3)
    want = ("log_prob", "entropy", "value", "cloning_loss")
    padded = wide({"obs/x": x, f"obs/{TASK}": torch.zeros(16, dtype=torch.int64), "action": action}, want)
    alone = small({"obs/x": x[:, :3], "action": action[:, keep]}, want)
    for name in want:
        torch.testing.assert_close(padded[name], alone[name], msg=name)


def test_choices_that_a_task_does_not_have_are_never_made():
    made = policy(CHOICES)
    for mode in ("sample", "mode", "random"):
        action = made.act(rows(0.0, 4000), None, Ask(mode), np.arange(4000, dtype=np.uint64)).env_action
        assert action[::2, 0].max() <= 1 and not action[::2, 1].any()
        if mode != "mode":
            assert set(action[1::2, 0]) == {0, 1, 2, 3} and set(action[1::2, 1]) == {0, 1, 2}


def test_the_normaliser_counts_what_is_there():
    x = torch.tensor([[1.0, 5.0], [3.0, 1e9], [5.0, 7.0]])
    own = torch.tensor([[True, True], [True, False], [True, True]])
    padded, plain = Normaliser((2,), padded=True), Normaliser((2,))
    padded.merge(x, torch.ones(3, dtype=torch.bool), own)
    assert padded.mean.tolist() == [3.0, 6.0] and padded.count.tolist() == [3.0, 2.0]
    assert padded.var.tolist() == pytest.approx([8 / 3, 1.0])
    for part in (x[:2, :1].repeat(1, 2), x[2:, :1].repeat(1, 2)):
        every = torch.ones(len(part), dtype=torch.bool)
        plain.merge(part, every)
    split = Normaliser((2,), padded=True)
    for part in (slice(0, 1), slice(1, 3)):
        split.merge(x[part], torch.ones(len(x[part]), dtype=torch.bool), own[part])
    torch.testing.assert_close(split.var, padded.var)
    torch.testing.assert_close(split.mean, padded.mean)
    torch.testing.assert_close(plain.var[0], padded.var[0])


def test_critics_see_neither_padded_observations_nor_padded_actions():
    torch.manual_seed(0)
    critic, found = QEnsemble(CONTINUOUS, 2, [8]), []
    for garbage in (0.0, 1e6):
        obs = {f"obs/{key}": torch.from_numpy(value) for key, value in rows(garbage).items()}
        action = torch.full((8, 3), 0.5)
        action[::2, 1] = garbage
        found.append(critic(obs, action))
    assert torch.equal(*found)


def test_what_cannot_mask_is_refused():
    with pytest.raises(SpecError, match="policy.name: flow cannot leave out what is padding"):
        base.make(flow.Config(), CONTINUOUS, critic=True)
    choice = EnvSpec("q", dict(CONTINUOUS.observation), ActionSpec("discrete", num=[4]),
                     tasks=[TaskSpec("a", action=[0], num=[2]), TaskSpec("b", action=[0], num=[4])])  # fmt: skip
    with pytest.raises(SpecError, match="QValues explores all choices alike"):
        base.make(mlp.Config(head="q_values"), choice, critic=False)
