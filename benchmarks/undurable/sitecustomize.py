"""Takes durability out of every Python process that has this folder on its path, for comparison only.

The store's log is not written, and chunks have no digests. See bench_durability.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any


def _no_log(module: Any) -> None:
    def flush(self: Any) -> bool:
        self._pending = []
        return True

    module.Log.flush = flush


def _no_digest(module: Any) -> None:
    module.digest = lambda data, kind="": 0


_CHANGES = {"rollbus_broker.store.log": _no_log, "rollbus_core.weights.digests": _no_digest}


class _After(importlib.abc.MetaPathFinder):
    """Changes a module right after it was loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _After())
