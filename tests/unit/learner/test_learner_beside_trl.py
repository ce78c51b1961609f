"""GRPO, Dr. GRPO, DAPO, GSPO and RLOO beside trl's trainers: advantages, losses, gradients by log-probs.

What differs by choice: an advantage is divided by the deviation + 1e-6, theirs + 1e-4; ours gives 0 where all
members score alike. Its default multiplies the KL by the ratio; here it is told not to, as in GRPO's paper.
Rows with a tool's answer in the middle have tokens that do not count.
"""

import pytest
import torch
from learner_beside import case, descend
from learner_beside_groups import labelled, spread

from rollbus_learner.algorithms import dapo, dr_grpo, grpo, gspo, rloo

CASES = {
    "grpo": (grpo, {"clip": 0.2, "kl_coef": 0.1}),
    "dr_grpo": (dr_grpo, {"clip": 0.2, "kl_coef": 0.1}),
    "dapo": (dapo, {"clip": 0.2, "clip_high": 0.28, "soft_tokens": 0}),
    "gspo": (gspo, {"clip": 0.05, "clip_high": 0.08}),
    "rloo": (rloo, {"clip": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_same_advantages_losses_and_gradients(name):
    module, settings = CASES[name]
    found = case("trl", name)
    algorithm, networks, batch = labelled(module, found, **settings)
    ours = torch.where(found["mask"], batch["advantage"][0], torch.nan).nanmean(1)
    if name in ("grpo", "dapo", "gspo"):
        ours = ours * (spread(found) + 1e-6) / (spread(found) + 1e-4)
    torch.testing.assert_close(ours, found["advantage"], rtol=1e-5, atol=1e-6)

    batch["advantage"] = found["advantage"][None, :, None] * found["mask"]
    loss = algorithm.loss(networks, batch)
    outside, num = loss.metrics["clip_fraction"]
    assert 0 < float(outside) < float(num), "some tokens must be clipped and others not"
    assert sum(descend(loss).values()) == pytest.approx(found["loss"].item(), rel=1e-5, abs=1e-6)
    gradient = networks["policy"].log_prob.grad
    assert (gradient[found["mask"]] != 0).any() and not gradient[~found["mask"]].any()
    torch.testing.assert_close(gradient, found["gradient"], rtol=1e-4, atol=1e-6)
