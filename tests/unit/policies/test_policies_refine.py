"""Refined policies: what is stored, who decides, what the token forgets, rows kept apart."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rollbus_core import rng
from rollbus_policies import base, diffusion, flow
from rollbus_policies._refine import NETWORK, OTHERS, POLICY
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import MAY_REFINE, ActionSpec, ArraySpec, EnvSpec

LANGUAGE = ArraySpec("uint8", (6,), 0, 255, layout="tokens")
SPEC = EnvSpec(
    "refined",
    {"x": ArraySpec("float32", (3,)), "say": LANGUAGE, MAY_REFINE: ArraySpec("bool", ())},
    ActionSpec("continuous", (2,), low=[-2.0, -2.0], high=[2.0, 2.0]),
)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "chunk": 3, "execute": 2, "steps": 2}
BOTH = pytest.mark.parametrize("module", [flow, diffusion])


def made(module=flow, acts=True, **settings):
    torch.manual_seed(0)
    given = SMALL | {"refine": True, "refine_token": 4, "refine_hidden": [16]} | settings
    policy = base.make(module.Config(name=module.__name__.split(".")[-1], **given), SPEC, critic=False)
    with torch.no_grad():
        policy.output.weight.mul_(100.0)
        if acts and policy.config.refine:
            policy.refine.output.weight.mul_(100.0)
            policy.explore(0.1)
    return policy


def obs(num, may=True):
    generator = np.random.default_rng(0)
    say = generator.integers(1, 256, (num, 6)).astype(np.uint8)
    say[:, 4:] = 0  # padding
    x = generator.normal(size=(num, 3)).astype(np.float32)
    return {"x": x, "say": say, MAY_REFINE: np.broadcast_to(np.asarray(may), (num,)).copy()}


def acted(policy, mode="mode", num=8, may=True, **ask):
    seeds = rng.decision_seeds(rng.stream(0, "t"), np.arange(num), np.zeros(num, int))
    return policy.act(obs(num, may), None, Ask(mode, **ask), seeds)


def columns(observed):
    return {f"obs/{key}": torch.from_numpy(value) for key, value in observed.items()}


@BOTH
def test_the_stored_action_is_reference_decision_and_who(module):
    policy, plain = made(module), made(module, refine=False)
    plain.load_state_dict({k: v for k, v in policy.state_dict().items() if not k.startswith("refine.")})
    act, alone = acted(policy), acted(plain)
    assert act.action.shape == (8, 13) and (act.action[:, -1] == NETWORK).all()
    stored = torch.from_numpy(act.action)
    reference = policy.reference(stored)
    np.testing.assert_allclose(2.0 * reference.numpy(), alone.env_action, atol=1e-5)
    unit = policy.squash(stored)
    np.testing.assert_allclose(2.0 * unit.numpy(), act.env_action, atol=1e-6)
    assert (unit - reference).abs().max() > 0.05
    # What is not executed stays as it was.
    np.testing.assert_array_equal(act.action[:, 4:6], act.action[:, 10:12])
    # The learner finds what was decided from the columns.
    batch = columns(obs(8)) | {"noise": torch.from_numpy(rng.normal(_seeds(8), 6))}
    found = policy(batch, ("refinement_state", "reference"))
    torch.testing.assert_close(found["reference"], reference, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(policy(found, ("refinement",))["refinement"], unit, atol=1e-5, rtol=1e-5)
    assert found["refinement_state"].shape == (8, 4 + 3)
    torch.testing.assert_close(found["refinement_state"][:, 4:], batch["obs/x"])


def _seeds(num):
    return rng.decision_seeds(rng.stream(0, "t"), np.arange(num), np.zeros(num, int))


def test_who_decides():
    """The network, but not in random rows, not where the environment says no, not before it is trained."""
    policy = made()
    for given, who in (
        ({"mode": "sample"}, NETWORK), ({"mode": "random"}, POLICY), ({"may": False}, POLICY),
        ({"policy": made(acts=False)}, POLICY),
    ):  # fmt: skip
        act = acted(**({"policy": policy} | given))
        assert (act.action[:, -1] == who).all()
        same = act.action[:, :6] == act.action[:, 6:12]
        assert same.all() if who == POLICY else not same.all()
    may = np.arange(8) % 2 == 0
    assert (acted(policy, may=may).action[:, -1] == np.where(may, NETWORK, POLICY)).all()


def test_exploration_is_of_the_row_alone():
    policy = made()
    quiet, loud = acted(policy, num=512), acted(policy, "sample", num=512)
    noise = policy.squash(torch.from_numpy(loud.action)) - policy.squash(torch.from_numpy(quiet.action))
    inside = policy.squash(torch.from_numpy(loud.action)).abs() < 1.0
    assert noise[inside].std().item() == pytest.approx(0.1, rel=0.1)
    seeds, seen = _seeds(8), obs(8)
    whole = policy.act(seen, None, Ask("sample"), seeds).action
    for row in range(8):
        own = {key: value[row : row + 1] for key, value in seen.items()}
        np.testing.assert_allclose(policy.act(own, None, Ask("sample"), seeds[row : row + 1]).action[0],
                                   whole[row], atol=1e-5)  # fmt: skip


def test_what_somebody_else_did_is_its_own_reference():
    policy = made()
    shown = np.random.default_rng(0).uniform(-2, 2, (4, 3, 2)).astype(np.float32)
    stored = policy.from_env_action(shown)
    assert (stored[:, -1] == OTHERS).all()
    np.testing.assert_allclose(policy.env_action(stored), shown[:, :2], atol=1e-5)
    np.testing.assert_allclose(
        2.0 * policy.reference(torch.from_numpy(stored)).numpy(), shown[:, :2], atol=1e-5
    )


def test_the_token_is_told_by_hand_and_leaves_the_policy_alone():
    policy = made()
    batch = columns(obs(5))
    loss = policy(batch, ("token_loss",))["token_loss"]
    positions, there = policy.context({k[4:]: v for k, v in batch.items()}, policy.normaliser)
    assert positions.shape == (5, 7, 16) and there.sum(1).tolist() == [5] * 5  # one of numbers, four bytes
    token = policy.refine.token
    seen = token.widen(token((positions, there)))[:, None]
    told = token.decoder((seen, torch.ones(5, 1, dtype=torch.bool)))
    wanted = ((told - positions) ** 2)[:, [0, 1, 2, 3, 4]].mean((1, 2))
    torch.testing.assert_close(loss, wanted)
    loss.sum().backward()
    reached = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert reached and all(name.startswith("refine.token.") for name in reached)


def test_padding_does_not_change_the_token():
    policy, batch = made(), columns(obs(5))
    policy.context.tokens[0].embed.weight.data[0] = 7.0  # what padding is embedded as
    before = policy(batch, ("refinement_state",))["refinement_state"]
    policy.context.tokens[0].embed.weight.data[0] = -7.0
    torch.testing.assert_close(policy(batch, ("refinement_state",))["refinement_state"], before)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValidationError, match="exclude each other"):
        flow.Config(steer=True, refine=True)
    policy = made()
    assert "log_prob" not in policy.spec.extras
    with pytest.raises(SpecError, match="log_prob"):
        policy(columns(obs(2)), ("log_prob",))
