"""What the registry must know after a restart: its boot number and who bore which name."""

from __future__ import annotations

import json
from pathlib import Path

from rollbus_core.checkpoints import write_atomic
from rollbus_wire.errors import CheckpointError


class BootFile:
    """``boot.json``: {"boot": int, "names": {"role/name": [incarnation, producer]}}.

    The boot number has grown and is on disk when the constructor returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot, self.names = _load(path)
        self.boot += 1
        #: There was no room for the last change: who is new must not be answered yet.
        self.unsaved = False
        self.save()

    def save(self) -> None:
        """Write and fsync under another name, then rename: a crash leaves the old file or the new."""
        data = {"boot": self.boot, "names": {key: list(value) for key, value in self.names.items()}}
        write_atomic(self.path, json.dumps(data).encode())


def _load(path: Path) -> tuple[int, dict[str, tuple[int, str]]]:
    try:
        data = json.loads(path.read_bytes())
        return int(data["boot"]), {str(k): (int(v[0]), str(v[1])) for k, v in data["names"].items()}
    except FileNotFoundError:
        return 0, {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not readable: {error!r}; without it an old assignment could pass for a new one. "
            "Restore it, or start the run in another folder with --run-dir"
        ) from None
