"""Convolutional encoders: parameters by hand, IMPALA's beside plain torch, sizes of images."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rollbus_policies import cnn
from rollbus_policies._convolutions import Convolutions
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

DISCRETE = ActionSpec("discrete", num=[3])


def image(height, width, channels=3):
    array = ArraySpec("uint8", (height, width, channels), low=0, high=255, layout="HWC")
    return EnvSpec("toy", {"image": array}, DISCRETE)


def impala(height=84, width=84, **settings):
    torch.manual_seed(0)
    config = cnn.Config(architecture="impala", **settings)
    return cnn.make(config, image(height, width), critic=True).encoder.convolutions


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def by_hand(channels, stages, pixels, size):
    """Weights and biases: a convolution and two blocks of two per stage, a linear layer behind."""
    total = 0
    for width in stages:
        total += 9 * channels * width + width + 4 * (9 * width * width + width)
        channels = width
    return total + channels * pixels * size + size


def test_parameters_of_impala_by_hand():
    # 84 -> 42 -> 21 -> 11
    assert count(impala()) == by_hand(3, (16, 32, 32), 11 * 11, 256) == 1_089_088
    assert count(impala(channel_factor=2)) == by_hand(3, (32, 64, 64), 11 * 11, 256)
    assert count(impala(64, 48, feature_size=100)) == by_hand(3, (16, 32, 32), 8 * 6, 100)


@pytest.mark.parametrize(("kind", "widths"), [("nature", (64, 128, 128)), ("small", (32, 64))])
def test_the_factor_widens_other_architectures_too(kind, widths):
    made = Convolutions(kind, 3, 40, 40, 0, "torch", 2)
    assert tuple(layer.out_channels for layer in made.layers) == widths


class Block(nn.Module):
    """The figure of the paper, written down as it is drawn."""

    def __init__(self, channels):
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return self.b(functional.relu(self.a(functional.relu(x)))) + x


def plain(channels, height, width):
    layers = []
    for wide in (16, 32, 32):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.MaxPool2d(3, 2, 1), Block(wide), Block(wide)]
        channels = wide
    pixels = -(-height // 8) * -(-width // 8)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(32 * pixels, 256), nn.ReLU())


@pytest.mark.parametrize(("height", "width"), [(84, 84), (8, 8), (37, 21), (9, 64)])
def test_impala_is_plain_torch_with_the_same_weights(height, width):
    mine, theirs = impala(height, width), plain(3, height, width)
    tensors = list(mine.state_dict().values())
    theirs.load_state_dict(dict(zip(theirs.state_dict(), tensors, strict=True)))
    x = torch.rand(5, 3, height, width)
    found, expected = mine(x), theirs(x)
    assert found.shape == (5, 256) and (found > 0).any()
    assert torch.equal(found, expected)
    found.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    for mine_p, theirs_p in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert mine_p.grad.abs().sum() > 0
        torch.testing.assert_close(mine_p.grad, theirs_p.grad)


@pytest.mark.parametrize("architecture", ["nature", "small", "impala"])
def test_features_start_at_a_moderate_size(architecture):
    torch.manual_seed(0)
    found = Convolutions(architecture, 3, 84, 84, 0, "orthogonal")(torch.rand(16, 3, 84, 84))
    assert 0.1 < found.std() < 2.0


@pytest.mark.parametrize(
    ("architecture", "side", "advice"),
    [
        ("impala", 7, "need 8x8; set policy.architecture: small"),
        ("nature", 35, "need 36x36; set policy.architecture: small"),
        ("impala", 2, "need 8x8; set policy.name: mlp"),
        ("auto", 2, "need 3x3; set policy.name: mlp"),
    ],
)
def test_images_that_are_too_small_are_refused_with_advice(architecture, side, advice):
    with pytest.raises(SpecError, match=f"images of {side}x50 are too small for .* which {advice}"):
        cnn.make(cnn.Config(architecture=architecture), image(side, 50), critic=False)
