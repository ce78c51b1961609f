"""Checkpoints: nothing is lost, nothing half-written is seen, and what does not fit is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_kit import Regression, line_batch
from torch import nn

from rollbus_core import checkpoints as format
from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.checkpoints import held, listed, load_policy_tensors, take_lineage
from rollbus_learner.checkpoint import Checkpoints
from rollbus_learner.trainer import Trainer
from rollbus_learner.tree import flatten, unflatten
from rollbus_wire.errors import CheckpointError
from rollbus_wire.spec import EnvSpec


def trainer(**settings):
    algorithm = Regression(**settings)
    return Trainer(algorithm, {"train": algorithm.feed}, device="cpu", seed=3, total_steps=100)


def train(one, first, last):
    return [one.apply(line_batch(seed=n), {"train": n}, 0) for n in range(first, last)]


def test_a_resumed_run_goes_on_exactly(tmp_path):
    whole, part = trainer(), trainer()
    train(whole, 0, 6)
    train(part, 0, 3)
    saved = Checkpoints(tmp_path, 3).save(part.training)
    resumed = trainer()
    with torch.no_grad():
        resumed.algorithm.policy.layer.weight.fill_(9.0)
    manifest = Checkpoints(tmp_path, 3).load("last", resumed.training)
    assert resumed.counters == part.counters and resumed.counters.env_steps == 24
    assert saved.name == "000000000024-0.3" and manifest["version"] == [0, 3]
    assert resumed.algorithm.running == part.algorithm.running
    assert resumed.algorithm.policy.num == 24
    for mine, theirs in zip(
        resumed.training.optimisers["policy"].state().values(),
        part.training.optimisers["policy"].state().values(),
    ):
        assert set(mine) == set(theirs) and all(torch.equal(mine[k], theirs[k]) for k in mine)
    rest, expected = train(resumed, 3, 6), train(trainer(), 0, 6)[3:]
    assert rest == expected
    for name, tensor in whole.published().items():
        np.testing.assert_array_equal(tensor, resumed.published()[name])


def test_the_policy_loads_without_the_learner(tmp_path):
    one = trainer()
    train(one, 0, 1)
    one.algorithm.publish = lambda roles: {
        **{k: v for k, v in roles["policy"].state_dict().items() if k != "num"},
        "average": 2 * roles["policy"].layer.weight,
    }
    path = Checkpoints(tmp_path, 3).save(one.training)
    code = (
        "import sys; from rollbus_core.checkpoints import load_policy_tensors as load\n"
        f"t, m = load({str(path)!r}); assert 'torch' not in sys.modules\n"
        "print(sorted(t), m['env_steps'], t['average'].tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    average = (2 * one.algorithm.policy.layer.weight).tolist()
    assert out.strip() == f"['average', 'layer.bias', 'layer.weight', 'mean'] 8 {average}"
    tensors, manifest = load_policy_tensors(tmp_path / "last")
    np.testing.assert_array_equal(tensors["mean"], one.algorithm.policy.mean)
    assert manifest["published"]["mean"] == "policy.mean"
    assert EnvSpec.from_data(manifest["spec"]) == one.algorithm.spec
    Checkpoints(tmp_path, 3).load("last", trainer().training)


def test_damage_is_found_and_nothing_changes(tmp_path):
    one, folder = trainer(), Checkpoints(tmp_path, 5)
    train(one, 0, 1)
    path = folder.save(one.training)
    other = trainer()
    before = {k: v.copy() for k, v in other.published().items()}
    original = (path / "optimiser.safetensors").read_bytes()
    for damaged, text in ((original[:-1] + b"\x7f", "digest differs"), (original[:-9], "digest differs")):
        (path / "optimiser.safetensors").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=text):
            folder.load("last", other.training)
    (path / "optimiser.safetensors").unlink()
    with pytest.raises(CheckpointError, match="optimiser.safetensors is missing"):
        folder.load("last", other.training)
    (path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        load_policy_tensors(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_policy_tensors(path)
    with pytest.raises(CheckpointError, match="000000000008-0.1"):
        folder.load("best", other.training)
    assert all((v == before[k]).all() for k, v in other.published().items()) and other.counters.updates == 0


def test_what_does_not_fit_is_named(tmp_path):
    Checkpoints(tmp_path, 3).save(trainer().training)
    other = trainer()
    other.algorithm.policy.layer = nn.Linear(3, 1)
    other.algorithm.policy.extra = nn.Linear(1, 1, bias=False)
    del other.algorithm.policy.num
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path, 3).load("last", other.training)
    for text in (
        "policy.extra.weight is missing", "policy.num is not in",
        "policy.layer.weight is [1, 2], the recipe's is [1, 3]",
    ):  # fmt: skip
        assert text in str(caught.value)
    steps = trainer()
    steps.training.optimisers["second"] = steps.training.optimisers.pop("policy")
    with pytest.raises(CheckpointError, match="optimisers"):
        Checkpoints(tmp_path, 3).load("last", steps.training)


def save(folder, steps, lineage=0):
    files = {"model.safetensors": lambda path: path.write_bytes(b"x" * steps) and None}
    return folder.write({"env_steps": steps, "version": [lineage, steps]}, files)


def names(folder):
    return [path.name.partition("-")[0].lstrip("0") for path in listed(folder)]


def test_retention_keeps_newest_best_last_protected_and_held(tmp_path):
    folder = CheckpointFolder(tmp_path, 2)
    paths = [save(folder, n) for n in range(1, 8)]
    assert folder.mark_best(paths[0], 5.0) and not folder.mark_best(paths[1], 5.0)
    assert not folder.mark_best(paths[1], float("nan"))
    with held(paths[2]):
        folder.prune(protected=[paths[3]])
        assert names(tmp_path) == ["1", "3", "4", "6", "7"]
    assert folder.mark_best(paths[3], 6.0) and folder.best_score() == 6.0
    folder.prune()
    assert names(tmp_path) == ["4", "6", "7"]
    assert (tmp_path / "best").resolve() == paths[3] and os.readlink(tmp_path / "last") == paths[6].name
    with pytest.raises(CheckpointError, match="cannot be opened"), held(paths[0]):
        pass
    assert not folder.mark_best(paths[0], 100.0)


def test_a_resumed_lineage_with_fewer_steps_is_newer(tmp_path):
    folder = CheckpointFolder(tmp_path, 1)
    save(folder, 10)
    newer = save(folder, 4, lineage=1)
    folder.prune()
    assert listed(tmp_path) == [newer] and (tmp_path / "last").resolve() == newer


def test_lineages_are_never_given_twice(tmp_path):
    assert [take_lineage(tmp_path) for _ in range(3)] == [0, 1, 2]
    (tmp_path / "000000000640-7.2").mkdir()  # the file is older than what it counts
    assert [take_lineage(tmp_path) for _ in range(2)] == [8, 9]
    (tmp_path / "lineage").unlink()
    assert take_lineage(tmp_path) == 8
    (tmp_path / "000000000640-7.2").rmdir()


def test_a_damaged_number_of_the_lineage_names_its_file(tmp_path):
    save(CheckpointFolder(tmp_path, 3), 10, lineage=4)
    (tmp_path / "lineage").write_bytes(b"zz\xff")
    with pytest.raises(CheckpointError, match=r"lineage is damaged: .*zz.*the checkpoints know of 4"):
        take_lineage(tmp_path)
    (tmp_path / "lineage").write_text("7\n")
    assert take_lineage(tmp_path) == 7


SAVER = """
import sys, torch
sys.path.insert(0, {here!r})
from test_learner_checkpoint import trainer, train
from rollbus_learner.checkpoint import Checkpoints
from pathlib import Path
one, folder = trainer(), Checkpoints(Path({folder!r}), 2)
for n in range(10**6):
    train(one, n, n + 1)
    folder.save(one.training)
    print(n, flush=True)
