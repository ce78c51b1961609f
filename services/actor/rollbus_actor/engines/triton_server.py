"""NVIDIA Triton Inference Server, through tritonclient: gRPC or HTTP, arrays by value or in shared memory.

The engine brings its own model: it is generated from the policy (`_triton_repository`) and loaded by the
server, which runs with ``--model-control-mode=explicit``. Weights are pushed with their version, which every
answer repeats. Sampling stays in the actor.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rollbus_actor.engines import _triton_repository as repository
from rollbus_actor.engines._numpy_ops import missing
from rollbus_actor.engines._triton_regions import Regions
from rollbus_actor.engines._trunk import TrunkEngine, no_trunk
from rollbus_core.version import Version
from rollbus_wire.errors import DeadlineExceeded, MissingPackage, PeerLost, SpecError

#: Somebody has to run the server: never a candidate of `auto`.
START_S = None
needs = ("tritonclient",)


class Config(BaseModel):
    """Settings of this engine, ``actor.engine_options``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("", description="host:port of the server; empty: 127.0.0.1 and the protocol's own port.")
    protocol: Literal["grpc", "http"] = Field("grpc", description="What the server is asked by.")
    shared_memory: bool = Field(False, description="Arrays in system shared memory: a server on this host.")
    model: str = Field("", description="Name of the model; empty: rollbus_<pid>, one model per actor.")
    repository: str = Field(
        "",
        description="Folder that the server takes models from; empty: the model is sent with the load call.",
    )
    max_batch: int = Field(1024, ge=1, description="Rows that the server puts into one pass.")
    delay_us: int = Field(0, ge=0, description="How long the server waits for more requests.")
    start_timeout_s: float = Field(60.0, gt=0, description="Time limit until the server is ready.")


def declines(policy: Any, device: str) -> str:
    """Why this engine cannot serve ``policy`` here; "" if it can, given a server."""
    unknown = _unknown(policy)
    if unknown:
        return unknown
    if importlib.util.find_spec("tritonclient") is None:
        return "not installed: tritonclient"
    return "" if os.environ.get("ROLLBUS_TRITON_URL") else "no server: ROLLBUS_TRITON_URL is not set"


