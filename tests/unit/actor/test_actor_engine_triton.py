"""The model generated for NVIDIA's server, run here: its files, and its code beside a fake of the server."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbus_actor.engines import _triton_repository as repository
from rollbus_actor.engines import triton_server
from rollbus_policies import base, mlp, recurrent
from rollbus_wire.errors import DeadlineExceeded
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "toy",
    {"a.b": ArraySpec("float32", (3,)), "kind": ArraySpec("int64", (), low=1, high=4, layout="tokens")},
    ActionSpec("discrete", num=[3]),
)


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> np.ndarray:
        return self.array


def made(family: Any, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """A policy and its model, from files that were written to a repository."""
    torch.manual_seed(0)
    policy = base.make(family.Config(**settings), SPEC, critic=True)
    trunk = policy.describe(True)
    sizes = {"params": 3, "value": 1, "state": policy.spec.state_size}
    sizes = {name: sizes[name] for name in trunk.outputs}
    place = repository.write(folder, trunk, repository.configuration("policy", trunk, sizes, 64, 500))
    sys.modules.pop("ops", None)
    spec = importlib.util.spec_from_file_location("generated_model", place / "1/model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_repository": str(place), "model_version": "1"})
    return policy, model


@pytest.fixture(autouse=True)
def server_module(monkeypatch: Any) -> None:
    fake = types.ModuleType("triton_python_backend_utils")
    fake.Tensor = Tensor  # type: ignore[attr-defined]
    fake.InferenceResponse = lambda tensors: {t.name: t.array for t in tensors}  # type: ignore[attr-defined]
    fake.get_input_tensor_by_name = lambda request, name: (  # type: ignore[attr-defined]
        Tensor(name, request[name]) if name in request else None
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    monkeypatch.setattr(sys, "path", list(sys.path))


def weights_request(policy: Any, version: tuple[int, int]) -> dict[str, np.ndarray]:
    own = policy.state_dict()
    flat = np.concatenate([own[name].numpy().reshape(-1) for name in policy.describe(True).weights])
    return {"weights": flat[None], "version_in": np.array([version], np.int64)}


def rows_request(num: int, state_size: int = 0) -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor]]:
    generator = np.random.default_rng(num)
    inputs = {
        "obs/a.b": generator.normal(size=(num, 3)).astype(np.float32),
        "obs/kind": generator.integers(1, 5, num),
    }
    if state_size:
        inputs["state"] = generator.normal(size=(num, state_size)).astype(np.float32)
    request = {repository.field_of(n): v.reshape(num, -1) for n, v in inputs.items()}
    return request, {name: torch.from_numpy(value) for name, value in inputs.items()}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        (mlp, {}),
        (recurrent, {"cell": "gru"}),
        (recurrent, {"cell": "lstm"}),
        (mlp, {"value_head": "two_hot", "value_limit": 20.0}),
    ],
)
def test_the_generated_model_computes_the_policy_s_trunk(
    family: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    policy, model = made(family, tmp_path, **settings)
    assert model.execute([weights_request(policy, (2, 5))])[0]["version"].tolist() == [[2, 5]]
    given = [rows_request(num, policy.spec.state_size) for num in (4, 1)]
    answers = model.execute([request for request, _ in given])
    for answer, (_, inputs) in zip(answers, given, strict=True):
        num = len(inputs["obs/kind"])
        assert answer["version"].tolist() == [[2, 5]] * num
        for name, expected in policy.infer(inputs, True).items():
            value = answer[f"out_{name}"]
            assert value.dtype == np.float32 and value.shape == (num, expected[0].numel())
            np.testing.assert_allclose(value, expected.detach().reshape(num, -1), rtol=0, atol=1e-5)


def test_weights_that_come_between_act_on_what_is_decided_with_them(tmp_path: Path) -> None:
    policy, model = made(mlp, tmp_path)
    request, inputs = rows_request(2)
    old, new = weights_request(policy, (0, 1)), weights_request(policy, (0, 2))
    new["weights"] = new["weights"] * 2
    model.execute([old])
    before = model.execute([request])[0]
    after = model.execute([new, request])[1]
    assert before["version"].tolist() == [[0, 1]] * 2 and after["version"].tolist() == [[0, 2]] * 2
    assert np.abs(before["out_value"] - after["out_value"]).max() > 1e-3


def test_the_configuration_is_protobuf_text(tmp_path: Path) -> None:
    made(mlp, tmp_path)
    text = (tmp_path / "policy/config.pbtxt").read_text()
    service = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format

    config = text_format.Parse(text, service.ModelConfig())
    assert config.name == "policy" and config.backend == "python" and config.max_batch_size == 64
    fields = {each.name: (each.data_type, list(each.dims), each.optional) for each in config.input}
    assert fields["in_obs_a_b"] == (service.TYPE_FP32, [3], True)
    assert fields["in_obs_kind"] == (service.TYPE_INT64, [1], True)
    assert fields["version_in"] == (service.TYPE_INT64, [2], True)
    assert {each.name: list(each.dims) for each in config.output} == {
        "out_params": [3], "out_value": [1], "version": [2],
    }  # fmt: skip
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(group.kind, group.count) for group in config.instance_group] == [
        (service.ModelInstanceGroup.KIND_CPU, 1)
    ]


def test_what_is_sent_is_what_is_written(tmp_path: Path) -> None:
    policy, _ = made(mlp, tmp_path)
    sent = repository.files(policy.describe(True))
    assert {p.name for p in (tmp_path / "policy/1").iterdir()} - {"__pycache__"} == set(sent)
    assert all((tmp_path / "policy/1" / name).read_bytes() == content for name, content in sent.items())
    assert json.loads(sent["trunk.json"])["weights"].keys() == policy.describe(True).weights.keys()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_that_is_not_there(protocol: Any) -> None:
    policy = base.make(mlp.Config(), SPEC, critic=True)
    config = triton_server.Config(url="127.0.0.1:9", protocol=protocol, start_timeout_s=0.3)
    with pytest.raises(DeadlineExceeded, match=rf"no Triton server answered at 127.0.0.1:9 \({protocol}\)"):
        triton_server.Engine(policy, config=config)
