"""What is left out is named, with an example that parses."""

from __future__ import annotations

import shlex

import pytest
import torch

from rollbus_launch.__main__ import main
from rollbus_launch.commands import all_commands
from rollbus_launch.parser import Parser


def test_train_without_a_recipe_names_the_recipe_only(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "rollbus train: error: the following arguments are required: recipe; "
        "for example: rollbus train recipes/cartpole_ppo.yaml"
    )


def test_a_folder_that_was_removed_is_named(tmp_path, monkeypatch, capsys) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["ps"]) == 2
    assert (
        capsys.readouterr().err == "rollbus: the current folder was removed; change into one that is there\n"
    )


def test_memory_that_is_not_there_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr("rollbus_launch.commands.doctor.run", lambda _: torch.empty(10**15))
    assert main(["doctor"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rollbus doctor: out of memory: ") and line.endswith("; free some")


def test_help_is_plain_text(capsys) -> None:
    for arguments in (["train"], ["compare"], ["keys", "create"]):
        with pytest.raises(SystemExit):
            main([*arguments, "--help"])
        assert "``" not in capsys.readouterr().out


def test_only_actors_are_scaled(capsys) -> None:
    assert main(["scale", "hub=2"]) == main(["scale", "actor=0"]) == main(["scale", "actor=many"]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert "'hub=2': only actors can be scaled" in first and "env.hubs" in first
    assert all("give a number of actors from 1 to 1,024" in line for line in others)


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.__name__.rpartition(".")[2])
def test_the_example_is_one(command, capsys) -> None:
    name = command.__name__.rpartition(".")[2]
    parser = Parser(prog="rollbus")
    command.add_parser(parser.add_subparsers())
    try:
        parser.parse_args([name])
    except SystemExit:
        said = capsys.readouterr().err.splitlines()[-1]
        if "ACTION" in said or "source" in said:
            return
        example = said.partition("for example: rollbus ")[2]
        assert example, said
        parser.parse_args(shlex.split(example))
