"""Moving averages of weights: rates by hand, a role that follows."""

import pytest
import torch
from torch import nn

from rollbus_learner.averaging import average_of, averaging_rate, follow


def test_rates_begin_high_and_end_at_the_decay():
    assert averaging_rate(0.99, 1) == pytest.approx(1 - 2 / 11)
    assert averaging_rate(0.99, 90) == pytest.approx(0.09)
    assert averaging_rate(0.99, 10_000) == pytest.approx(0.01)


def test_an_average_follows_and_is_not_trained():
    module = nn.BatchNorm1d(1)
    role = average_of(module)
    assert not role.trainable and role.saved and not any(p.requires_grad for p in role.module.parameters())
    with torch.no_grad():
        module.weight.fill_(3.0)
        module.running_mean.fill_(7.0)
    follow(role.module, module, 0.25)
    assert role.module.weight.item() == pytest.approx(1.5) and role.module.running_mean.item() == 7.0
    assert module.weight.item() == 3.0
