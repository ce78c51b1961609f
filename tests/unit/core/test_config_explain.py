"""Explanations of settings and the generated reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbus_core.config import docs, plugins
from rollbus_core.config.explain import explain
from rollbus_core.config.load import load
from rollbus_core.config.nearest import nearest
from rollbus_core.config.recipe import SECTIONS
from rollbus_core.config.schema import recipe_schema
from rollbus_wire.errors import ConfigError

ROOT = Path(__file__).parents[3]
PLUGINS = """\
env: {name: config_fakes.reach, num_envs: 8}
policy: {name: config_fakes.silent}
algorithm: {name: config_fakes.learn}
"""


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(PLUGINS)
    return load("r.yaml", ["run.seed=3"])


def test_one_key(resolved):
    assert explain("env.num_envs", resolved) == [
        {
            "key": "env.num_envs",
            "meaning": "Rows over all hubs.",
            "type": "an integer >= 1",
            "unit": "rows",
            "default": 16,
            "value": 8,
            "origin": "r.yaml:1",
        }
    ]
    assert explain("run.seed", resolved)[0]["origin"] == "command line"


def test_key_of_a_dataclass_plugin_keeps_meaning_and_unit(resolved):
    (row,) = explain("env.speed", resolved)
    assert (row["meaning"], row["unit"], row["default"]) == ("How fast it moves.", "m/s", 1.0)
    assert explain("env.label", resolved)[0]["type"] == "a string or null"
    assert explain("algorithm.milestones", resolved)[0]["type"] == "a list (each a number)"


def test_section_and_everything(resolved):
    keys = [row["key"] for row in explain("policy", resolved)]
    assert keys == ["policy.name", "policy.condition", "policy.width", "policy.tag"]
    every = [row["key"] for row in explain("", resolved)]
    assert every == list(resolved.origins)


def test_without_a_recipe():
    (row,) = explain("broker.heartbeat_s")
    assert (row["default"], row["unit"], row["type"]) == (0.5, "s", "a number > 0")
    assert "value" not in row
    assert "sac" in [row["plugin"] for row in explain("algorithm.tau")]


@pytest.mark.parametrize(
    ("key", "near"), [("run.sed", "run.seed"), ("lr", "learning_rate"), ("brokr", "broker")]
)
def test_unknown_key_names_the_nearest(key, near):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'; sections are .*; did you mean '.*{near}'.$"):
        explain(key)


def test_nearest():
    valid = ["run.seed", "eval.seed", "env.num_envs", "eval.num_envs", "algorithm.learning_rate"]
    assert nearest("eval.sead", valid) == "eval.seed"
    assert nearest("env.numenvs", valid) == "env.num_envs"
    assert nearest("eval.num_env", valid) == "eval.num_envs"
    assert nearest("learning-rate", valid) == "algorithm.learning_rate"
    assert nearest("zzz", valid) == ""


def test_reference_is_current():
    assert docs.differences(ROOT / "docs") == [], "run: python -m rollbus_core.config.docs"


def test_reference_has_every_key_of_every_plugin():
    page = docs.markdown()
    for section in plugins.PLUGIN_PACKAGES:
        for name in plugins.names(section):
            for key in plugins.section_model(section, name).model_fields:
                assert f"| `{section}.{key}` |" in page
    for row in explain(""):
        assert row["meaning"], f"{row['key']} has no description"


def test_check_says_what_differs(tmp_path, capsys):
    assert docs.main(["--folder", str(tmp_path)]) == 0
    assert docs.main(["--folder", str(tmp_path), "--check"]) == 0
    page = tmp_path / "configuration.md"
    page.write_text(page.read_text().replace("Rows over all hubs.", "Rows."))
    assert docs.main(["--folder", str(tmp_path), "--check"]) == 1
    printed = capsys.readouterr().out
    assert "Rows over all hubs." in printed and "run: python -m rollbus_core.config.docs" in printed


def test_schema():
    schema = recipe_schema()
    assert json.loads(json.dumps(schema)) == schema and "$ref" not in json.dumps(schema)
    assert set(schema["properties"]) == {"base", *SECTIONS}
    alternatives = schema["properties"]["algorithm"]["oneOf"]
    by_name = {a["properties"]["name"].get("const"): a for a in alternatives}
    assert "tau" in by_name["sac"]["properties"] and "tau" not in by_name["ppo"]["properties"]
    assert by_name["sac"]["required"] == ["name"] and "required" not in by_name["ppo"]
    assert by_name["ppo"]["additionalProperties"] is False
