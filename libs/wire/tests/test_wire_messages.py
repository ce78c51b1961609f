"""Messages as maps: unknown fields, defaults, types, and the envelope."""

from __future__ import annotations

import numpy as np
import pytest

from rollbus_wire import messages
from rollbus_wire.errors import WireError
from rollbus_wire.messages import Hello, Outcome, Reset, Step, from_data, to_data


def every_kind():
    return [cls for classes in messages.PLANES.values() for cls in classes]


def example(cls):
    """An instance with a value of the right type in each required field."""
    values = {
        "int": 3, "float": 0.5, "str": "x", "bool": True, "Array": np.arange(3),
        "Arrays": {"a": np.arange(3)},
        "Dict[str, Any]": {"a": 1}, "Dict[str, int]": {"a": 1}, "List[int]": [1, 2], "List[Any]": [{"a": 1}],
        "List[bytes]": [b"x"],
    }  # fmt: skip
    return cls(
        **{
            name: values[str(cls.__dataclass_fields__[name].type)]
            for name in messages._TABLES[cls.kind].required
        }
    )


@pytest.mark.parametrize("cls", every_kind(), ids=lambda cls: cls.__name__)
def test_every_message_comes_back_and_checks_each_field(cls):
    message = example(cls)
    body = to_data(message)
    back = from_data(cls.kind, dict(body, unknown_field=object()))
    assert type(back) is cls
    assert to_data(back).keys() == body.keys()
    for name in messages._TABLES[cls.kind].checks:
        with pytest.raises(WireError, match=name):
            from_data(cls.kind, dict(body, **{name: object()}))
    for name in messages._TABLES[cls.kind].required:
        with pytest.raises(WireError, match=name):
            from_data(cls.kind, {k: v for k, v in body.items() if k != name})


def test_missing_fields_take_their_default():
    rows = np.arange(2)
    assert from_data("step", {"rows": rows, "actions": rows}).observe is True
    assert from_data("reset", {"rows": rows, "seeds": rows}).options == []
    assert from_data("outcome", {"rows": rows}).obs is None


def test_none_is_left_out_and_allowed_only_where_optional():
    assert set(to_data(Outcome(rows=np.arange(1)))) == {"rows"}
    assert from_data("outcome", {"rows": np.arange(1), "obs": None}).obs is None
    with pytest.raises(WireError):
        from_data("step", {"rows": None, "actions": np.arange(1)})


@pytest.mark.parametrize(
    ("kind", "data"), [("nonsense", {}), (None, {}), (3, {}), ("ping", []), ("ping", None)]
)
def test_unknown_kinds_and_bodies_are_refused(kind, data):
    with pytest.raises(WireError):
        from_data(kind, data)


def test_kinds_are_snake_case_and_unique():
    assert Step.kind == "step" and Reset.plane == "peer" and messages.GetState.kind == "get_state"
    kinds = [cls.kind for cls in every_kind()]
    assert len(kinds) == len(set(kinds))


def test_the_hash_of_the_fields_is_stable():
    assert messages.fields_hash() == messages.fields_hash()
    assert len(messages.fields_hash()) == 16


def test_a_hello_of_a_newer_minor_version_is_read():
    data = {"protocol": [1, 99], "spec": {}, "num_rows": 2, "colour": "blue"}
    assert from_data("hello", data) == Hello([1, 99], {}, 2)
