"""Names of plug-ins and functions that cannot be are refused, whatever is in them."""

from __future__ import annotations

import pytest

from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, MissingPackage


@pytest.mark.parametrize("name", [".ft", "a..b", "a.", ".", "..a", "a b.c", "a\0.b", "1.5"])
def test_what_is_no_dotted_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no dotted path"):
        lookup.find("rollbus_wire", name)


@pytest.mark.parametrize("name", [":f", ".m:f", "a..b:f", "a b:f", ""])
def test_what_is_no_function_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"learner.key .* is no module:function"):
        lookup.function(name, "learner.key")


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(MissingPackage, match="needs the package 'no_such'"):
        lookup.find("rollbus_wire", "no_such.module")
    with pytest.raises(ConfigError, match="no module 'no_such'"):
        lookup.function("no_such:f", "learner.key")
    with pytest.raises(ConfigError, match="has no function 'nothing'"):
        lookup.function("math:nothing", "learner.key")
    assert lookup.function("math:sqrt", "learner.key")(9) == 3
