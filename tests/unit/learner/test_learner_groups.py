"""Algorithms that compare the episodes of a group: hand-computed numbers, identities, invariances."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import _episodes, dapo, dr_grpo, grpo, gspo, reinforce_pp, rloo
from rollbus_learner.loop import update
from rollbus_policies.base import PolicySpec
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

L = 3
SPEC = EnvSpec(
    "tiny",
    {"prompt": ArraySpec("int64", (2,), 0, 3, layout="tokens")},
    ActionSpec("multi_discrete", (L,), num=[4] * L, layout="tokens", end_token=1),
)
MODULES = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gspo": gspo,
    "reinforce_pp": reinforce_pp,
    "dapo": dapo,
}
NOW = Progress(updates=0, env_steps=0, total_steps=1000)


class Table(nn.Module):
    """The log-probability of a token is a parameter per (place, token), normalised over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = PolicySpec(("int64", (L,)))
        self.logits = nn.Parameter(torch.zeros(L, 4))

    def token_mask(self, action):
        ended = (action == 1).cumsum(-1)
        return (ended - (action == 1).long()) == 0

    def forward(self, batch, want):
        table = torch.log_softmax(self.logits, -1)
        chosen = table[torch.arange(L), batch["action"]]
        mask = self.token_mask(batch["action"])
        chosen = torch.where(mask, chosen, torch.zeros(()))
        return {"token_log_prob": chosen, "token_mask": mask, "log_prob": chosen.sum(-1)}

    def update_normaliser(self, batch, valid):
        pass


class Peaked(Table):
    """Says that each decision has an entropy of 2 nats."""

    def forward(self, batch, want):
        found = super().forward(batch, want)
        return found | {"entropy": torch.full_like(found["log_prob"], 2.0)}


def batch_of(actions, scores, **columns):
    """One decision per row [1, N]: completions [N, L], their rewards [N]."""
    actions = torch.tensor(actions)[None]
    shape = actions.shape[:2]
    policy = Table()
    with torch.no_grad():
        scored = policy({"action": actions}, ())
    no = torch.zeros(shape, dtype=torch.bool)
    return {
        "obs/prompt": torch.zeros(2, shape[1], 2, dtype=torch.int64), "action": actions,
        "token_log_prob": scored["token_log_prob"], "log_prob": scored["log_prob"],
        "reward": torch.tensor(scores, dtype=torch.float32)[None, :, None],
        "valid": ~no, "terminated": ~no, "truncated": no, "interrupted": no,
        "episode": torch.arange(shape[1])[None], "step": torch.zeros(shape, dtype=torch.int32),
        "version": torch.zeros(shape, dtype=torch.int64), **columns,
    }  # fmt: skip


def built(name, policy=None, **settings):
    module = MODULES[name]
    config = module.Config(name=name, num_groups=2, group_size=2, **settings)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return module.make(config, SPEC, policy or Table(), feed)


ENDS = [[2, 1, 0], [3, 3, 1], [1, 0, 0], [2, 3, 2]]
LENGTHS = [2, 3, 1, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_t4_one_of_four_is_right(name, expected):
    algorithm = built(name)
    score = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.7, 0.7, 0.7, 0.7]])
    found = algorithm.advantage(score, torch.ones(2, 4, dtype=torch.bool))
    assert found[0].numpy() == pytest.approx(expected, abs=1e-5)
    assert found[1].tolist() == [0, 0, 0, 0]


def test_a_group_of_one_is_refused_and_finite():
    with pytest.raises(ValueError, match="group_size"):
        grpo.Config(group_size=1)
    assert built("grpo").advantage(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)).tolist() == [[0.0]]


