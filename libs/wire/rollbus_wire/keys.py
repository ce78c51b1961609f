"""Keys: who a process is, whom it expects to dial, and who may dial it. docs/security.md.

A key is a ZeroMQ certificate (the text format of CZMQ and `zmq.auth`): ``NAME.key`` holds the public half,
``NAME.key_secret`` (mode 0600) both, and the public key of the service that NAME dials. The ``*.key``
files of a folder are its allow-list; those in its folder ``revoked`` are refused by name.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

import zmq

from .errors import AccessDenied

PUBLIC, SECRET, REVOKED = ".key", ".key_secret", "revoked"
#: The folder of keys; where it is not set, nothing beyond loopback is bound or dialled.
VARIABLE = "ROLLBUS_KEYS"
#: A certificate is a few hundred bytes.
MAX_BYTES = 4096
_FIELD = re.compile(r'^\s*([a-z-]+)\s*=\s*"([^"]*)"\s*$')
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LENGTH = 40
_Z85 = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")


class Key(NamedTuple):
    """One identity. Keys are 40 bytes of Z85; ``secret`` and ``server_key`` are empty where not known."""

    name: str
    role: str
    public: bytes
    secret: bytes = b""
    #: Public key of the service that this identity dials, and that service's name.
    server_key: bytes = b""
    server: str = ""

    def to_text(self) -> str:
        """The certificate, with the secret half if it is known."""
        meta = {"name": self.name, "role": self.role, "server": self.server}
        meta["server-key"] = self.server_key.decode()
        curve = {"public-key": self.public.decode(), "secret-key": self.secret.decode()}
        head = "SECRET, for one machine only" if self.secret else "public"
        lines = ["#   Rollbus key %s, %s. docs/security.md" % (self.name, head)]
        for section, fields in (("metadata", meta), ("curve", curve)):
            lines.append(section)
            lines += ['    %s = "%s"' % item for item in fields.items() if item[1]]
        return "\n".join(lines) + "\n"


def check_name(name: str) -> str:
    """``name`` if it can name a file and a key."""
    if not _NAME.fullmatch(name):
        raise AccessDenied(
            "key name %r: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
            % name
        )
    return name


def require_curve() -> None:
    """Raise if this libzmq was built without encryption."""
    if not zmq.has("curve"):
        raise AccessDenied(
            "libzmq %s of this interpreter was built without CURVE, so keys cannot be used; install pyzmq "
            "from its wheel (pip install --force-reinstall --only-binary=:all: pyzmq)" % zmq.zmq_version()
        )


def load(path: Union[str, Path]) -> Key:
    """The key in a secret file. Raises `AccessDenied` with what to do."""
    require_curve()
    path = Path(path)
    key = _parse(path, _read(path, secret=True))
    if len(key.secret) != _LENGTH:
        raise AccessDenied("%s holds no secret key; give the file NAME%s" % (path, SECRET))
    return key


def own_key(folder: Union[str, Path], role: str, index: int = 0) -> Key:
    """The key with which a service of ``role`` works: ROLE-INDEX, ROLE, or the only secret of that role."""
    require_curve()
    folder = Path(folder)
    found = {}
    for path in sorted(folder.glob("*" + SECRET)):
        key = load(path)
        if key.role == role:
            found[key.name] = key
    for name in ("%s-%d" % (role, index), role):
        if name in found:
            return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    what = "several: %s; name one %s" % (", ".join(found), role) if found else "none"
    raise AccessDenied(
        "a service of role %s needs a secret key of that role, and %s (%s) has %s; make one with "
        "`rollbus keys create %s --role %s` where the keys are made and copy %s%s here"
        % (role, folder, VARIABLE, what, role, role, role, SECRET)
    )


class Allowed(NamedTuple):
    """An entry of the allow-list."""

    name: str
    role: str
    revoked: bool


class AllowList:
    """The public keys of ``folder``. `reread` follows changes; `get` never touches the disk."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self.folder = Path(folder)
        self._stamp: Tuple[int, ...] = ()
        self._entries: Dict[str, Allowed] = {}
        #: Files that could not be read, as text.
        self.problems: List[str] = []
        self.reread()

    def get(self, public: Optional[str]) -> Optional[Allowed]:
        """The entry of a public key in Z85, also a revoked one; None: it was never listed."""
        return self._entries.get(public) if public else None

    def entries(self) -> Dict[str, Allowed]:
        """All entries by public key."""
        return dict(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def reread(self) -> bool:
        """Read the list again if it changed; whether it did. Other threads see the old one or the new one."""
        stamp = tuple(_changed_at(each) for each in (self.folder, self.folder / REVOKED))
        if stamp == self._stamp:
            return False
        problems: List[str] = []
        entries: Dict[str, Allowed] = {}
        for folder, revoked in ((self.folder, False), (self.folder / REVOKED, True)):
            for path in sorted(folder.glob("*" + PUBLIC)):
                try:
                    key = _parse(path, _read(path, secret=False))
                except AccessDenied as error:
                    problems.append(str(error))
                    continue
                entries[key.public.decode()] = Allowed(key.name, key.role, revoked)
        self._entries, self.problems, self._stamp = entries, problems, stamp
        return True


def _changed_at(folder: Path) -> int:
    """Changes whenever a file of ``folder`` is made, replaced, renamed or edited in place."""
    try:
        files = [entry.stat().st_mtime_ns for entry in os.scandir(str(folder)) if entry.name.endswith(PUBLIC)]
        return hash((os.stat(str(folder)).st_mtime_ns, tuple(sorted(files))))
    except OSError:
        return 0


def _read(path: Path, *, secret: bool) -> str:
    """The text of ``path``; a secret that others could have read is no secret."""
    try:
        with open(str(path), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AccessDenied("key file %s cannot be read: %s" % (path, error.strerror)) from None
    if len(data) > MAX_BYTES or not stat.S_ISREG(status.st_mode):
        raise AccessDenied("%s is no key file: more than %d bytes, or no plain file" % (path, MAX_BYTES))
    if secret:
        check_private(path, status)
    return data.decode("utf-8", "replace")


def check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a secret that others may read. One group may read root's file, as mounted secrets are."""
    others = status.st_mode & 0o077
    if status.st_uid == 0 and os.geteuid() != 0:
        others &= 0o037
    if others:
        raise AccessDenied(
            "%s has mode %04o: others can read this secret; chmod 600 %s (and make a new one if others have "
            "been on this machine)" % (path, stat.S_IMODE(status.st_mode), path)
        )


def _parse(path: Path, text: str) -> Key:
    fields = {}
    for match in filter(None, map(_FIELD.match, text.splitlines())):
        fields[match.group(1)] = match.group(2)
    public = fields.get("public-key", "")
    keys = [public, fields.get("secret-key", ""), fields.get("server-key", "")]
    if not public or any(key and not _Z85.fullmatch(key) for key in keys) or "role" not in fields:
        raise AccessDenied(
            "%s is no key of `rollbus keys`: it needs role and public-key; keys are %d characters of Z85"
            % (path, _LENGTH)
        )
    name = fields.get("name") or path.name.rpartition(".")[0]
    public_, secret, server_key = (key.encode() for key in keys)
    return Key(check_name(name), fields["role"], public_, secret, server_key, fields.get("server", ""))
