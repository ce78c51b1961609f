"""Every error Rollbus raises on purpose, in one tree.

A message says what was wrong, the value, where it came from and what to do. A value that came from
elsewhere is written by `short`, so that no stranger decides how much is formatted, logged and sent back.
"""

import reprlib


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 300

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[:64]) + ("..." if len(value) > 64 else "")


#: ``repr`` of any value in a few hundred characters.
short = _Short().repr


class RollbusError(Exception):
    """Root of the tree. ``code`` travels in a `Fault` message."""

    code = "error"


class ConfigError(RollbusError):
    """A setting is unknown, has the wrong type or conflicts with another."""

    code = "config"


class MissingPackage(ConfigError):
    """A plug-in needs a package that this interpreter does not have."""

    code = "missing-package"


class SpecError(RollbusError):
    """An environment or a policy does not do what its spec states."""

    code = "spec"


class WireError(RollbusError):
    """A frame, header or message breaks the protocol."""

    code = "wire"


class LimitExceeded(WireError):
    """A size, depth or count is above the limit of the codec."""

    code = "limit"


class VersionMismatch(WireError):
    """The other side speaks another major version of the protocol."""

    code = "version"


class ForeignRun(WireError):
    """The message belongs to another run."""

    code = "foreign-run"


class FaultReceived(RollbusError):
    """The other side answered with a `Fault`; carries its code and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class DeadlineExceeded(RollbusError):
    """No answer came in time."""

    code = "deadline"


class PeerLost(RollbusError):
    """The other side is gone: closed, killed or silent beyond its deadline."""

    code = "peer-lost"


class BindRefused(RollbusError):
    """An address cannot be bound: in use, or not loopback and without keys."""

    code = "bind"


class SharedMemoryFull(RollbusError):
    """The shared memory of this host has no room for what was asked."""

    code = "shm-full"


class StaleRead(RollbusError):
    """Shared memory changed while it was being read; the copy is unusable."""

    code = "stale-read"


class CheckpointError(RollbusError):
    """A checkpoint is missing, incomplete or does not fit."""

    code = "checkpoint"


class Diverged(RollbusError):
    """Training cannot go on: a loss is not finite, or actor and learner disagree."""

    code = "diverged"


class AccessDenied(RollbusError):
    """A key or token is missing, open to others, revoked, or of a role that may not do this."""

    code = "access"


class Forbidden(WireError):
    """The sender's key may not send this message here."""

    code = "forbidden"
