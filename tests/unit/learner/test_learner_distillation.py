"""On-policy distillation: the loss by hand, who may teach, what a recurrent teacher can judge."""

import copy

import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, chunk_batch, flatten

from rollbus_core.config.load import load
from rollbus_learner import optim
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import _teacher, opd
from rollbus_learner.checkpoint import Checkpoints, Training
from rollbus_policies import base
from rollbus_wire.errors import CheckpointError

NOW = Progress(updates=0, env_steps=0, total_steps=100)
RECIPE = "env: {name: toy, kind: token}\npolicy: {hidden: [8]}\nalgorithm: {name: grpo}\n"


def built():
    torch.manual_seed(0)
    config = opd.Config()
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    algorithm = opd.make(config, SPEC, TinyPolicy(), feed)
    algorithm.roles()["teacher"].module.mean.bias.data += 0.5
    return algorithm


def roles_of(algorithm):
    return {name: role.module for name, role in algorithm.roles().items()}


def test_advantage_and_loss_by_hand():
    algorithm, roles = built(), None
    roles, batch = roles_of(algorithm), chunk_batch(algorithm.policy)
    metrics = algorithm.label(batch, roles, NOW)
    seen = {"obs/x": batch["obs/x"][:8], "action": batch["action"]}
    with torch.no_grad():
        gap = roles["teacher"](seen, ("log_prob",))["log_prob"] - batch["log_prob"]
    valid = batch["valid"]
    assert torch.allclose(batch["advantage"][..., 0][valid], gap[valid], atol=1e-6)
    assert not batch["advantage"][..., 0][~valid].any()
    assert metrics["reverse_kl"] == pytest.approx(-float(gap[valid].mean()), abs=1e-6)
    part = flatten(batch, 8)
    total, count = algorithm.loss(roles, part).terms["policy_loss"]
    by_hand = -(part["advantage"][:, 0] * part["log_prob"]).mean()
    assert float(total.detach()) / int(count) == pytest.approx(float(by_hand), rel=1e-5)


def test_the_gradient_is_that_of_the_reverse_kl():
    """On many samples of the student; Gaussians with means m and m + .5, deviation exp(-.5)."""
    algorithm = built()
    policy, roles = algorithm.policy, roles_of(algorithm)
    generator = torch.Generator().manual_seed(1)
    obs = torch.zeros(200_000, 3)
    with torch.no_grad():
        action = policy.mean.bias + policy.log_std.exp() * torch.randn(200_000, 2, generator=generator)
        part = {"obs/x": obs, "action": action}
        acted = policy(part, ("log_prob",))["log_prob"]
        advantage = roles["teacher"](part, ("log_prob",))["log_prob"] - acted
    part |= {"log_prob": acted, "advantage": advantage[:, None]}
    part["token_mask"] = torch.ones_like(part["advantage"], dtype=torch.bool)
    total, count = algorithm.loss(roles, part).terms["policy_loss"]
    (total / count).backward()
    # d KL(student | teacher) / d mean = (mean - teacher's) / variance.
    by_hand = -0.5 / torch.exp(torch.tensor(-1.0))
    assert policy.mean.bias.grad.tolist() == pytest.approx([float(by_hand)] * 2, abs=0.02)


def test_a_recurrent_teacher_judges_episodes_that_begin_in_the_batch():
    teacher = TinyPolicy(state_size=1)
    batch = chunk_batch(teacher)
    batch["start"][:] = False
    batch["start"][3, 0] = batch["start"][0, 2] = True
    known = _teacher.known(teacher, batch)
    assert known.sum(0).tolist() == [5, 0, 8, 0] and known[3:, 0].all()
    assert _teacher.seen_by(teacher, batch)["state"].tolist() == [[0.0]] * 4
    assert _teacher.known(TinyPolicy(), batch).all()


@pytest.fixture
def taught(tmp_path):
    """A run folder with one checkpoint, its policy and spec."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    resolved = load(tmp_path / "recipe.yaml", check_packages=False)
    spec = _spec(resolved.recipe.env)
    policy = base.make(resolved.recipe.policy, spec, critic=False)
    config = tmp_path / "config.yaml"
    config.write_text(resolved.to_yaml())
    from rollbus_learner.algorithms import grpo

    algorithm = grpo.make(resolved.recipe.algorithm, spec, policy, resolved.feed)
    modules = {name: role.module for name, role in algorithm.roles().items()}
    (tmp_path / "checkpoints").mkdir()
    Checkpoints(tmp_path / "checkpoints", 3, config).save(
        Training(algorithm, optim.build(algorithm.steps(), modules))
    )
    return tmp_path, policy, spec


def _spec(env):
    from rollbus_envs import toy

    return toy.make(toy.Config(kind=env.kind, vocabulary=env.vocabulary), 1).spec


def test_a_teacher_comes_out_of_a_run_folder(taught):
    folder, policy, spec = taught
    teacher = _teacher.load_teacher(folder, spec)
    theirs, mine = teacher.state_dict(), policy.state_dict()
    assert theirs.keys() == mine.keys() and all(torch.equal(theirs[n], mine[n]) for n in mine)


def test_a_teacher_with_other_tokens_is_refused(taught):
    folder, _, spec = taught
    other = copy.deepcopy(spec)
    other.action.num = [n + 1 for n in spec.action.num]
    with pytest.raises(
        CheckpointError,
        match=r"learned .*, whose action\.num is \[\d.*, but here it is \[\d.*: teacher and student",
    ):
        _teacher.load_teacher(folder, other)
