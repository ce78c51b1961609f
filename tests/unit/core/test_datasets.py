"""Datasets on disk: what is written is read again, other people's too, and misfits are refused by place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_kit import SPEC, assert_same, episode, write

from rollbus_core.datasets.fit import FittedDataset
from rollbus_core.datasets.reader import Dataset
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

THEIRS = Path(__file__).with_name("lerobot_0_6_1")
DATA = "data/chunk-000/file-000.parquet"


def read(folder: Path, spec: EnvSpec = SPEC, keys: dict[str, str] | None = None) -> list:
    dataset = Dataset(folder)
    chosen = [info.index for info in dataset.episodes()]
    return [found for _, found in FittedDataset(dataset, spec, keys).episodes(chosen)]


def rewrite(folder: Path, change) -> None:
    """Change the frames of a dataset; without its manifest it is somebody else's."""
    (folder / "rollbus/manifest.json").unlink(missing_ok=True)
    table = pq.read_table(folder / DATA)
    pq.write_table(change(table), folder / DATA)


def with_column(name: str, values, kind=None):
    def change(table):
        place = table.schema.get_field_index(name)
        return table.set_column(place, name, pa.array(values, kind or table.schema.field(name).type))

    return change


# --- round trips -----------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    episodes = [episode(5, 1), episode(1, 2, ends="terminated"), episode(7, 3)]
    write(tmp_path / "d", episodes, provenance={"policy": "script"})
    dataset = Dataset(tmp_path / "d")
    dataset.verify()
    for written, found in zip(episodes, read(tmp_path / "d"), strict=True):
        assert_same(written, found)
    assert [(e.length, e.success, e.task) for e in dataset.episodes()] == [
        (5, True, "stack"), (1, False, "stack"), (7, True, "stack")
    ]  # fmt: skip
    assert dataset.spec is not None and dataset.spec.to_data() == SPEC.to_data()
    assert dataset.manifest and dataset.manifest["provenance"] == [{"policy": "script"}]


def test_the_files_are_those_of_lerobot(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(5, 1), episode(7, 3)])
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 20.0 and info["splits"] == {"train": "0:2"}
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (2, 12, 1)
    features = {name: (f["dtype"], f["shape"]) for name, f in info["features"].items()}
    assert features["observation.joints"] == ("float32", [3])
    assert features["observation.cam.left"] == ("image", [4, 5, 3])
    assert features["observation.grid"] == ("float32", [2, 3])
    assert features["observation.height"] == features["next.reward"] == ("float32", [1])
    assert features["action"] == ("float32", [2]) and features["next.success"] == ("bool", [1])
    table = pq.read_table(tmp_path / "d" / DATA)
    assert table["frame_index"].to_pylist() == [*range(5), *range(7)]
    assert table["episode_index"].to_pylist() == [0] * 5 + [1] * 7
    assert table["index"].to_pylist() == list(range(12))
    assert table["timestamp"].to_pylist() == pytest.approx([t / 20 for t in [*range(5), *range(7)]])
    assert table["next.done"].to_pylist() == [t in (4, 11) for t in range(12)]
    assert table["observation.cam.left"][0].as_py()["bytes"][:4] == b"\x89PNG"
    rows = pq.read_table(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(r["dataset_from_index"], r["dataset_to_index"], r["length"]) for r in rows] == [
        (0, 5, 5), (5, 12, 7)
    ]  # fmt: skip


def test_statistics(tmp_path: Path) -> None:
    """Rewards 0 1 2 3 4 and 0 1: mean 11/7, variance 31/7 - (11/7)^2."""
    write(tmp_path / "d", [episode(5, 1), episode(2, 2)])
    stats = json.loads((tmp_path / "d/meta/stats.json").read_text())
    reward = stats["next.reward"]
    assert reward["count"] == [7] and reward["min"] == [0.0] and reward["max"] == [4.0]
    assert reward["mean"] == pytest.approx([11 / 7])
    assert reward["std"] == pytest.approx([np.sqrt(31 / 7 - (11 / 7) ** 2)])
    pictures = np.concatenate([e.obs["cam/left"] for e in (episode(5, 1), episode(2, 2))]) / 255
    image = stats["observation.cam.left"]
    assert np.shape(image["mean"]) == (3, 1, 1)
    assert np.ravel(image["mean"]) == pytest.approx(pictures.mean((0, 2, 3)))
    assert np.ravel(image["std"]) == pytest.approx(pictures.std((0, 2, 3)))


