"""Exported models compute in onnxruntime what the policy does, for any number of rows."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from rollbus_launch import matrix
from rollbus_policies import base
from rollbus_policies._export import export
from rollbus_policies.base import Ask
from rollbus_wire import lookup
from rollbus_wire.errors import SpecError

SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "hidden": [16]}
CASES = [
    ("mlp", "continuous", {"normalise_obs": True}), ("mlp", "continuous", {"head": "tanh_gaussian"}),
    ("mlp", "multi_discrete", {}), ("cnn", "discrete", {}), ("recurrent", "continuous", {}),
    ("recurrent", "continuous", {"cell": "lstm"}),
    ("cnn", "continuous", {"architecture": "impala", "head": "tanh_gaussian", "feature_size": 16}),
    ("transformer", "continuous", {"head": "bins"}), ("act", "continuous", {"chunk": 3, "execute": 2}),
    ("flow", "continuous", {"chunk": 2, "normalise_obs": True}), ("diffusion", "continuous", {"chunk": 1}),
    ("flow", "continuous", {"chunk": 3, "execute": 2, "refine": True}),
    ("mlp", "continuous", {"head": "gsde"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "settings"), CASES)
def test_the_exported_model_is_the_policy(name, kind, settings, tmp_path):
    torch.manual_seed(0)
    config_class = lookup.find(matrix.POLICIES, name).Config
    known = {k: v for k, v in SMALL.items() if k in config_class.model_fields}
    spec = matrix.SPECS[kind]
    policy = base.make(config_class(name=name, **(known | settings)), spec, critic=False)
    spread = 0.03 if "architecture" in settings else 0.3  # deep convolutions would blow up
    with torch.no_grad():
        for parameter in policy.parameters():  # outputs that differ by row
            parameter.add_(spread * torch.randn_like(parameter))
        if settings.get("refine"):
            policy.explore(0.1)
            policy.refine.output.weight.mul_(0.02)  # not beyond the bounds in every row
    seen = {"obs/vector": 3.0 + 2.0 * torch.randn(64, 4), "obs/image": torch.zeros(64, 32, 32, 3)}
    policy.update_normaliser(seen, torch.ones(64, dtype=torch.bool))
    card = export(policy, spec, tmp_path / "m.onnx")
    assert card["onnx_difference"] < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(3)
    obs = {
        "vector": generator.normal(3.0, 2.0, (4, 4)).astype(np.float32),
        "image": generator.integers(0, 255, (4, 32, 32, 3)).astype(np.uint8),
    }
    given = {f"obs/{key}": value for key, value in obs.items()}
    state = noise = None
    if "state" in card["inputs"]:
        state = given["state"] = generator.normal(size=(4, policy.spec.state_size)).astype(np.float32)
    if "noise" in card["inputs"]:
        noise = given["noise"] = generator.normal(size=(4, policy.spec.chunk, 2)).astype(np.float32)
    given = {name: value for name, value in given.items() if name in card["inputs"]}
    found = session.run(None, given)
    act = policy.act(obs, state, Ask("mode", noise=noise), np.zeros(4, np.uint64))
    np.testing.assert_allclose(found[0], act.env_action, atol=1e-4)
    assert len({row.tobytes() for row in found[0]}) > 1, "rows do not differ, so nothing was compared"
    if state is not None:
        np.testing.assert_allclose(found[1], act.state, atol=1e-5)


def test_what_decides_token_by_token_is_refused(tmp_path):
    config = lookup.find(matrix.POLICIES, "tokens").Config()
    policy = base.make(config, matrix.SPECS["tokens"], critic=False)
    with pytest.raises(SpecError, match="TokenPolicy decides token by token"):
        export(policy, matrix.SPECS["tokens"], tmp_path / "m.onnx")
