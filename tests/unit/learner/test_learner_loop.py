"""Minibatches and the update of any algorithm."""

from __future__ import annotations

import pytest
import torch
from learner_kit import Regression, line_batch
from safetensors.torch import load_file

from rollbus_learner import optim
from rollbus_learner.algorithm import Loss, Plan, Progress, Step
from rollbus_learner.loop import NonFiniteLoss, Sums, update
from rollbus_learner.minibatch import minibatches
from rollbus_learner.schedule import Every, RecentReturn, Shares
from rollbus_learner.trainer import Trainer, check_gap, dump
from rollbus_wire.errors import Diverged


def numbered(length, rows):
    number = torch.arange(length * rows).view(length, rows)
    return {
        "id": number, "valid": torch.ones(length, rows, dtype=torch.bool),
        "obs/x": torch.cat([number, torch.full((1, rows), 999)]), "lengths": torch.full((rows,), length),
        "final_obs/x": torch.zeros(length, rows), "state": 10.0 * torch.arange(rows)[:, None],
    }  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_each_valid_sample_comes_once_per_epoch():
    batch = numbered(5, 3)
    batch["valid"][4, 1] = batch["valid"][0, 0] = False
    parts = list(minibatches(batch, Plan(batch_size=4), generator()))
    assert [len(part["id"]) for part in parts] == [5, 4, 4]
    ids = torch.cat([part["id"] for part in parts])
    assert sorted(ids.tolist()) == [i for i in range(15) if i not in (0, 13)] and ids.tolist() != sorted(ids)
    assert all(torch.equal(part["obs/x"], part["id"]) for part in parts)
    assert set(parts[0]) == {"id", "obs/x"}, "all of them are valid"


def test_what_no_step_reads_is_not_gathered():
    plan = Plan(batch_size=4, unread=frozenset({"id"}))
    assert set(next(minibatches(numbered(5, 3), plan, generator()))) == {"obs/x"}
    rows = Plan(batch_size=4, whole_rows=True, unread=frozenset({"id"}))
    assert set(next(minibatches(numbered(5, 3), rows, generator()))) == {"obs/x", "valid", "state"}


def test_epochs_differ_and_a_seed_repeats_them():
    batch, draws = numbered(8, 4), generator(1)
    first, second = (
        torch.cat([p["id"] for p in minibatches(batch, Plan(batch_size=8), draws)]) for _ in "ab"
    )
    again = torch.cat([p["id"] for p in minibatches(batch, Plan(batch_size=8), generator(1))])
    assert not torch.equal(first, second) and torch.equal(first, again)


def test_a_small_rest_makes_no_minibatch_of_its_own():
    sizes = [len(p["id"]) for p in minibatches(numbered(10, 1), Plan(batch_size=3), generator())]
    assert sizes == [4, 3, 3]
    assert [len(p["id"]) for p in minibatches(numbered(2, 1), Plan(batch_size=30), generator())] == [2]


def test_whole_rows_stay_whole_with_their_state():
    batch = numbered(4, 6)
    batch["valid"][:, 2] = False
    batch["valid"][3, 5] = False
    parts = list(minibatches(batch, Plan(batch_size=8, whole_rows=True), generator()))
    rows = torch.cat([part["state"][:, 0] / 10 for part in parts]).long()
    assert sorted(rows.tolist()) == [0, 1, 3, 4, 5] and len(parts) == 2
    columns = torch.cat([part["id"] for part in parts], 1)
    assert torch.equal(columns, batch["id"][:, rows])
    assert torch.equal(torch.cat([part["valid"] for part in parts], 1), batch["valid"][:, rows])
    assert parts[0]["obs/x"].shape[0] == 4


