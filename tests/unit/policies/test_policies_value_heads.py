"""Values as distributions: two-hot targets and their mean by hand, and critics of every family."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from rollbus_core.config.load import load
from rollbus_policies import act, base, cnn, diffusion, flow, mlp, recurrent, transformer
from rollbus_policies._value_heads import TwoHot, symexp_atoms
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError, SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

VECTOR = {"obs": ArraySpec("float32", (4,))}
IMAGE = {"image": ArraySpec("uint8", (12, 12, 3), low=0, high=255, layout="HWC", channels="RGB")}
TWO = ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0])
ATTENTION = {"width": 16, "layers": 1, "num_heads": 2}
UNEVEN = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])


def test_two_hot_by_hand():
    found = TwoHot(UNEVEN).two_hot(torch.tensor([[-1.5, 2.0, 1.0], [-9.0, 9.0, 0.25]]))
    assert found.tolist() == [
        [[0.25, 0.75, 0, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 0, 1, 0]],
        [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0.75, 0.25, 0]],
    ]


def test_value_and_loss_by_hand():
    head, target = TwoHot(torch.linspace(-1.0, 1.0, 5)), torch.tensor([0.3])
    raw = torch.zeros(1, 5)
    assert head(raw).item() == pytest.approx(0.0, abs=1e-6)
    assert head.loss(raw, target).item() == pytest.approx(math.log(5.0), abs=1e-6)
    raw[0, 3] = math.log(4.0)
    assert head(raw).item() == pytest.approx(0.5 * 3 / 8, abs=1e-6)
    wanted = -(0.4 * math.log(1 / 8) + 0.6 * math.log(4 / 8))
    assert head.loss(raw, target).item() == pytest.approx(wanted, abs=1e-6)


def test_atoms_are_even_in_symlog():
    atoms = symexp_atoms(10_000.0, 255)
    assert len(atoms) == 255 and atoms[0] == -10_000.0 and atoms[-1] == 10_000.0
    torch.testing.assert_close(atoms, -atoms.flip(0), rtol=1e-6, atol=1e-6)
    steps = (atoms.sign() * atoms.abs().log1p()).diff()
    torch.testing.assert_close(steps, torch.full((254,), 2 * math.log(10_001.0) / 254), rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="two or more that rise"):
        TwoHot(torch.tensor([0.0, 0.0]))


def test_the_mean_of_a_target_is_the_target():
    head = TwoHot(symexp_atoms(10_000.0, 255))
    size = 10.0 ** torch.linspace(-4, 4, 200)
    target = torch.cat([-size, torch.zeros(1), size])
    weights = head.two_hot(target)
    torch.testing.assert_close(weights.sum(-1), torch.ones(401))
    assert (weights >= 0).all() and (weights > 0).sum(-1).max() <= 2
    torch.testing.assert_close((weights * head.atoms).sum(-1), target, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head(weights.clamp(min=1e-30).log()), target, rtol=1e-4, atol=1e-4)


def test_the_gradient_is_softmax_minus_target():
    torch.manual_seed(0)
    head, raw = TwoHot(UNEVEN), torch.randn(6, 5, requires_grad=True)
    target = torch.tensor([-7.0, -2.0, 0.0, 0.4, 2.9, 5.0])
    head.loss(raw, target).sum().backward()
    torch.testing.assert_close(raw.grad, raw.detach().softmax(-1) - head.two_hot(target))
    theirs = functional.cross_entropy(raw, head.two_hot(target), reduction="none")
    torch.testing.assert_close(head.loss(raw, target), theirs)


FAMILIES = {
    "mlp": (mlp, {"hidden": [16]}, VECTOR),
    "mlp-torch": (mlp, {"hidden": [16], "init": "torch"}, VECTOR),
    "cnn": (cnn, {}, IMAGE),
    "recurrent": (recurrent, {"hidden": [16], "state_size": 8}, VECTOR),
    "transformer": (transformer, ATTENTION, VECTOR),
    "act": (act, ATTENTION | {"chunk": 2}, VECTOR),
    "flow": (flow, ATTENTION | {"chunk": 2}, VECTOR),
    "diffusion": (diffusion, ATTENTION | {"chunk": 2}, VECTOR),
}


@pytest.mark.parametrize("critic", ["own", "shared"])
@pytest.mark.parametrize("name", FAMILIES)
def test_critics_of_all_families_learn_by_it(name, critic):
    """It begins at 0 everywhere, gives the same value acting and learning, and reaches its target."""
    family, settings, observation = FAMILIES[name]
    torch.manual_seed(0)
    settings = settings | {"name": name.partition("-")[0], "critic": critic, "value_head": "two_hot"}
    config = family.Config(**settings)
    policy = base.make(config, EnvSpec("toy", observation, TWO), critic=True)
    assert policy.spec.value_loss and not any("atoms" in key for key in policy.state_dict())
    generator = np.random.default_rng(0)
    obs = {
        key: generator.integers(0, 256, (6, *array.shape)).astype(np.uint8)
        if array.dtype == "uint8"
        else generator.normal(size=(6, *array.shape)).astype(np.float32)
        for key, array in observation.items()
    }
    batch = {f"obs/{key}": torch.from_numpy(value) for key, value in obs.items()}
    batch["target"] = torch.tensor([-500.0, -1.0, 0.0, 0.5, 20.0, 9000.0])
    state = None
    if policy.spec.state_size:
        state = np.zeros((6, policy.spec.state_size), np.float32)
        batch = {key: value[None] for key, value in batch.items()}
        batch |= {"state": torch.from_numpy(state), "start": torch.ones(1, 6, dtype=torch.bool)}
    want = ("value", "value_loss")
    first = policy(batch, want)
    torch.testing.assert_close(first["value"], torch.zeros_like(batch["target"]), rtol=0, atol=0.02)
    uniform = torch.full_like(batch["target"], math.log(255.0))
    torch.testing.assert_close(first["value_loss"], uniform, rtol=1e-5, atol=1e-4)
    optimiser = torch.optim.Adam(policy.parameters(), 0.02)
    for _ in range(100):
        loss = policy(batch, want)["value_loss"].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 2.0, "the entropy of the targets is 0.5 at most"
    policy.eval()
    with torch.no_grad():
        value = policy(batch, ("value",))["value"]
    acted = policy.act(obs, state, Ask("mode", ("value",)), np.arange(6, dtype=np.uint64)).extras["value"]
    np.testing.assert_allclose(acted, value.flatten().numpy(), rtol=1e-4, atol=0.05)


def test_a_number_has_no_loss_of_its_own():
    policy = base.make(mlp.Config(), EnvSpec("toy", VECTOR, TWO), critic=True)
    assert not policy.spec.value_loss
    batch = {"obs/obs": torch.zeros(2, 4), "target": torch.zeros(2)}
    with pytest.raises(SpecError, match="value_loss"):
        policy(batch, ("value_loss",))


@pytest.mark.parametrize("limit", ["value_clip=0.2", "huber_delta=1.0"])
def test_limits_of_an_error_that_there_is_none_of_are_refused(limit, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("env: {name: toy, kind: continuous}\n")
    load(str(recipe), [f"algorithm.{limit}"])
    load(str(recipe), ["policy.value_head=two_hot"])
    for family in ("mlp", "flow"):
        with pytest.raises(ConfigError, match="value_error.*policy.value_head: two_hot has none"):
            load(str(recipe), [f"policy.name={family}", "policy.value_head=two_hot", f"algorithm.{limit}"])
