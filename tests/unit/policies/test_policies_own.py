"""Policies of somebody's own: a function that makes a module, and what is said of those that do wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbus_core.config.load import load
from rollbus_launch import matrix
from rollbus_policies import base
from rollbus_policies.base import Ask
from rollbus_wire import lookup
from rollbus_wire.errors import RollbusError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "small",
    {
        "place": ArraySpec("float32", (3,)),
        "room": ArraySpec("int64", (), 0, 4, layout="onehot"),
        "speed": ArraySpec("float32", (), -3e38, 3e38),
    },
    ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0]),
)
#: 3 numbers, 5 rooms, 1 number.
NUM_INPUTS = 9
NETS = """
import torch
from rollbus_policies.wrap import wrap
from rollbus_policies._config import ActorCriticConfig

sizes = []


def make(size):
    sizes.append(size)
    return torch.nn.Sequential(torch.nn.Linear(size, 16), torch.nn.Tanh())


def too_wide(size):
    return torch.nn.Linear(size + 1, 16)


def a_number(size):
    return 3


def one_vector(size):
    return torch.nn.Flatten(0)


class Together(torch.nn.Linear):
    def forward(self, x):
        found = super().forward(x)
        return found - found.mean(0)


def together(size):
    return Together(size, 16)


def not_finite(size):
    net = torch.nn.Linear(size, 16)
    net.weight.data.fill_(float("nan"))
    return net
"""
OTHER = """
from typing import ClassVar
from rollbus_policies._config import ActorCriticConfig
from rollbus_policies import mlp

needs = ()


class Config(mlp.Config):
    name: str = "own_other:make"


def make(config, spec, *, critic, frame_stack=1):
    policy = mlp.make(mlp.Config(), spec, critic=critic, frame_stack=frame_stack)
    act = policy.act

    def wrong(*arguments):
        found = act(*arguments)
        found.env_action = found.env_action[:, :1]
        return found

    policy.act = wrong
    return policy


def scored(config, spec, *, critic, frame_stack=1):
    policy = mlp.make(mlp.Config(), spec, critic=critic, frame_stack=frame_stack)
    forward = policy.forward
    policy.forward = lambda batch, want: {n: x[..., None] for n, x in forward(batch, want).items()}
    return policy
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_nets.py").write_text(NETS)
    (tmp_path / "own_other.py").write_text(OTHER)
    for name in ("own_nets", "own_other"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)


def made(name: str, **settings: Any) -> Any:
    config = lookup.find("rollbus_policies", name).Config(name=name, **settings)
    return base.make(config, SPEC, critic=True)


def test_a_function_that_makes_a_module_is_a_policy() -> None:
    torch.manual_seed(0)
    policy = made("own_nets:make", head="tanh_gaussian", critic="shared")
    assert __import__("own_nets").sizes == [NUM_INPUTS]
    obs = {
        "place": np.ones((4, 3), np.float32), "room": np.arange(4), "speed": np.zeros(4, np.float32),
    }  # fmt: skip
    act = policy.act(obs, None, Ask("sample", ("log_prob", "value")), np.arange(4, dtype=np.uint64))
    assert act.env_action.shape == (4, 2) and np.abs(act.env_action).max() < 1
    batch = {f"obs/{key}": torch.from_numpy(value) for key, value in obs.items()}
    scored = policy(batch | {"action": torch.from_numpy(act.action)}, ("log_prob", "value"))
    assert np.allclose(scored["log_prob"].detach(), act.extras["log_prob"], atol=1e-5)
    assert scored["value"].shape == (4,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_nets:too_wide", r"failed in a pass over inputs \[2, 9\]: RuntimeError: mat1 and mat2 shapes"),
        ("own_nets:a_number", "own_nets:a_number gave int; it must give a torch.nn.Module"),
        (
            "own_nets:one_vector",
            r"its module makes \[18\] of inputs \[2, 9\]; it must give features \[2, F\]",
        ),
        ("own_nets:together", "decides differently for a row if another one is beside it"),
        ("own_nets:not_finite", r"for two rows env_action is not finite"),
        ("own_other:make", r"for two rows env_action is float32 \[2, 1\]; it must be float32 \[2, 2\]"),
        ("own_other:scored", r"for two rows log_prob is float32 \[2, 1\]; it must be float32 \[2\]"),
    ],
)
def test_what_does_otherwise_than_stated_is_refused(name: str, message: str) -> None:
    with pytest.raises(RollbusError, match=message):
        made(name)


def test_the_matrix_and_recipes_know_it(tmp_path: Path) -> None:
    pairs = {pair.action: pair.reason for pair in matrix.pairs(["own_nets:make"], ["ppo"])}
    assert not any(pairs[action] for action in ("discrete", "multi_discrete", "continuous"))
    recipe = tmp_path / "r.yaml"
    recipe.write_text("policy: {name: 'own_nets:make', head: gsde}\nalgorithm: {name: ppo}\n")
    assert load(recipe).recipe.policy.head == "gsde"
