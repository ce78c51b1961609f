"""What an op is, and which flavour of it runs.

An op is a folder of this package: ``__init__.py`` has its public function, which checks shapes and
calls an `Op`; ``reference.py`` the plain torch; ``triton.py`` and ``numba.py``, where there are any, the
fast twins. In each, the function named as the op takes the same arguments.

The reference is called as it is, so autograd and torch.compile see its parts. The others are
the torch.library op ``rollbus::<name>``, which may return more than the reference: what backward needs.
float64 is for checking and always gets the reference.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from rollbus_accel.backends.base import FLAVOURS, Backend, backends, missing_package
from rollbus_wire.errors import ConfigError

PACKAGE = "rollbus_accel.kernels"
AUTO = "auto"

#: Not torch.library.custom_op: its first call imports the compiler, which costs seconds at start.
_LIBRARY = torch.library.Library("rollbus", "FRAGMENT")
_asked = os.environ.get("ROLLBUS_KERNELS", AUTO)
_wanted: ContextVar[str] = ContextVar("kernel flavour", default=_asked)


@dataclass(frozen=True)
class Variant:
    """One way to compile a Triton kernel ahead of time; ``signature`` as triton's ASTSource takes it."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2


class Op:
    """``rollbus::<name>``: the functions ``<name>`` of a folder's flavour files behind one call.

    ``schema`` is torch's (``"(Tensor x, float eps) -> (Tensor, Tensor)"``); the first argument is a
    tensor, and its device and dtype decide. ``fake`` gives empty outputs of the right shapes.
    ``backward(ctx, *grads)`` and ``setup_context(ctx, inputs, output)`` are `register_autograd`'s; without
    them the results of every flavour are constants.
    """

    def __init__(
        self,
        name: str,
        *,
        schema: str,
        fake: Callable[..., Any],
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., Any] | None = None,
        folder: str = "",
    ) -> None:
        self.name, self.folder = name, folder or name
        self.has_gradient = backward is not None
        # An op that others need for their gradients has no reference: autograd is.
        self._reference: Any = getattr(
            importlib.import_module(f"{PACKAGE}.{self.folder}.reference"), name, None
        )
        self._eager = _eager_function(self._run, backward, setup_context)
        full = f"rollbus::{name}"
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(full, fake, lib=_LIBRARY)
        if backward is not None:
            torch.library.register_autograd(full, backward, setup_context=setup_context, lib=_LIBRARY)
        self.library_op = getattr(torch.ops.rollbus, name).default

    def __call__(self, *args: Any) -> Any:
        """The answer of the chosen flavour."""
        flavour = _constant_choice(self.folder, args[0].device.type, args[0].dtype == torch.float64)
        if flavour == "reference":
            run = self._reference
        else:
            run = self.library_op if torch.compiler.is_compiling() else self._eager
        if self.has_gradient:
            return run(*args)
        with torch.no_grad():
            return run(*args)

    def _run(self, *args: Any) -> Any:
        flavour = choose(self.folder, args[0].device.type)
        return implementation(self.folder, flavour, self.name)(*args)


def _eager_function(
    run: Callable[..., Any], backward: Callable[..., Any] | None, setup: Callable[..., Any] | None
) -> Callable[..., Any]:
    """What the library op does, for code that is not compiled: its dispatcher takes 0.1 ms per call."""
    if backward is None or setup is None:
        return run
    save = setup

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output = run(*args)
            save(ctx, args, output)
            return output

    Eager.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Eager.apply


@contextlib.contextmanager
def use(flavour: str) -> Iterator[None]:
    """Ops called in the block run ``flavour``, or their reference where they do not have it.

    ``ROLLBUS_KERNELS`` says the same for a whole process. "auto" is the fastest that runs.
    """
    token = _wanted.set(flavour)
    try:
        yield
    finally:
        _wanted.reset(token)


def choose(op: str, device: str, exact: bool = False) -> str:
    """The flavour of the folder ``op`` that runs on torch's device type ``device``.

    Raises `ConfigError` if the one asked for exists and cannot run here.
    """
    return "reference" if exact else _choose(op, device, _wanted.get())


def explain(device: str = "cpu") -> list[tuple[str, str, str]]:
    """(op, flavour, reason) of every op and flavour; the reason is "" where it would run."""
    return [
        (op, flavour, declines(op, flavour, device, _wanted.get())) for op in ops() for flavour in FLAVOURS
    ]


def ops() -> list[str]:
    """The ops there are: the folders of this package."""
    package = importlib.import_module(PACKAGE)
    return sorted(info.name for info in pkgutil.iter_modules(package.__path__) if info.ispkg)


def declines(op: str, flavour: str, device: str, wanted: str = AUTO) -> str:
    """Why ``flavour`` of ``op`` does not run on ``device``; "" if it does."""
    if flavour not in flavour_files(op):
        return f"{op} has no {flavour}.py"
    if flavour == "reference":
        return ""
    if wanted not in (AUTO, flavour):
        return f"{wanted!r} is asked for, by ROLLBUS_KERNELS or use()"
    if flavour == "triton" and device == "cpu" and interpreted():
        return missing_package("triton")
    return _backend(device).declines(flavour)


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on the CPU: slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def flavour_files(op: str) -> tuple[str, ...]:
    """The flavours that the folder ``op`` has, fastest first."""
    return tuple(name for name in FLAVOURS if importlib.util.find_spec(f"{PACKAGE}.{op}.{name}"))


@functools.cache
def implementation(op: str, flavour: str, name: str) -> Callable[..., Any]:
    """The function ``name`` of one flavour file; imports it."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"{PACKAGE}.{op}.{flavour}"), name)
    return found


@functools.cache
def _choose(op: str, device: str, wanted: str) -> str:
    if wanted not in (AUTO, *FLAVOURS):
        raise ConfigError(
            f"kernel flavour {wanted!r}, from ROLLBUS_KERNELS or use(), is not one of: "
            f"{AUTO}, {', '.join(FLAVOURS)}"
        )
    reasons = {flavour: declines(op, flavour, device, wanted) for flavour in FLAVOURS}
    if wanted in flavour_files(op) and reasons[wanted]:
        raise ConfigError(
            f"kernel flavour {wanted!r} of {op} cannot run on {device}: {reasons[wanted]}; use 'auto'"
        )
    return next(flavour for flavour in FLAVOURS if not reasons[flavour])


def _constant_choice(op: str, device: str, exact: bool) -> str:
    return choose(op, device, exact)


# What torch.compiler.assume_constant_result does, without importing the compiler.
_constant_choice._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _backend(device: str) -> Backend:
    """The backend of torch's device type ``device``."""
    for backend in backends():
        if backend.device == device and not backend.missing_build(torch):
            return backend
    raise ConfigError(f"no accelerator backend has the device {device!r}; add one, or use the CPU")
