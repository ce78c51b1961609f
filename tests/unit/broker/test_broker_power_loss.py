"""What is told to be on disk is: the order of the calls that put it there.

A loss of power cannot be had in a test; what can is each fsync and msync, which content it found, which
renames came before and after it, and that nothing is answered before the last of them.
"""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from broker_kit import QUEUE, layout, open_table, ticket_request, write_chunk
from test_broker_store import Rig

from rollbus_broker.registry.boot import BootFile
from rollbus_broker.store.log import Log, read_records
from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.checkpoints import write_atomic
from rollbus_core.datasets.files import replace
from rollbus_core.key_folder import KeyFolder


class Calls(list):
    """("sync", path, its content), ("msync", "", range), ("rename", new path, ""), ("answer", kind, "")."""

    def kinds(self):
        return [kind for kind, _, _ in self]

    def sync(self, descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.append(("sync", path, b"" if path.is_dir() else path.read_bytes()))


@pytest.fixture
def calls(monkeypatch):
    """Everything that makes durable, in order; done for real as well."""
    seen = Calls()
    fsync, fdatasync, rename, move = os.fsync, os.fdatasync, os.rename, os.replace

    def recorded(real):
        return lambda descriptor: (real(descriptor), seen.sync(descriptor))[0]

    def renamed(real):
        def call(source, target, **keywords):
            real(source, target, **keywords)
            seen.append(("rename", Path(target), ""))

        return call

    class Mapped(mmap.mmap):
        def flush(self, *span):
            seen.append(("msync", "", span))
            return super().flush(*span)

    monkeypatch.setattr(os, "fsync", recorded(fsync))
    monkeypatch.setattr(os, "fdatasync", recorded(fdatasync))
    monkeypatch.setattr(os, "rename", renamed(rename))
    monkeypatch.setattr(os, "replace", renamed(move))
    monkeypatch.setattr(mmap, "mmap", Mapped)
    return seen


def test_a_chunk_is_acknowledged_after_its_slab_and_its_record_are_on_disk(tmp_path, calls):
    rig = Rig(tmp_path, fsync=True)
    rig.ask(open_table(QUEUE))
    calls.clear()
    ticket = rig.ask(ticket_request())
    log = tmp_path / "log"
    assert [call[:2] for call in calls] == [("sync", tmp_path), ("sync", log)], "the slab's name, its record"
    commit = write_chunk(rig.slabs, ticket, layout(), 3.0, (1, 0))
    real = rig.store._replies.answer
    rig.store._replies.answer = lambda envelope, message: (
        calls.append(("answer", message.kind, "")),
        real(envelope, message),
    )
    calls.clear()
    assert rig.ask(commit).sequence == 1
    assert calls.kinds() == ["msync", "sync", "answer"], "slab, log, and only then the answer"
    start, size = calls[0][2]
    assert start <= ticket.offset and start + size >= ticket.offset + layout().cell_bytes
    assert calls[1][1] == log and read_records(log)[-1]["k"] == "commit"
    assert calls[1][2] == log.read_bytes(), "the record was written before the fsync"


def test_a_rewritten_log_is_on_disk_before_and_its_name_after_the_rename(tmp_path, calls):
    log = Log(tmp_path / "log", fsync=True)
    calls.clear()
    assert log.rewrite([{"n": 1}])
    partial = tmp_path / "log.partial"
    assert [call[:2] for call in calls] == [
        ("sync", partial), ("rename", tmp_path / "log"), ("sync", tmp_path),
    ]  # fmt: skip
    assert calls[0][2] == (tmp_path / "log").read_bytes() != b""


def check_replaced(calls, target, content):
    """``content`` was on disk under another name, then renamed, then the folder."""
    (at,) = [place for place, call in enumerate(calls) if call[:2] == ("rename", target)]
    assert any(
        kind == "sync" and path.parent == target.parent and data == content for kind, path, data in calls[:at]
    )
    assert ("sync", target.parent, b"") in calls[at:]


def test_the_boot_number_is_on_disk(tmp_path, calls):
    BootFile(tmp_path / "boot.json")
    check_replaced(calls, tmp_path / "boot.json", (tmp_path / "boot.json").read_bytes())


def test_small_files_of_the_learner_are_on_disk(tmp_path, calls):
    write_atomic(tmp_path / "lineage", b"7")
    check_replaced(calls, tmp_path / "lineage", b"7")


def test_files_of_datasets_are_on_disk(tmp_path, calls):
    replace(tmp_path / "info.json", b"{}")
    check_replaced(calls, tmp_path / "info.json", b"{}")


def test_keys_are_on_disk(tmp_path, calls):
    path = KeyFolder(tmp_path / "keys").token()
    kinds = [(kind, data) for kind, _, data in calls if kind == "rename" or data == path.read_bytes()]
    assert kinds[0] == ("sync", path.read_bytes()) and kinds[1][0] == "rename"


def test_a_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, calls):
    files = {"model": lambda path: path.write_bytes(b"weights")}
    target = CheckpointFolder(tmp_path, 2).write({"env_steps": 1, "version": [1, 2]}, files)
    (at,) = [place for place, call in enumerate(calls) if call[:2] == ("rename", target)]
    before = {path.name: data for kind, path, data in calls[:at] if kind == "sync"}
    assert (
        before["model"] == b"weights" and before["manifest.json"] == (target / "manifest.json").read_bytes()
    )
    assert f".writing-{target.name}" in before and ("sync", tmp_path, b"") in calls[at:]


def test_a_cell_whose_bytes_were_not_on_disk_is_lost_and_counted(tmp_path):
    """What power loss does to a page that was never written: the record is there, the bytes are not."""
    rig = Rig(tmp_path, fsync=True)
    rig.ask(open_table(QUEUE | {"max_lag": 1}))
    rig.insert(1.0)
    rig.insert(2.0)
    first = next(iter(rig.store.ledger.tables["main"].chunks()))
    slab = tmp_path / f"slab-{first.cell.slab}"
    data = bytearray(slab.read_bytes())
    data[first.cell.offset + layout().cell_bytes - 8] ^= 0xFF
    slab.write_bytes(bytes(data))
    rig.restart()
    table = rig.store.ledger.tables["main"]
    assert [chunk.sequence for chunk in table.chunks()] == [2] and table.dropped == {"memory": 1}


FULL_DISK = """
import errno, os, resource, signal, sys
from pathlib import Path
from rollbus_broker.store.log import Log, read_records
from rollbus_core import lines

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lines.NO_ROOM = (*lines.NO_ROOM, errno.EFBIG)
path = Path(sys.argv[1])
log = Log(path)
log.append({"n": 0})
assert log.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (log.num_bytes + 100, resource.RLIM_INFINITY))
whole = path.read_bytes()
log.append({"n": 1, "b": b"x" * 500})
assert not log.flush() and not log.flush(), "the disk is full"
assert path.read_bytes() == whole, "what was half written is cut"
log.append({"n": 2})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert log.flush()
log.close()
assert [record["n"] for record in read_records(path)] == [0, 1, 2]
"""


def test_a_write_that_the_disk_had_room_for_half_of_leaves_no_half(tmp_path):
    """The kernel's own limit for files: part of the write succeeds, the rest fails."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "log")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
