"""Specs and shared memory proofs."""

from __future__ import annotations

import os

import pytest

from rollbus_wire import codec, shm
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec


def full_spec():
    return EnvSpec(
        name="arm",
        observation={
            "joints": ArraySpec("float32", (2,), -1.0, 1.0, names=["a", "b"], unit="rad"),
            "image": ArraySpec("uint8", (4, 4, 3), 0, 255, layout="HWC", channels="BGR"),
        },
        action=ActionSpec("continuous", (2,), low=[-1, -2], high=[1, 2], names=["a", "b"]),
        groups={"policy": ["joints"]},
        time_limit=7,
        optimal_return=1.5,
    )


def test_a_spec_travels_and_unknown_fields_are_ignored():
    data = codec.unpack(codec.pack(full_spec().to_data()))
    data["newer"] = data["action"]["newer"] = data["observation"]["image"]["newer"] = 1
    assert EnvSpec.from_data(data) == full_spec()


def test_groups_fall_back_to_all_observations():
    spec = full_spec()
    assert spec.group("policy") == ["joints"]
    assert spec.group("privileged") == ["image", "joints"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArraySpec("float128", ()),
        lambda: ArraySpec("float32", (2,), names=["one"]),
        lambda: ActionSpec("fuzzy"),
        lambda: ActionSpec("discrete"),
        lambda: ActionSpec("discrete", num=[0]),
        lambda: ActionSpec("multi_discrete", (2,), num=[3]),
        lambda: ActionSpec("continuous", (2,), low=[0], high=[1, 1]),
        lambda: ActionSpec("continuous", (1,), low=[1], high=[1]),
        lambda: EnvSpec("x", {}, ActionSpec("discrete", num=[2])),
        lambda: EnvSpec(
            "x", {"a": ArraySpec("bool", ())}, ActionSpec("discrete", num=[2]), groups={"policy": ["b"]}
        ),
        lambda: EnvSpec("x", {"a": ArraySpec("bool", ())}, ActionSpec("discrete", num=[2]), seeding="maybe"),
        lambda: EnvSpec.from_data({}),
        lambda: EnvSpec.from_data({"name": "x", "observation": 3, "action": {}}),
    ],
)
def test_specs_that_make_no_sense_are_refused(make):
    with pytest.raises(SpecError):
        make()


def test_a_nonce_proves_that_both_see_one_folder(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    nonce = shm.write_nonce(here)
    name, _, content = nonce.partition("=")
    assert (here / name).stat().st_mode & 0o777 == 0o600
    assert shm.same_memory(nonce, here)
    assert not shm.same_memory(nonce, there)
    assert not shm.same_memory("%s=%s" % (name, "0" * 32), here)
    shm.remove_nonce(nonce, here)
    shm.remove_nonce(nonce, here)
    assert not shm.same_memory(nonce, here)


def test_a_nonce_never_leaves_its_folder(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    nonce = shm.write_nonce(tmp_path)
    name, _, content = nonce.partition("=")
    assert not shm.same_memory("../%s" % nonce, inside)
    assert not shm.same_memory("nonce-/../../%s" % nonce, inside)
    os.symlink(str(tmp_path / name), str(inside / name))
    assert not shm.same_memory(nonce, inside)
    for text in ("", "=", "nonce-", "nonce-x", "x=y", "nonce-x=" + content):
        assert not shm.same_memory(text, tmp_path)