class Engine(TrunkEngine):
    """One model of one server. ``device`` is the server's affair; this side stays on the CPU."""

    def __init__(
        self, policy: Any, device: str = "cpu", threads: int = 0, config: Config | None = None
    ) -> None:
        """Loads the model. Raises `MissingPackage`, `DeadlineExceeded` or `SpecError`."""
        super().__init__(policy, "cpu", threads)
        unknown = _unknown(policy)
        if unknown:
            raise SpecError(f"{unknown}; set actor.engine: torch_local")
        self.config = config or Config()
        self._trunk = policy.describe(self._with_value)
        sizes = {"params": (policy.head.num_params,), "value": (), "state": (policy.spec.state_size,)}
        self._shapes = {name: sizes[name] for name in self._trunk.outputs}
        self.model = self.config.model or f"rollbus_{os.getpid()}"
        self._client, self._api = self._connect()
        self._load()
        self._regions = Regions(self._client, self.model) if self.config.shared_memory else None
        self._pushed = np.array([-1, -1], np.int64)

    def _connect(self) -> tuple[Any, Any]:
        config = self.config
        try:
            api = importlib.import_module(f"tritonclient.{config.protocol}")
        except ModuleNotFoundError as error:
            raise MissingPackage(
                f"actor.engine triton_server needs {error.name}; pip install 'rollbus[triton-server]'"
            ) from error
        port = {"grpc": 8001, "http": 8000}[config.protocol]
        url = config.url or os.environ.get("ROLLBUS_TRITON_URL") or f"127.0.0.1:{port}"
        client = api.InferenceServerClient(url)
        until = time.monotonic() + config.start_timeout_s
        while not _ready(client):
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    f"no Triton server answered at {url} ({config.protocol}) within "
                    f"{config.start_timeout_s} s; set actor.engine_options.url"
                )
            time.sleep(0.1)
        return client, api

    def _load(self) -> None:
        sizes = {name: int(np.prod(shape)) for name, shape in self._shapes.items()}
        made = repository.configuration(
            self.model, self._trunk, sizes, self.config.max_batch, self.config.delay_us
        )
        if self.config.repository:
            repository.write(Path(self.config.repository), self._trunk, made)
            self._ask("load the model", lambda: self._client.load_model(self.model))
            return
        sent = {f"file:1/{name}": content for name, content in repository.files(self._trunk).items()}
        self._ask(
            "load the model",
            lambda: self._client.load_model(self.model, config=json.dumps(made), files=sent),
        )

    def close(self) -> None:
        """Take the model from the server."""
        if self._regions is not None:
            self._regions.close()
        self._ask("unload the model", lambda: self._client.unload_model(self.model))
        self._client.close()

    def _swapped(self, version: Version) -> None:
        super()._swapped(version)
        own = self.policy.state_dict()
        flat = np.concatenate([own[name].numpy().reshape(-1) for name in self._trunk.weights])
        self._pushed = np.array(version, np.int64)
        inputs = [self._input("weights", flat[None]), self._input("version_in", self._pushed[None])]
        outputs = [self._api.InferRequestedOutput("version")]
        self._ask("take weights", lambda: self._client.infer(self.model, inputs, outputs=outputs))
        self._probe(version)

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Mapping[str, np.ndarray]:
        arrays = {}
        for name, given in self._trunk.inputs.items():
            array = state if name == "state" else obs.get(name[4:])
            if array is None:
                # Only the critic reads it, and no value is asked for.
                array = np.zeros((num_rows, *given.shape), given.dtype)
            arrays[name] = np.ascontiguousarray(array, given.dtype).reshape(num_rows, *(given.shape or (1,)))
        if self._regions is None:
            outputs, answer = self._by_value(arrays, value)
        else:
            outputs, answer = self._by_region(self._regions, arrays, value, num_rows)
        self._check_version(answer)
        return {name: outputs[name].reshape(num_rows, *self._shapes[name]) for name in outputs}

    def _wanted(self, value: bool) -> list[str]:
        return [name for name in self._shapes if value or name != "value"]

    def _by_value(self, arrays: Mapping[str, np.ndarray], value: bool) -> tuple[dict[str, np.ndarray], Any]:
        inputs = [self._input(repository.field_of(name), array) for name, array in arrays.items()]
        wanted = self._wanted(value)
        outputs = [self._api.InferRequestedOutput(f"out_{name}") for name in wanted]
        outputs.append(self._api.InferRequestedOutput("version"))
        answer = self._ask("decide", lambda: self._client.infer(self.model, inputs, outputs=outputs))
        return {name: answer.as_numpy(f"out_{name}") for name in wanted}, answer

    def _by_region(
        self, regions: Regions, arrays: Mapping[str, np.ndarray], value: bool, num_rows: int
    ) -> tuple[dict[str, np.ndarray], Any]:
        sizes = {name: (num_rows, int(np.prod(self._shapes[name]))) for name in self._wanted(value)}
        regions.hold(arrays, sizes)
        inputs, outputs = [], []
        for name, array in arrays.items():
            inputs.append(self._empty(repository.field_of(name), array))
            inputs[-1].set_shared_memory(regions.inputs, array.nbytes, regions.offsets[name])
        for name, shape in sizes.items():
            outputs.append(self._api.InferRequestedOutput(f"out_{name}"))
            outputs[-1].set_shared_memory(regions.outputs, 4 * shape[0] * shape[1], regions.offsets[name])
        outputs.append(self._api.InferRequestedOutput("version"))
        answer = self._ask("decide", lambda: self._client.infer(self.model, inputs, outputs=outputs))
        return {name: regions.read(name, shape) for name, shape in sizes.items()}, answer

    def _check_version(self, answer: Any) -> None:
        made_by = answer.as_numpy("version")[0]
        if not np.array_equal(made_by, self._pushed):
            raise SpecError(
                f"model {self.model!r} answered with version {tuple(made_by)}, this actor pushed "
                f"{tuple(self._pushed)}: give each actor a model of its own (actor.engine_options.model)"
            )

    def _empty(self, name: str, array: np.ndarray) -> Any:
        return self._api.InferInput(name, list(array.shape), repository.DTYPES[array.dtype.name])

    def _input(self, name: str, array: np.ndarray) -> Any:
        made = self._empty(name, array)
        made.set_data_from_numpy(array)
        return made

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return call()
        except InferenceServerException as error:
            raise PeerLost(f"the Triton server could not {what} ({self.model}): {error.message()}") from error


def _unknown(policy: Any) -> str:
    """What the generated model lacks for ``policy``; "" if nothing."""
    if reason := no_trunk(policy):
        return reason
    unknown = missing([node.op for node in policy.describe(False).nodes])
    return f"the generated model has no {', '.join(unknown)}" if unknown else ""


def _ready(client: Any) -> bool:
    from tritonclient.utils import InferenceServerException

    try:
        return bool(client.is_server_ready())
    except (InferenceServerException, OSError):
        return False