"""


def test_killed_in_the_middle_of_saves_last_always_loads(tmp_path):
    code = SAVER.format(here=str(Path(__file__).parent), folder=str(tmp_path))
    draw = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        process.stdout.readline()
        seen, deadline = 0, time.monotonic() + draw.uniform(0.1, 0.4)
        while time.monotonic() < deadline:
            one = trainer()
            try:
                manifest = Checkpoints.load(reading(tmp_path), "last", one.training)
            except CheckpointError as error:
                assert (
                    "removed before" in str(error) or "does not exist" in str(error) or "opened" in str(error)
                )
                continue
            seen += 1
            assert one.counters.updates == manifest["updates"] >= 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert seen
        for path in listed(tmp_path):
            format.read_manifest(path)
        one = trainer()
        Checkpoints(tmp_path, 2).load("last", one.training)
        assert not list(tmp_path.glob(".writing-*"))


def reading(folder):
    """The checkpoints as a reader sees them, who must not clean up."""
    reader = Checkpoints.__new__(Checkpoints)
    reader.files = CheckpointFolder(folder, 2)
    return reader


def test_half_written_is_never_listed(tmp_path):
    folder = CheckpointFolder(tmp_path, 2)

    def look(path):
        path.write_bytes(b"half")
        assert listed(tmp_path) == [] and not (tmp_path / "last").exists()

    folder.write({"env_steps": 1, "version": [0, 1]}, {"model.safetensors": look})
    assert len(listed(tmp_path)) == 1
    (tmp_path / ".writing-000000000009-0.9").mkdir()
    folder.sweep()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000000001-0.1", "last"]


def test_state_trees_come_back_with_their_types():
    state = {
        0: {"step": torch.tensor(3.0), "none": None}, "pair": (1, [2.5, "x"]), "flag": True,
        "array": np.arange(3), "number": np.float64(0.5), "empty": {},
    }  # fmt: skip
    tensors = {}
    back = unflatten(json.loads(json.dumps(flatten(state, tensors))), tensors)
    assert back[0] == {"step": torch.tensor(3.0), "none": None} and back["pair"] == (1, [2.5, "x"])
    assert back["flag"] is True and back["array"].tolist() == [0, 1, 2] and back["number"] == 0.5
    assert back["empty"] == {}
    with pytest.raises(CheckpointError, match="/bad is a object"):
        flatten({"bad": object()}, {})