def test_appended_episodes_are_as_if_written_at_once(tmp_path: Path) -> None:
    episodes = [episode(5, 1), episode(7, 3), episode(2, 4)]
    write(tmp_path / "one", episodes)
    write(tmp_path / "two", episodes[:1])
    write(tmp_path / "two", episodes[1:], append=True)
    one, two = Dataset(tmp_path / "one"), Dataset(tmp_path / "two")
    two.verify()
    assert one.content() == two.content() and one.episodes() == two.episodes()
    for a, b in zip(read(tmp_path / "one"), read(tmp_path / "two"), strict=True):
        assert_same(a, b)
    for name in ("next.reward", "observation.cam.left"):
        a, b = (json.loads((d.folder / "meta/stats.json").read_text())[name] for d in (one, two))
        assert np.ravel(a["std"]) == pytest.approx(np.ravel(b["std"])) and a["count"] == b["count"]
    assert write(tmp_path / "other", [episode(5, 1), episode(7, 5), episode(2, 4)]).content != one.content()


def test_a_write_that_is_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with pytest.raises(KeyboardInterrupt), DatasetWriter(folder, SPEC) as writer:
        writer.add(episode(5, 1))
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir()), "nothing of a new one is there"
    write(folder, [episode(5, 1)])
    content = Dataset(folder).content()
    cut = DatasetWriter(folder, SPEC, append=True)
    cut.add(episode(7, 3))
    cut._data.finish()  # killed between the first file's new name and the manifest
    assert (folder / "data/chunk-000/file-001.parquet").exists()
    assert len(read(folder)) == 1 and Dataset(folder).content() == content
    write(folder, [episode(2, 4)], append=True)
    lengths = [len(found) for found in read(folder)]
    assert lengths == [5, 2] and pq.read_table(folder / "data").num_rows == 7
    assert not list(folder.rglob("*unfinished*"))


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(2, 1)])
    with pytest.raises(ConfigError, match="exists"):
        DatasetWriter(tmp_path / "d", SPEC)
    other = replace(SPEC, action=ActionSpec("discrete", num=[3]))
    with pytest.raises(ConfigError, match="other features"):
        DatasetWriter(tmp_path / "d", other, append=True)
    with pytest.raises(ConfigError, match="no episode"):
        DatasetWriter(tmp_path / "e", SPEC).finish()


def test_damage_is_found(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(5, 1)])
    path = tmp_path / "d" / DATA
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="file-000.parquet is not the file that was written"):
        Dataset(tmp_path / "d").verify()


# --- other people's ----------------------------------------------------------------------------------


def test_a_dataset_that_lerobot_wrote() -> None:
    """Written by lerobot 0.6.1 (`LeRobotDataset.create`, images as PNG); ``frames.npz`` is what went in."""
    spec = EnvSpec(
        "theirs",
        {
            "state": ArraySpec("float32", (3,)),
            "image": ArraySpec("uint8", (3, 8, 6), layout="CHW"),
            "grid": ArraySpec("float32", (2, 3)),
        },
        ActionSpec("continuous", (2,), low=[-1.0] * 2, high=[1.0] * 2),
    )
    keys = {"state": "observation.state", "image": "observation.images.front"}
    episodes = read(THEIRS, spec, keys)
    frames = np.load(THEIRS / "frames.npz")
    assert [(len(e), e.task) for e in episodes] == [(5, "stack 0"), (7, "stack 1")]
    assert (np.concatenate([e.action for e in episodes]) == frames["action"]).all()
    assert (np.concatenate([e.obs["state"] for e in episodes]) == frames["observation.state"]).all()
    assert (np.concatenate([e.obs["grid"] for e in episodes]) == frames["observation.grid"]).all()
    images = np.concatenate([e.obs["image"] for e in episodes])
    assert (np.moveaxis(images, 1, -1) == frames["observation.images.front"]).all()
    assert all(e.final_obs is None and e.success is None and (e.source == 3).all() for e in episodes)
    assert len(Dataset(THEIRS).content()) == 64
    with pytest.raises(ConfigError, match="not written by Rollbus"):
        DatasetWriter(THEIRS, spec, append=True)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"wrist": ArraySpec("float32", (3,))}, "no feature 'observation.wrist' for .*joints"),
        ({"joints": ArraySpec("float32", (4,))}, r"observation.joints has shape \[3\], .* has \[4\]"),
        ({"joints": ArraySpec("int64", (3,))}, "observation.joints is float32, .* is int64"),
        ({"cam/left": ArraySpec("uint8", (60,))}, "observation.cam.left is an image"),
    ],
)  # fmt: skip
def test_a_spec_that_does_not_fit(tmp_path: Path, changed: dict, expected: str) -> None:
    write(tmp_path / "d", [episode(5, 1)])
    spec = replace(SPEC, observation=SPEC.observation | changed)
    with pytest.raises(ConfigError, match=expected):
        FittedDataset(Dataset(tmp_path / "d"), spec)


