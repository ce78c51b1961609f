"""Any bytes as the manifest of a checkpoint, and any bytes as its tensors: a `CheckpointError`, or data."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from fuzz_services import folder
from harness import Bytes
from safetensors.numpy import save

from rollbus_core.checkpoints import MANIFEST, MODEL, file_digest, load_policy_tensors, read_manifest
from rollbus_wire.errors import CheckpointError

_folder = folder()
_model = save({"policy.a": np.ones(3, np.float32)})
(_folder / MODEL).write_bytes(_model)
GOOD = {
    "format": 1, "files": {MODEL: file_digest(_folder / MODEL)}, "published": {"a": "policy.a"},
    "version": [0, 1], "env_steps": 1,
}  # fmt: skip


def fuzz(data: bytes) -> None:
    source = Bytes(data)
    how = source.number(3)
    if how == 0:
        (_folder / MANIFEST).write_bytes(source.rest())
    elif how == 1:
        manifest = {**GOOD, ("format", "files", "published")[source.number(3)]: _plain(source.value())}
        (_folder / MANIFEST).write_text(json.dumps(manifest))
    else:
        model = bytearray(_model)
        for _ in range(1 + source.number(4)):
            model[source.number(256) % len(model)] = source.take(1)[0]
        _damage(bytes(model))
        return
    for read in (read_manifest, load_policy_tensors):
        try:
            read(_folder)
        except CheckpointError as error:
            assert str(error)


def _damage(model: bytes) -> None:
    """The tensors are of a stranger, and the digests fit."""
    (_folder / MODEL).write_bytes(model)
    files = {MODEL: file_digest(_folder / MODEL)}
    (_folder / MANIFEST).write_text(json.dumps({**GOOD, "files": files}))
    try:
        load_policy_tensors(_folder)
    except CheckpointError as error:
        assert str(error)
    finally:
        (_folder / MODEL).write_bytes(_model)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def seeds() -> Iterable[bytes]:
    yield b"\0" + json.dumps(GOOD).encode()
    yield b"\0" + b"[" * 3000
    yield b'\0{"format": 1, "files": {"../../etc/passwd": "0"}}'
    yield bytes([1, 1, 10, 0])
    yield bytes([1, 2, 10, 0])
    yield bytes([2, 0, 9, 9])
