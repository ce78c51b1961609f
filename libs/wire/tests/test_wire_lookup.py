"""Names of plug-ins and functions that cannot be are refused, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, MissingPackage
from rollbus_wire.own_code import OwnCodeFailed, guard


@pytest.mark.parametrize("name", [".ft", "a..b", "a.", ".", "..a", "a b.c", "a\0.b", "1.5"])
def test_what_is_no_dotted_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no dotted path"):
        lookup.find("rollbus_wire", name)


@pytest.mark.parametrize("name", [":f", ".m:f", "a..b:f", "a b:f", ""])
def test_what_is_no_function_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"learner.key .* is no module:function"):
        lookup.function(name, "learner.key")


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no module 'no_such'; it is looked for where"):
        lookup.find("rollbus_wire", "no_such.module")
    with pytest.raises(ConfigError, match="no module 'no_such'"):
        lookup.function("no_such:f", "learner.key")
    with pytest.raises(ConfigError, match="has no function 'nothing'"):
        lookup.function("math:nothing", "learner.key")
    assert lookup.function("math:sqrt", "learner.key")(9) == 3


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules of somebody's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", r"SyntaxError: .*own_broken.py, line 1"),
        ("import json\nfrom json import nothing\n", r"ImportError: .*own_broken.py:2\)"),
        ("x = 1\n\ny = z\n", r"NameError: name 'z' is not defined \(.*own_broken.py:3\)"),
    ],
)
@pytest.mark.parametrize("name", ["own_folder.own_broken", "own_broken:f"])
def test_a_module_that_does_not_import_is_told_with_its_line(
    own: Path, name: str, text: str, told: str
) -> None:
    folder = own if ":" in name else own / "own_folder"
    folder.mkdir(exist_ok=True)
    (folder / "own_broken.py").write_text(text)
    with pytest.raises(OwnCodeFailed, match="%s failed in its import: %s" % (name, told)):
        lookup.find("rollbus_wire", name)


def test_a_package_that_somebodys_module_needs_is_named(own: Path) -> None:
    (own / "own_needs.py").write_text("import no_such_package\n")
    (own / "own_inside").mkdir()
    (own / "own_inside" / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(MissingPackage, match="'own_inside.needs' needs the package 'no_such_package'"):
        lookup.find("rollbus_wire", "own_inside.needs")
    with pytest.raises(ConfigError, match="no module 'no_such_package'"):
        lookup.find("rollbus_wire", "own_needs:f")


def test_a_function_is_the_make_of_its_module(own: Path) -> None:
    (own / "own_settings.py").write_text("needs = ('json',)\nclass Config: pass\ndef build(): return 7\n")
    found = lookup.find("rollbus_wire", "own_settings:build")
    assert (found.make(), found.needs, found.Config.__name__) == (7, ("json",), "Config")
    (own / "own_alone.py").write_text("def build(): return 7\n")
    with pytest.raises(ConfigError, match="needs settings: a class Config in own_alone"):
        lookup.find("rollbus_wire", "own_alone:build")


def test_errors_in_own_code_name_its_last_line(own: Path) -> None:
    (own / "own_deep.py").write_text("import json\n\n\ndef f(text):\n    return json.loads(text)\n")
    function = lookup.function("own_deep:f", "learner.key")
    with pytest.raises(
        OwnCodeFailed, match=r"own_deep:f failed in its call: JSONDecodeError: .*own_deep.py:5\)"
    ):
        with guard("own_deep:f", "its call"):
            function("{")
    (own / "own_called.py").write_text(
        "def f():\n    pass\n\n\nclass F:\n    def __init__(self):\n        pass\n"
    )
    for attribute, line in (("f", 1), ("F", 6)):
        function = lookup.function("own_called:" + attribute, "learner.key")
        failed = pytest.raises(OwnCodeFailed, match=r"TypeError: .*own_called.py:%d\)" % line)
        with failed, guard("own_called:" + attribute, "its call"):
            function(1)
    for name, error in (
        ("ppo", ValueError("ours")),
        ("own_deep:f", OSError("a disk")),
        ("a.b", ConfigError("x")),
    ):
        with pytest.raises(type(error), match=str(error)) as caught, guard(name, "a call"):
            raise error
        assert caught.value is error