def test_all_misfits_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(5, 1)])
    spec = replace(
        SPEC, observation={"a": ArraySpec("float32", (1,))}, action=ActionSpec("discrete", num=[2])
    )
    with pytest.raises(ConfigError) as raised:
        FittedDataset(Dataset(tmp_path / "d"), spec, {"b": "x"})
    assert all(part in str(raised.value) for part in ("'observation.a'", "the action", "data.keys names 'b'"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_column("action", [[0.0, 0.0]] * 3 + [[0.0, 2.5]] + [[0.0, 0.0]]),
         r"file-000.parquet row 3: element 1 of action is 2.5; .* at most"),
        (with_column("observation.height", [0.0, 0.0, float("nan"), 0.0, 0.0]),
         "row 2: element 0 of observation.height is nan; .* finite"),
        (with_column("observation.height", [0.0, None, 0.0, 0.0, 0.0]),
         r"row 1: observation.height is missing \(null\)"),
        (with_column("observation.joints", [[0.0] * 3] * 4 + [[0.0] * 2], pa.list_(pa.float32())),
         r"row 4: observation.joints has 2 elements, info.json says \[3\]"),
        (with_column("action", ["a"] * 5, pa.string()), "action is string, info.json says float32"),
        (with_column("observation.cam.left", [{"bytes": b"no picture", "path": None}] * 5),
         "row 0: observation.cam.left is no readable image"),
        (with_column("observation.cam.left", [{"bytes": None, "path": "../../etc/passwd"}] * 5),
         "row 0: observation.cam.left holds no image bytes"),
        (lambda table: table.drop_columns(["observation.grid"]), "lacks observation.grid, which"),
    ],
)  # fmt: skip
def test_frames_that_do_not_fit_are_named_by_file_and_row(tmp_path: Path, change, expected: str) -> None:
    write(tmp_path / "d", [episode(5, 1)])
    rewrite(tmp_path / "d", change)
    with pytest.raises(ConfigError, match=expected):
        read(tmp_path / "d")


def test_an_image_larger_than_stated_is_not_decoded(tmp_path: Path) -> None:
    from rollbus_core.datasets.arrow import encode_png

    write(tmp_path / "d", [episode(1, 1)])
    large = encode_png(np.zeros((4000, 4000, 3), np.uint8))
    rewrite(tmp_path / "d", with_column("observation.cam.left", [{"bytes": large, "path": None}]))
    with pytest.raises(ConfigError, match="is 4000 x 4000, info.json says 4 x 5"):
        read(tmp_path / "d")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no LeRobot dataset of version 3"):
        Dataset(tmp_path)
    write(tmp_path / "d", [episode(1, 1)])
    path = tmp_path / "d/meta/info.json"
    whole = json.loads(path.read_text())
    for change, expected in (
        ({"codebase_version": "v2.1"}, "'v2.1'"), ({"features": []}, "'features' is list"),
        ({"fps": "x"}, "could not convert string to float: 'x'"),
        ({"total_frames": 9}, "says 1 episodes of 9 frames, meta/episodes has 1 of 1"),
    ):  # fmt: skip
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ConfigError, match=expected):
            Dataset(tmp_path / "d").episodes()
    path.write_text(json.dumps(whole))
    (tmp_path / "d" / DATA).write_bytes(b"PAR1 no parquet")
    with pytest.raises(ConfigError, match="not readable as Parquet"):
        read(tmp_path / "d")


def test_options_are_kept_per_episode(tmp_path: Path) -> None:
    """A column of meta/episodes, which LeRobot passes over; the hash of the content covers it."""
    options = {"distance": 0.4, "side": "left"}
    chosen = [replace(episode(5, 1), options=options), replace(episode(6, 2), options={})]
    write(tmp_path / "d", chosen)
    write(tmp_path / "d", [episode(2, 3)], append=True)
    assert [e.options for e in Dataset(tmp_path / "d").episodes()] == [options, {}, None]
    plain = write(tmp_path / "plain", [episode(5, 1)])
    assert [e.options for e in Dataset(tmp_path / "plain").episodes()] == [None]
    assert write(tmp_path / "one", chosen[:1]).content != plain.content
    with pytest.raises(ConfigError, match="says of no episode what its reset got.*write to another folder"):
        write(tmp_path / "plain", chosen[:1], append=True)
