"""What other libraries computed (`tests/fixtures/beside`), and how their weights and data become ours.

Symbols: B transitions, M critics. A network's layers are maps ``{"0": {"weight", "bias"}, ...}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learner_tiny import SPEC
from torch import Tensor, nn

from rollbus_learner.algorithm import Algorithm, Loss, Progress
from rollbus_learner.algorithms import _conservative
from rollbus_policies import mlp
from rollbus_wire.spec import EnvSpec

FOLDER = Path(__file__).parents[2] / "fixtures" / "beside"
LIBRARIES = sorted(path.stem for path in FOLDER.glob("*.npz"))
#: As the generators have it.
GAMMA = 0.9
START = Progress(updates=0, env_steps=0, total_steps=100)

Layers = Mapping[str, Mapping[str, Tensor]]


@lru_cache
def arrays(library: str) -> dict[str, np.ndarray]:
    """All of its file."""
    with np.load(FOLDER / f"{library}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def case(library: str, name: str) -> dict[str, Any]:
    """The tensors of one case; ``critic/0/weight`` is a map in a map. ValueError if there is no such case."""
    found: dict[str, Any] = {}
    for key, array in arrays(library).items():
        where, *path = key.split("/")
        if where == name and path:
            place = found
            for part in path[:-1]:
                place = place.setdefault(part, {})
            place[path[-1]] = torch.from_numpy(array.copy())
    if not found:
        raise ValueError(f"{FOLDER / library}.npz has no case {name!r}")
    return found


def transitions(found: Mapping[str, Tensor], policy: Any) -> dict[str, Tensor]:
    """A batch of unit "step" of obs, next_obs, action (executed), reward, terminated [B]."""
    reward, no = found["reward"], torch.zeros_like(found["terminated"])
    return {
        "obs/x": found["obs"], "next_obs/x": found["next_obs"], "env_action": found["action"],
        "action": torch.from_numpy(policy.from_env_action(found["action"].numpy())),
        "reward": reward[:, None], "num_steps": torch.ones(len(reward), dtype=torch.int32),
        "return_to_go": found.get("return_to_go", torch.zeros_like(reward)),
        "terminated": found["terminated"], "truncated": no, "interrupted": no, "valid": ~no,
    }  # fmt: skip


def mlp_policy(head: str, spec: EnvSpec = SPEC) -> Any:
    """Of the size of theirs, without a value function."""
    return mlp.make(mlp.Config(hidden=[8], activation="relu", head=head), spec, critic=False)


def gaussian_policy(found: Mapping[str, Any], critic: str) -> Any:
    """With the weights of ``found``, those of its value function as ``critic``."""
    policy: Any = mlp.make(
        mlp.Config(hidden=[8], activation="relu", head="gaussian", critic_hidden=[8]), SPEC, critic=True
    )
    set_layers(policy_layers(policy), found["policy"])
    set_layers(value_layers(policy), found[critic])
    with torch.no_grad():
        policy.head.log_std.copy_(found["log_std"])
    return policy


def made(
    module: Any, found: Mapping[str, Any], policy: Any, **settings: Any
) -> tuple[Algorithm, dict[str, Any], dict[str, Tensor]]:
    """(algorithm with critics, modules with the weights of ``found``, labelled batch with its noise)."""
    config = module.Config(batch_size=len(found["reward"]), critic_hidden=[8], gamma=GAMMA, **settings)
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    algorithm = module.make(config, SPEC, policy, feed)
    modules = {name: role.module for name, role in algorithm.roles().items()}
    set_layers(policy_layers(policy), found["policy"])
    for name in ("critic", "target"):
        if name in found:
            set_heads(modules[name], found[name])
    batch = transitions(found, policy)
    algorithm.label(batch, modules, START)
    return (
        algorithm,
        modules,
        batch | {name: found[name] for name in ("noise", "next_noise") if name in found},
    )


def descend(loss: Loss, **factors: float) -> dict[str, float]:
    """The mean of each term; gradients are then those of their sum, each times its factor (1)."""
    means = {name: total / num for name, (total, num) in loss.terms.items()}
    sum(factors.get(name, 1.0) * mean for name, mean in means.items()).backward()
    return {name: float(mean.detach()) for name, mean in means.items()}


def propose(monkeypatch: Any, found: Mapping[str, Tensor]) -> None:
    """Have the conservative term draw their proposals: uniform, of the policy now, and next."""
    normal = iter([found["now_noise"].flatten(0, 1), found["following_noise"].flatten(0, 1)])
    # The stand-in of that module alone: what it replaces is read once and kept.
    monkeypatch.setattr(_conservative.torch, "randn", lambda *_, **__: next(normal))
    monkeypatch.setattr(_conservative.torch, "rand", lambda *_, **__: (found["proposals"] + 1) / 2)


def policy_layers(policy: nn.Module) -> list[nn.Linear]:
    """Of `mlp`."""
    return [*policy.encoder.layers, policy.output]


def value_layers(policy: nn.Module) -> list[nn.Linear]:
    """Of the value function of `mlp`."""
    return [*policy.critic.body.layers, policy.critic.output]


@torch.no_grad()
def set_layers(own: Sequence[nn.Linear], layers: Layers) -> None:
    """Give ``own`` layers their weights."""
    for layer, given in zip(own, joined(layers, len(own)), strict=True):
        layer.weight.copy_(given["weight"])
        layer.bias.copy_(given["bias"])


@torch.no_grad()
def set_heads(ensemble: nn.Module, heads: Mapping[str, Layers]) -> None:
    """Give a `QEnsemble` the weights of M separate networks."""
    for index, layers in enumerate(heads.values()):
        own = [*ensemble.layers, ensemble.output]
        for layer, given in zip(own, joined(layers, len(own)), strict=True):
            layer.weight[index].copy_(given["weight"].T)
            layer.bias[index, 0].copy_(given["bias"])


def same_gradients(own: Sequence[nn.Linear], layers: Layers, **tolerance: float) -> None:
    """AssertionError where gradients of ``own`` differ from theirs, or theirs are 0 everywhere."""
    for index, (layer, wanted) in enumerate(zip(own, joined(layers, len(own)), strict=True)):
        _close(layer.weight.grad, wanted["weight"], f"layer {index} weight", tolerance)
        _close(layer.bias.grad, wanted["bias"], f"layer {index} bias", tolerance)


def same_head_gradients(ensemble: nn.Module, heads: Mapping[str, Layers], **tolerance: float) -> None:
    """`same_gradients` of a `QEnsemble`."""
    own = [*ensemble.layers, ensemble.output]
    for head, layers in enumerate(heads.values()):
        for index, (layer, wanted) in enumerate(zip(own, joined(layers, len(own)), strict=True)):
            name = f"critic {head} layer {index}"
            _close(layer.weight.grad[head].T, wanted["weight"], f"{name} weight", tolerance)
            _close(layer.bias.grad[head, 0], wanted["bias"], f"{name} bias", tolerance)


def same_parameter(parameter: Tensor, wanted: Tensor, **tolerance: float) -> None:
    """AssertionError where the gradient of one parameter differs."""
    assert parameter.grad is not None
    _close(parameter.grad, wanted.reshape(parameter.shape), "parameter", tolerance)


def joined(layers: Layers, num: int) -> list[Mapping[str, Tensor]]:
    """``num`` layers: those beyond are rows of the last one (mean and log_std in layers of their own)."""
    every = [layers[str(index)] for index in range(len(layers))]
    last = {name: torch.cat([layer[name] for layer in every[num - 1 :]]) for name in ("weight", "bias")}
    return [*every[: num - 1], last]


def _close(found: Tensor, wanted: Tensor, name: str, tolerance: Mapping[str, float]) -> None:
    limits = {"rtol": 1e-4, "atol": 1e-6} | dict(tolerance)
    torch.testing.assert_close(found, wanted, msg=lambda text: f"{name}: {text}", **limits)
    assert wanted.abs().sum() > 0, f"{name}: a gradient of 0 shows nothing"
