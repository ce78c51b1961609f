"""Advantages of the group algorithms, their losses and the estimates of KL beside verl's functions."""

import pytest
import torch
from learner_beside import case, descend
from learner_beside_groups import labelled

from rollbus_learner import losses, masked
from rollbus_learner.algorithms import dapo, dr_grpo, grpo, gspo, reinforce_pp, rloo

ADVANTAGES = {
    "grpo": (grpo, {}),
    "dr_grpo": (dr_grpo, {}),
    "rloo": (rloo, {}),
    "reinforce_pp": (reinforce_pp, {"baseline": False}),
    "reinforce_pp_baseline": (reinforce_pp, {"baseline": True}),
    "reinforce_pp_kl": (reinforce_pp, {"baseline": False, "kl_reward": 0.05}),
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_same_advantages(name):
    module, settings = ADVANTAGES[name]
    found = case("verl", "advantages")
    _, _, batch = labelled(module, found, **settings)
    torch.testing.assert_close(batch["advantage"][0], found[name], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "module", "settings"),
    [
        ("token", dapo, {"clip": 0.2, "clip_high": 0.28, "soft_tokens": 0}),
        ("member", grpo, {"clip": 0.2}),
        ("gspo", gspo, {"clip": 0.05, "clip_high": 0.08}),
    ],
)
def test_same_losses_and_gradients(name, module, settings):
    found = case("verl", f"loss_{name}")
    algorithm, networks, batch = labelled(module, found, **settings)
    batch["advantage"] = (found["advantage"] * found["mask"])[None]
    loss = algorithm.loss(networks, batch)
    outside, num = loss.metrics["clip_fraction"]
    assert 0 < float(outside) < float(num), "some tokens must be clipped and others not"
    assert descend(loss)["policy_loss"] == pytest.approx(found["loss"].item(), rel=1e-5)
    gradient = networks["policy"].log_prob.grad
    torch.testing.assert_close(gradient, found["gradient"], rtol=1e-4, atol=1e-6)


def test_same_dual_clip():
    found = case("verl", "loss_dual")
    log_prob = found["log_prob"].requires_grad_()
    rho = losses.ratio(log_prob, found["old_log_prob"])
    single, dual = (losses.ppo_clip(rho, found["advantage"], 0.2, 0.2, dual_clip=c) for c in (0.0, 1.5))
    assert (single != dual)[found["mask"]].any(), "the second clip must be reached"
    loss = masked.mean(dual, found["mask"])
    loss.backward()
    assert loss.item() == pytest.approx(found["loss"].item(), rel=1e-5)
    torch.testing.assert_close(log_prob.grad, found["gradient"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_same_estimates_of_kl(name):
    found = case("verl", "kl")
    log_prob = found["log_prob"].requires_grad_()
    kl = getattr(losses, f"kl_{name}")(log_prob, found["reference_log_prob"])
    kl.sum().backward()
    torch.testing.assert_close(kl, found[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_prob.grad, found[f"{name}_gradient"], rtol=1e-5, atol=1e-6)
