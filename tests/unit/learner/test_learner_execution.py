"""Parts of minibatches and bfloat16: the same update, but for rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, chunk_batch

from rollbus_learner import optim
from rollbus_learner.algorithm import Loss, Progress, Step
from rollbus_learner.algorithms import ppo
from rollbus_learner.execution import Execution
from rollbus_learner.loop import Sums, take, update
from rollbus_learner.trainer import Trainer
from rollbus_policies import cnn
from rollbus_policies.base import make
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

IMAGE = EnvSpec(
    name="image",
    observation={"x": ArraySpec("uint8", (36, 36, 3), layout="HWC")},
    action=ActionSpec("discrete", (), num=[5]),
)


def algorithm(policy, **settings):
    config = ppo.Config(num_steps=8, minibatches=1, epochs=2, entropy_coef=0.1, **settings)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=True)
    return ppo.make(config, SPEC, policy, feed)


def after_update(policy, execution):
    made = algorithm(policy)
    modules = {name: role.module for name, role in made.roles().items()}
    optimisers = optim.build(made.steps(), modules)
    generator = torch.Generator().manual_seed(3)
    metrics = update(
        made, modules, optimisers, chunk_batch(policy), Progress(0, 0, 100), generator, execution
    )
    return metrics, [p.detach().clone() for p in policy.parameters()]


@pytest.mark.parametrize("size", [1, 7, 28, 29, 1000])
def test_parts_of_a_minibatch_add_up_to_it(size: int) -> None:
    torch.manual_seed(0)
    policy = TinyPolicy()
    whole, weights = after_update(copy.deepcopy(policy), Execution())
    parts, same = after_update(policy, Execution(micro_batch=size))
    assert parts.keys() == whole.keys()
    for name, value in whole.items():
        assert parts[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for mine, other in zip(same, weights):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_parts_are_of_nearly_one_size() -> None:
    batch = {"a": torch.arange(10), "b": torch.arange(20).reshape(10, 2)}
    parts = Execution(micro_batch=4).parts(batch)
    assert [len(part["a"]) for part in parts] == [4, 3, 3]
    assert torch.equal(torch.cat([part["b"] for part in parts]), batch["b"])


def test_terms_over_different_numbers_cannot_be_cut() -> None:
    module = torch.nn.Linear(1, 1)

    def loss(roles, batch):
        x = module(batch["x"]).sum()
        return Loss({"all": (x, len(batch["x"])), "some": (x, 1)})

    step = Step("fit", ("net",), loss, 0.1)
    optimiser = optim.build([step], {"net": module})["fit"]
    take(step, {"net": module}, optimiser, {"x": torch.ones(4, 1)}, Sums())
    with pytest.raises(ValueError, match=r"step 'fit' .* \[2.0, 4.0\]: set learner.micro_batch to 0"):
        take(step, {"net": module}, optimiser, {"x": torch.ones(4, 1)}, Sums(), Execution(micro_batch=2))


def test_whole_rows_cannot_be_cut() -> None:
    made = algorithm(TinyPolicy(state_size=1))
    with pytest.raises(ConfigError, match="learner.micro_batch 8 .* algorithm.minibatches"):
        Trainer(made, {"train": made.feed}, device="cpu", seed=0, total_steps=10, micro_batch=8)


def test_bf16_keeps_weights_outputs_and_losses_in_float32() -> None:
    torch.manual_seed(0)
    policy = make(cnn.Config(critic="shared"), IMAGE, critic=True)
    batch = {
        "obs/x": torch.randint(0, 256, (64, 36, 36, 3), dtype=torch.uint8),
        "action": torch.randint(0, 5, (64,)),
    }
    want = ("log_prob", "entropy", "value")
    exact = policy(batch, want)
    with Execution(bf16=True).autocast():
        rough = policy(batch, want)
        seen = policy.encoder(batch_obs(batch), policy.normaliser)
    assert seen.dtype == torch.bfloat16, "hidden layers"
    for name in want:
        assert rough[name].dtype == torch.float32
        assert not torch.equal(rough[name], exact[name])
        torch.testing.assert_close(rough[name], exact[name], rtol=0.05, atol=0.05)
    sum(rough[name].sum() for name in want).backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in policy.parameters())


def test_recomputed_activations_give_the_same_gradients_and_are_not_kept() -> None:
    batch = {
        "obs/x": torch.randint(0, 256, (32, 36, 36, 3), dtype=torch.uint8),
        "action": torch.randint(0, 5, (32,)),
    }
    kept, gradients = [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        policy = make(cnn.Config(critic="shared", recompute=recompute), IMAGE, critic=True)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=sizes: to.append(x.numel()) or x, lambda x: x
        ):
            out = policy(batch, ("log_prob", "value"))
        kept.append(sum(sizes))
        (out["log_prob"].sum() + out["value"].sum()).backward()
        gradients.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert kept[1] < kept[0] / 4
    assert len(gradients[0]) == len(gradients[1]) > 6
    for plain, again in zip(*gradients):
        torch.testing.assert_close(again, plain)


def batch_obs(batch):
    return {"x": batch["obs/x"]}