def test_ordered_batches_are_cut_without_a_copy():
    batch = {
        "id": torch.arange(12),
        "valid": torch.arange(12) != 5,
        "final_return": torch.zeros(12),
    }
    parts = list(minibatches(batch, Plan(batch_size=4, ordered=True), generator()))
    assert [part["id"].tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert parts[1]["id"].data_ptr() == batch["id"][4:].data_ptr() and set(parts[0]) == {"id", "valid"}
    batch["valid"][:] = True
    parts = list(minibatches(batch, Plan(batch_size=4, ordered=True), generator()))
    assert set(parts[0]) == {"id"}, "no mask where all are valid"


def test_nothing_valid_is_no_minibatch():
    batch = numbered(2, 2)
    batch["valid"][:] = False
    for plan in (Plan(batch_size=2), Plan(batch_size=2, whole_rows=True)):
        assert list(minibatches(batch, plan, generator())) == []


def trained(algorithm, batch=None, updates=0):
    modules = {name: role.module for name, role in algorithm.roles().items()}
    optimisers = optim.build(algorithm.steps(), modules)
    progress = Progress(updates, 50, 100)
    return optimisers, update(algorithm, modules, optimisers, batch or line_batch(), progress, generator())


def test_update_trains_only_what_the_step_trains_and_means_are_over_samples():
    algorithm = Regression(epochs=1)
    critic = {k: v.clone() for k, v in algorithm.critic.state_dict().items()}
    weights, batch = algorithm.policy.layer.weight.clone(), line_batch()
    batch["valid"][0, 0] = False
    before = (algorithm.policy(batch, ("value",))["value"][:-1] - batch["reward"][..., 0])[
        batch["valid"]
    ].detach() ** 2
    algorithm.steps = lambda: [Step("policy", ("policy",), algorithm.loss, 1e-12)]
    optimisers, metrics = trained(algorithm, batch)
    assert metrics["fit"] == pytest.approx(float(before.mean()), rel=1e-5)
    assert metrics["error"] == pytest.approx(float(before.sqrt().mean()), rel=1e-5)
    assert sorted(algorithm.seen) == [3, 4] and metrics["minibatches"] == 2
    assert optimisers["policy"].learning_rate == pytest.approx(0.75e-12)
    assert torch.allclose(weights, algorithm.policy.layer.weight, atol=1e-9)
    assert all(torch.equal(value, critic[name]) for name, value in algorithm.critic.state_dict().items())
    assert all(p.grad is None for p in algorithm.critic.parameters())
    assert algorithm.policy.num == 7


def test_the_loss_falls():
    algorithm = Regression(epochs=50)
    assert trained(algorithm)[1]["fit"] > trained(algorithm)[1]["fit"]


def test_a_term_that_is_not_finite_is_named_before_the_step(tmp_path):
    algorithm = Regression(breaks_at=3)
    weights = algorithm.policy.layer.weight.clone()
    with pytest.raises(NonFiniteLoss, match="loss term 'also' of step 'policy' is nan") as caught:
        trained(algorithm, updates=3)
    assert torch.equal(weights, algorithm.policy.layer.weight)
    assert (caught.value.term, caught.value.step) == ("loss term 'also'", "policy")
    path = dump(caught.value, tmp_path, 3)
    saved = load_file(path)
    assert len(saved["reward"]) == 4 and torch.equal(saved["reward"], caught.value.batch["reward"])
    assert isinstance(caught.value, Diverged)


def test_after_step_ends_the_update_and_every_skips():
    algorithm, taken = Regression(epochs=5), []
    algorithm.steps = lambda: [
        Step("policy", ("policy",), algorithm.loss, 0.1),
        Step("critic", ("critic",), algorithm.loss, 0.1, every=3),
    ]
    algorithm.loss = lambda roles, batch: Loss(
        {
            "t": (
                roles["policy"](batch, ())["value"].sum() + roles["critic"](batch["obs/x"]).sum(),
                torch.tensor(2),
            )
        }
    )

    def after_step(roles, step, metrics):
        taken.append((step, round(metrics["t"], 9)))
        return len(taken) == 7

    algorithm.after_step, algorithm.after_update = after_step, lambda *_: None
    _, metrics = trained(algorithm)
    assert [step for step, _ in taken] == [
        "policy",
        "policy",
        "policy",
        "critic",
        "policy",
        "policy",
        "policy",
    ]
    assert metrics["minibatches"] == 6 and "grad_norm_critic" in metrics


def test_sums_divide_once():
    sums = Sums()
    sums.add("a", 10.0, 2)
    sums.add("a", 2.0, 4)
    sums.add("none", 0.0, 0)
    assert sums.means() == {"a": 2.0}


def test_the_trainer_counts_and_repeats_exactly():
    def run():
        trainer = Trainer(Regression(), {"train": Regression().feed}, device="cpu", seed=5, total_steps=100)
        for number in range(3):
            batch = line_batch(seed=number)
            batch["num_steps"][0] = 3
            metrics = trainer.apply(batch, {"train": number + 1}, 0)
        return trainer, metrics

    (one, metrics), (two, other) = run(), run()
    counters = one.counters
    assert (counters.env_steps, counters.updates, counters.applied) == (3 * 12, 3, {"train": 3})
    assert metrics == other and metrics["samples"] == 8 and metrics["lag_mean"] == 2.0
    for (name, a), (_, b) in zip(one.published().items(), two.published().items()):
        assert (a == b).all(), name
    nothing = line_batch()
    nothing["valid"][:] = False
    assert (
        one.apply(nothing, {"train": 4}, 0)["samples"] == 0
        and counters.updates == 4
        and counters.env_steps == 36
    )


def test_replay_steps_grow_with_the_table():
    feed = Regression().feed.model_copy(update={"unit": "step"})
    trainer = Trainer(Regression(feed), {"train": feed}, device="cpu", seed=5, total_steps=100)
    batch = line_batch()
    batch["num_steps"][:] = 2
    trainer.apply(batch, {"train": 1}, 100)
    assert trainer.counters.env_steps == 200
    batch["num_steps"][:] = 3
    trainer.apply(batch, {"train": 2}, 110)
    assert (trainer.counters.env_steps, trainer.counters.table_steps) == (230, 110)


def test_frozen_roles_get_no_gradient():
    algorithm = Regression()
    roles = algorithm.roles()
    roles["critic"].trainable = False
    algorithm.roles = lambda: roles
    Trainer(algorithm, {"train": algorithm.feed}, device="cpu", seed=1, total_steps=1)
    assert not any(p.requires_grad for p in algorithm.critic.parameters())


def test_the_gap_limit():
    check_gap({"log_prob_gap": 0.5}, 0.0)
    check_gap({}, 0.1)
    check_gap({"log_prob_gap": 0.05}, 0.1)
    for gap in (0.2, float("nan")):
        with pytest.raises(Diverged, match="learner.gap_limit"):
            check_gap({"log_prob_gap": gap}, 0.1)


def test_schedules():
    every = Every(10, 25)
    assert not every.due(29) and every.due(30) and every.due(47)
    every.done(47)
    assert not every.due(49) and every.due(50)
    assert not Every(0).due(10**9)
    recent = RecentReturn(2)
    assert recent.mean is None
    for mean, episodes in ((100.0, 1), (1.0, 1), (4.0, 3)):
        recent.add(mean, episodes)
    assert recent.mean == 13 / 4
    shares = Shares(0.0)
    shares.add(2.0, 1.0, 100)
    shares.add(3.0, 0.5, 0)  # a checkpoint
    assert shares.read(4.0) == {"steps_per_s": 0.0, "busy": 0.375, "wait": 0.625}  # before it all started
    shares.add(4.0, 1.5, 50)
    shares.add(5.0, 0.5, 50)
    assert shares.read(6.0) == {"steps_per_s": 25.0, "busy": 0.625, "wait": 0.375}
    assert shares.read(12.0)["steps_per_s"] == 6.2  # the last two marks stay: 50 steps in 8 s