def test_only_whole_episodes_of_whole_groups_count():
    """Row 0: two decisions. Row 1: lost at first, then run again. Row 2: no end. Row 3: whole, alone."""
    yes = lambda rows: torch.tensor(rows, dtype=torch.bool)  # noqa: E731
    batch = {
        "valid": yes([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]]),
        "interrupted": yes([[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        "terminated": yes([[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),
        "truncated": yes([[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]),
        "episode": torch.tensor([[1, 2, 4, 5], [1, 3, 4, 5], [0, 3, 4, 0]]),
        "step": torch.tensor([[0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 2, 0]]),
        "reward": torch.tensor([[1.0, 9, 9, 0], [2, 3, 9, 1], [0, 4, 9, 0]])[..., None],
    }
    found = _episodes.whole(batch, 2, most_losses=2)
    assert found.mask.int().tolist() == [[1, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 0]]
    assert found.score.tolist() == [3, 7, 0, 1]
    assert found.complete.tolist() == [True, True, False, False]
    assert _episodes.whole(batch, 2, most_losses=0).complete.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # A token's share of the loss: 1 / (tokens of its episode x episodes), 1 / tokens of all,
        # 1 / (longest episode x episodes).
        ("grpo", [1 / (2 * 4), 1 / (3 * 4), 1 / (1 * 4), 1 / (3 * 4)]),
        ("dapo", [1 / 9] * 4),
        ("dr_grpo", [1 / (3 * 4)] * 4),
    ],
)
def test_what_a_token_weighs(name, weights):
    """At ratio 1 the gradient of the loss by a token's log-prob is minus its weight times the advantage."""
    algorithm = built(name)
    batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    roles = {"policy": algorithm.policy}
    algorithm.label(batch, roles, NOW)
    part = {**batch, "obs/prompt": batch["obs/prompt"][:1]}
    (numerator, count) = algorithm.loss(roles, part).terms["policy_loss"]
    advantage = batch["advantage"][0, :, 0]
    by_hand = -sum(float(a) * w * n for a, w, n in zip(advantage, weights, LENGTHS))
    assert float(numerator) / float(count) == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "tokens"), [("grpo", 1), ("gspo", 1), ("dapo", 1), ("dr_grpo", 9 / 12), ("rloo", 9 / 4)]
)
def test_the_kl_is_of_what_the_ratio_is_of(name, tokens):
    """Each of 9 tokens is 0.1 nats less likely than under the reference, k3: e^0.1 - 1.1.

    An episode that is one action pays for all of its tokens.
    """
    algorithm = built(name, kl_coef=0.5)
    roles = {name: role.module for name, role in algorithm.roles().items()}
    batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    algorithm.label(batch, roles, NOW)
    batch["reference_log_prob"] = batch["old_log_prob"] + 0.1
    numerator, count = algorithm.loss(roles, {**batch, "obs/prompt": batch["obs/prompt"][:1]}).terms[
        "kl_loss"
    ]
    assert float(numerator) / float(count) == pytest.approx(0.5 * tokens * (math.exp(0.1) - 1.1), rel=1e-4)


def test_ratios_of_tokens_and_of_sequences():
    """Log-ratios .1 and .3 of two tokens: exp of each, of the sum .4, of the mean .2."""
    moved = torch.tensor([[[0.1, 0.3, 0.0]]])
    length = torch.tensor([2])
    expected = {"grpo": [0.1, 0.3, 0.0], "rloo": [0.4] * 3, "gspo": [0.2] * 3}
    for name, log_ratio in expected.items():
        assert built(name)._log_ratio(moved, length)[0, 0].tolist() == pytest.approx(log_ratio)


def test_gspo_clips_where_ppo_would_not():
    policy = Table()
    algorithm = built("gspo", policy)
    batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    algorithm.label(batch, {"policy": policy}, NOW)
    with torch.no_grad():
        policy.logits[0, 2] += 0.01
    part = {**batch, "obs/prompt": batch["obs/prompt"][:1]}
    loss = algorithm.loss({"policy": policy}, part)
    clipped, count = loss.metrics["clip_fraction"]
    # The ratios of rows that begin with token 2 rose by .0075 / length, of the others fell: all outside 4e-4.
    assert float(clipped) / float(count) == 1.0


def test_overlong_penalty():
    length = torch.tensor([1, 6, 7, 8, 9])
    assert dapo.overlong(length, longest=9, soft=2).tolist() == [0, 0, 0, -0.5, -1.0]
    assert dapo.overlong(length, longest=9, soft=0).tolist() == [0, 0, 0, 0, 0]


def test_dapo_samples_on_while_groups_are_uniform_and_not_for_ever():
    algorithm = built("dapo", max_resamples=2)
    uniform = batch_of(ENDS, [1.0, 1.0, 0.0, 0.0])
    mixed = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    assert not algorithm.wants_more(mixed, 1)
    assert algorithm.wants_more(uniform, 1) and algorithm.wants_more(uniform, 2)
    assert not algorithm.wants_more(uniform, 3)
    one = batch_of(ENDS, [1.0, 0.0, 0.0, 0.0])
    metrics = algorithm.label(one, {"policy": algorithm.policy}, NOW)
    assert metrics["groups_learned"] == 1 and metrics["groups_uniform"] == 1
    assert one["valid"].tolist() == [[True, True, False, False]]


def test_dapo_tells_what_it_resampled_and_who_paid_for_length():
    """Three groups of two where two were wanted; of the learned rows those with 3 of 3 tokens pay."""
    algorithm = built("dapo", soft_tokens=1)
    batch = batch_of(ENDS + ENDS[:2], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    metrics = algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    assert metrics["groups_resampled"] == 1
    assert metrics["overlong"] == pytest.approx(sum(n == 3 for n in LENGTHS + LENGTHS[:2]) / 6)


@pytest.mark.parametrize("name", MODULES)
def test_the_entropy_bonus_pushes_away_from_what_is_certain(name):
    """With all scores alike only the bonus is left: minus its weight times the mean entropy per token."""
    algorithm = built(name, entropy_coef=0.1)
    policy = algorithm.policy = Peaked()
    batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    algorithm.label(batch, {"policy": policy}, NOW)
    part = {**batch, "obs/prompt": batch["obs/prompt"][:1]}
    total, count = algorithm.loss({"policy": policy}, part).terms["entropy_loss"]
    assert float(total.detach()) == pytest.approx(-0.1 * 2.0 * 4) and int(count) == sum(LENGTHS)


def test_reinforce_pp_rewards_the_last_token_and_whitens_over_the_update():
    mask = Table().token_mask(torch.tensor(ENDS))[None]
    at_end = reinforce_pp.to_last_token(torch.tensor([1.0, 2, 3, 4]), mask)
    assert at_end[0].tolist() == [[0, 1, 0], [0, 0, 2], [3, 0, 0], [0, 0, 4]]
    two_turns = torch.tensor([[[1, 1, 0]], [[1, 0, 0]]], dtype=torch.bool)
    assert reinforce_pp.to_last_token(torch.tensor([5.0]), two_turns).flatten().tolist() == [0, 0, 0, 5, 0, 0]

    algorithm = built("reinforce_pp", baseline=False)
    batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    tokens = batch["advantage"][batch["token_mask"]]
    # Undiscounted sums to come are the episode's own reward: 1 on 5 of 9 tokens.
    mean, std = 5 / 9, math.sqrt((5 * (4 / 9) ** 2 + 4 * (5 / 9) ** 2) / 8)
    expected = [(reward - mean) / std for reward, n in zip([1, 0, 0, 1], LENGTHS) for _ in range(n)]
    assert tokens.tolist() == pytest.approx(expected, abs=1e-5)


def test_reinforce_pp_pays_for_kl_in_the_reward():
    policy = Table()
    algorithm = built("reinforce_pp", policy, kl_reward=0.5)
    roles = {name: role.module for name, role in algorithm.roles().items()}
    assert set(roles) == {"policy", "reference"}
    batch = batch_of(ENDS, [0.0, 0.0, 0.0, 0.0])
    batch["token_log_prob"] = batch["token_log_prob"] + torch.tensor([0.2, 0.0, 0.0])
    algorithm.label(batch, roles, NOW)
    first = batch["advantage"][0, :, 0]
    rest = batch["advantage"][0, :, 1:][batch["token_mask"][0, :, 1:]]
    assert (first < 0).all() and (rest > 0).all()


@pytest.mark.parametrize("name", list(MODULES))
def test_what_is_behind_the_end_token_changes_nothing(name):
    losses = []
    for junk in (0, 3):
        torch.manual_seed(0)
        actions = np.array(ENDS)
        mask = Table().token_mask(torch.tensor(ENDS)).numpy()
        actions[~mask] = junk
        policy = Table()
        algorithm = built(name, policy)
        batch = batch_of(actions.tolist(), [1.0, 0.0, 0.5, 1.0])
        if junk:
            batch["token_log_prob"] = batch["token_log_prob"].masked_fill(~torch.tensor(mask), 1e6)
        roles = {"policy": policy}
        algorithm.label(batch, roles, NOW)
        part = {**batch, "obs/prompt": batch["obs/prompt"][:1]}
        numerator, count = algorithm.loss(roles, part).terms["policy_loss"]
        (numerator / count).backward()
        losses.append((float(numerator / count), policy.logits.grad.tolist()))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", list(MODULES))
def test_twenty_updates_raise_what_scored_above_its_group(name):
    from rollbus_learner import optim

    torch.manual_seed(0)
    policy = Table()
    clips = {"clip": 0.2, "clip_high": 0.2} if name == "gspo" else {}
    algorithm = built(name, policy, learning_rate=0.02, **clips)
    roles = {key: role.module for key, role in algorithm.roles().items()}
    optimisers = optim.build(algorithm.steps(), roles)
    before = policy({"action": torch.tensor(ENDS)}, ())["log_prob"]
    for _ in range(20):
        batch = batch_of(ENDS, [1.0, 0.0, 0.0, 1.0])
        with torch.no_grad():
            scored = policy({"action": batch["action"]}, ())
        batch |= {key: scored[key] for key in ("token_log_prob", "log_prob")}
        update(algorithm, roles, optimisers, batch, NOW, torch.Generator().manual_seed(0))
    moved = (policy({"action": torch.tensor(ENDS)}, ())["log_prob"] - before).tolist()
    assert moved[0] - moved[1] > 0.1 and moved[3] - moved[2] > 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_envs": 6, "num_slices": 2}, ["env.num_envs", "algorithm.group_size"]),
        ({"num_envs": 16, "num_slices": 2}, ["algorithm.num_groups", "whole slices of 8 rows"]),
    ],
)
def test_rows_that_are_no_whole_groups_are_refused(settings, words):
    with pytest.raises(ValueError) as raised:
        grpo.Config(num_groups=3, group_size=4).feed(**settings, deterministic=False)
    assert all(word in str(raised.value) for word in words)
