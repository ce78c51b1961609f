"""Reading with a limit."""

import tracemalloc

import pytest

from rollbus_core.reading import read_at_most


@pytest.mark.parametrize(("text", "read"), [("", ""), ("äbc", "äbc"), ("äbcd", "äbcd"), ("äbcdefg", "äbcd")])
def test_one_more_than_the_limit_shows_that_there_is_more(tmp_path, text, read):
    path = tmp_path / "file"
    path.write_text(text)
    with open(path) as file:
        assert read_at_most(file, 3) == read
    with open(path, "rb") as file:
        assert read_at_most(file, 3) == text.encode()[:4]


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_short_file_takes_no_more_memory_than_it_is_long(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("short")
    with open(path, mode) as file:
        tracemalloc.start()
        assert len(read_at_most(file, 1 << 24)) == 5
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 16
