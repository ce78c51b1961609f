"""Every recipe is short, resolves, and states only what differs from the defaults."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from rollbus_core.config.explain import explain
from rollbus_core.config.load import load, load_resolved
from rollbus_core.config.source import DEFAULT
from rollbus_launch.commands import all_commands
from rollbus_launch.parser import Parser
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

ROOT = Path(__file__).parents[2]
#: Keys that say what a recipe is about may state the default.
NAMING = ("name", "id", "kind", "total_steps")
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def test_there_are_recipes():
    assert {"cartpole_ppo", "pendulum_sac", "halfcheetah_ppo", "toy_memory_ppo"} <= {r.stem for r in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path, tmp_path):
    lines = path.read_text().splitlines()
    assert len(lines) < 20 and lines[0].startswith("# ")
    resolved = load(path, check_packages=False)
    assert resolved.feed.summary
    config = tmp_path / "config.yaml"
    config.write_text(resolved.to_yaml())
    assert load_resolved(config) == resolved


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_states_differences_only(path):
    for row in explain("", load(path, check_packages=False)):
        if row["origin"] != DEFAULT and row["key"].rpartition(".")[2] not in NAMING:
            assert row["value"] != row["default"], f"{row['origin']}: {row['key']} is the default"


def test_misspelt_key_of_a_real_recipe(tmp_path):
    path = tmp_path / "typo.yaml"
    text = (ROOT / "recipes/cartpole_ppo.yaml").read_text()
    path.write_text(text.replace("learning_rate:", "lerning_rate:"))
    line = path.read_text().splitlines().index("  lerning_rate: 1e-3") + 1
    with pytest.raises(
        Exception,
        match=rf"typo\.yaml:{line}: unknown key 'algorithm\.lerning_rate' .*'algorithm\.learning_rate'",
    ):
        load(path, check_packages=False)


def test_what_replays_is_not_repeatable_and_says_so():
    with pytest.raises(
        ConfigError, match="run.deterministic: is true, but algorithm 'sac' replays what actors"
    ):
        load(ROOT / "recipes/pendulum_sac.yaml", ["run.deterministic=true"])


def test_every_algorithm_has_a_recipe():
    used = {load(path, check_packages=False).recipe.algorithm.name for path in RECIPES}
    missing = set(lookup.names("rollbus_learner.algorithms")) - used
    assert not missing, f"no recipe in recipes/ trains with {', '.join(sorted(missing))}"


def told() -> list[tuple[str, str]]:
    """Commands in recipes' headers and in the README, each with where it stands."""
    found = [(path.name, line[1:].strip()) for path in RECIPES for line in path.read_text().splitlines()
             if line.startswith("#   rollbus ")]  # fmt: skip
    block = (ROOT / "README.md").read_text().split("```")
    found += [
        ("README.md", line)
        for text in block[1::2]
        for line in text.splitlines()
        if line.startswith("rollbus ")
    ]
    return [(where, line.partition("  #")[0].strip()) for where, line in found]


@pytest.mark.parametrize("where, line", told())
def test_a_command_that_is_told_works_in_a_fresh_clone(where, line):
    parser = Parser(prog="rollbus")
    subparsers = parser.add_subparsers()
    for command in all_commands():
        command.add_parser(subparsers)
    given, rest = parser.parse_known_args(shlex.split(line)[1:])
    assert all("=" in text and not text.startswith("-") for text in rest), rest
    for text in (
        getattr(given, "recipe", None),
        getattr(given, "pipeline", None),
        getattr(given, "config", None),
    ):
        assert text is None or (ROOT / text).exists(), f"{where}: {text}"
    if getattr(given, "recipe", None) is not None:
        load(ROOT / given.recipe, [*getattr(given, "overrides", []), *rest], check_packages=False)
    out = getattr(given, "out", None)
    tracked = subprocess.run(["git", "ls-files", str(out)], cwd=ROOT, capture_output=True, text=True).stdout
    assert out is None or getattr(given, "append", False) or not tracked, (
        f"{where}: {out} is in the repository"
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_data_of_a_recipe_is_here_or_somebody_says_how_to_make_it(path):
    made = {word for _, line in told() for word in shlex.split(line)}
    for source in load(path, check_packages=False).recipe.data.sources:
        for folder in filter(None, (source.path, getattr(source, "labels", ""))):
            assert folder in made or (ROOT / folder).exists(), folder
