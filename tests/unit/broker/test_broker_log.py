"""The store's log and its slabs."""

import numpy as np
import pytest
from broker_kit import layout

from rollbus_broker.store.log import Contents, Log
from rollbus_broker.store.pool import SlabPool, TableFull
from rollbus_core.slabs import SlabFolder
from rollbus_wire.errors import ConfigError, SharedMemoryFull


def test_records_survive_and_a_torn_tail_is_cut_wherever_it_tears(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    records = [{"k": "x", "n": n, "b": b"\0" * n} for n in range(5)]
    for record in records:
        log.append(record)
    log.close()
    whole = path.read_bytes()
    last = 8 + len(whole) - len(whole[: whole.rindex(b"\x83\xa1k")])  # head and body of the last record
    for cut in (1, last // 2, last - 1):
        path.write_bytes(whole[:-cut])
        torn = Log(path)
        assert torn.found == Contents(records[:-1], last - cut) and torn.kept is None
        torn.append({"k": "y"})
        torn.close()
        assert Log(path).found.records == [*records[:-1], {"k": "y"}]


def test_a_flipped_bit_ends_the_log_there(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    log.append({"n": 1})
    log.append({"n": 2})
    log.close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert Log(path).found.records == [{"n": 1}]


def test_rewrite_replaces_everything(tmp_path):
    log = Log(tmp_path / "log", fsync=True)
    log.append({"n": 1})
    log.flush()
    log.append({"n": 2})
    log.rewrite([{"n": 3}])
    log.append({"n": 4})
    log.close()
    assert Log(tmp_path / "log").found.records == [{"n": 3}, {"n": 4}]


def pool(tmp_path, boot=1, slab_bytes=1 << 16):
    return SlabPool(SlabFolder(tmp_path), slab_bytes, boot)


def test_each_allocation_is_a_new_generation_in_the_cell(tmp_path):
    shape = layout()
    p = pool(tmp_path)
    cells = [p.allocate("t", shape, shape.key, 1 << 17) for _ in range(3)]
    assert len({(c.slab, c.offset) for c in cells}) == 3 and {c.generation for c in cells} == {1}
    buffer = SlabFolder(tmp_path).open(cells[1].slab, p.slabs[cells[1].slab].num_bytes)
    assert np.frombuffer(buffer, "<u8", 1, cells[1].offset)[0] == 1
    p.free(cells[1])
    seen = set()
    while cells[1][:2] not in seen:
        cell = p.allocate("t", shape, shape.key, 1 << 17)
        seen.add(cell[:2])
    assert cell.generation == 2 and len(seen) > 100  # the longest free cell goes first


def test_a_table_is_bounded_and_empty_slabs_make_room_for_another_layout(tmp_path):
    small, large = layout(8, 8), layout(64, 64)
    p = pool(tmp_path)
    cells = []
    with pytest.raises(TableFull):
        while True:
            cells.append(p.allocate("t", small, small.key, 1 << 17))
    assert p.table_bytes("t") <= 1 << 17 and len(cells) == (1 << 17) // small.cell_bytes
    for cell in cells:
        p.free(cell)
    assert p.allocate("t", large, large.key, 1 << 17).slab not in {c.slab for c in cells}
    assert len(list(tmp_path.glob("slab-*"))) == len(p.slabs)
    with pytest.raises(ConfigError, match="one chunk of"):
        p.allocate("u", large, large.key, 1 << 10)


def test_full_memory_is_a_named_error_and_leaves_no_file(tmp_path):
    p = pool(tmp_path, slab_bytes=1 << 62)
    shape = layout(1 << 20, 1 << 20)
    with pytest.raises((SharedMemoryFull, OSError)):
        p.allocate("t", shape, shape.key, 1 << 62)
    assert list(tmp_path.glob("slab-*")) == []
