"""Cells of a slab: where columns lie, and that both sides see the same bytes."""

import numpy as np
import pytest

from rollbus_core.columns import HEADER_BYTES, Layout, chunk_columns
from rollbus_wire.errors import SpecError


def layout(extras=None, carry_bytes=0):
    columns = chunk_columns(
        {"obs": ("float32", (3,))}, ("int64", ()), num_decisions=4, num_rows=2, num_finals=5,
        num_history=2, chunk_length=1, extras=extras, carry_bytes=carry_bytes,
    )  # fmt: skip
    return Layout.build(columns, num_decisions=4, num_rows=2, num_finals=5, num_history=2)


def test_columns_do_not_overlap_and_stay_inside_the_cell():
    made = layout({"log_prob": ("float32", ())})
    ends = HEADER_BYTES
    for column in made.columns:
        assert column.offset >= ends and column.offset % 64 == 0
        ends = column.offset + column.num_bytes
    assert ends <= made.cell_bytes
    shapes = {c.name: c.shape for c in made.columns}
    assert shapes["obs/obs"] == (2 + 4 + 1, 2, 3)
    assert shapes["log_prob"] == (4, 2)
    assert "last_value" not in shapes and "carry" not in shapes


def test_values_bring_their_ends_and_state_its_carry():
    shapes = {c.name: c.shape for c in layout({"value": ("float32", ())}, carry_bytes=16).columns}
    assert shapes["last_value"] == (2,) and shapes["final_value"] == (5,)
    assert shapes["carry"] == (2, 16)


def test_a_cell_and_the_whole_slab_view_the_same_bytes():
    made = layout()
    slab = bytearray(3 * made.cell_bytes)
    for cell in range(3):
        views = made.views(slab, cell * made.cell_bytes)
        views["action"][:] = cell * 100 + np.arange(8).reshape(4, 2)
    action = made.slab_views(slab, 3)["action"]
    assert action.shape == (3, 4, 2)
    assert action[[2, 0], [3, 1], [1, 0]].tolist() == [207, 2]


def test_data_round_trip_and_key():
    made = layout()
    again = Layout.from_data(made.to_data())
    assert again == made and again.key == made.key != layout(carry_bytes=8).key


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["columns"][1].__setitem__(3, 0),
        lambda d: d["columns"][1].__setitem__(1, "object"),
        lambda d: d.__setitem__("columns", []),
        lambda d: d.pop("num_rows"),
        lambda d: d["columns"][1].__setitem__(2, "x"),
    ],
)
def test_a_layout_that_does_not_fit_itself_is_refused(damage):
    data = layout().to_data()
    damage(data)
    with pytest.raises(SpecError, match="layout"):
        Layout.from_data(data)
