"""Who is a member, who is lost, and what a restart keeps."""

import json

import pytest

from rollbus_broker.registry.boot import BootFile
from rollbus_broker.registry.membership import Membership
from rollbus_wire.errors import CheckpointError
from rollbus_wire.messages import Heartbeat, Register


def register(producer="p1", name="actor-0", role="actor", pid=10):
    return Register(role, name, producer, pid, "host", [1, 0])


def test_silence_counts_after_the_stage_deadline():
    members = Membership(3.0, {})
    members.register(register(), b"a", 0.0)
    members.heartbeat("p1", Heartbeat("compile", 0.0, 20.0), b"a", 1.0)
    assert members.expire(23.9) == []
    (lost,) = members.expire(24.1)
    assert lost.state == "lost" and "compile" in lost.failure
    assert members.heartbeat("p1", Heartbeat("act", 0.0, 2.0), b"a", 25.0) is None


def test_a_member_that_only_registered_may_load():
    members = Membership(3.0, {})
    members.register(register(), b"a", 0.0)
    assert members.expire(62.0) == []
    assert len(members.expire(63.1)) == 1


def test_incarnations_count_processes_not_registrations():
    names = {}
    members = Membership(3.0, names)
    entry, replaced = members.register(register("p1"), b"a", 0.0)
    assert (entry.incarnation, replaced) == (0, None)
    entry, replaced = members.register(register("p1"), b"a", 1.0)
    assert (entry.incarnation, replaced) == (0, None)
    entry, replaced = members.register(register("p2", pid=11), b"b", 2.0)
    assert entry.incarnation == 1 and replaced.producer == "p1"
    assert members.register(register("p1"), b"a", 3.0) is None  # superseded while p2 lives
    members.gone("actor", "actor-0", 11, "killed")
    entry, _ = members.register(register("p1"), b"a", 4.0)
    assert entry.incarnation == 2


def test_gone_names_one_process():
    members = Membership(3.0, {})
    members.register(register(pid=10), b"a", 0.0)
    assert members.gone("actor", "actor-0", 9, "old one") is None
    entry = members.gone("actor", "actor-0", 10, "signal SIGKILL")
    assert entry.state == "failed" and entry.failure == "signal SIGKILL"


def test_a_paused_registry_grants_one_lease():
    members = Membership(3.0, {})
    members.register(register(), b"a", 0.0)
    members.heartbeat("p1", Heartbeat("act", 0.0, 0.0), b"a", 0.0)
    members.grant_lease(100.0)
    assert members.expire(102.9) == []
    assert len(members.expire(103.1)) == 1


def test_states_follow_the_service():
    members = Membership(3.0, {})
    members.register(register(), b"a", 0.0)
    for said, state in (("start", "starting"), ("ready", "ready"), ("run", "ready"), ("drain", "draining")):
        assert members.heartbeat("p1", Heartbeat("x", 0.0, 2.0, said), b"a", 1.0).state == state


def test_boot_number_grows_and_names_are_kept(tmp_path):
    first = BootFile(tmp_path / "boot.json")
    assert first.boot == 1
    first.names["hub/hub-0"] = (4, "p")
    first.save()
    second = BootFile(tmp_path / "boot.json")
    assert second.boot == 2 and second.names == {"hub/hub-0": (4, "p")}
    assert json.loads((tmp_path / "boot.json").read_text())["boot"] == 2  # on disk before use


def test_unreadable_boot_file_is_refused(tmp_path):
    (tmp_path / "boot.json").write_text("{")
    with pytest.raises(CheckpointError, match="boot.json"):
        BootFile(tmp_path / "boot.json")
