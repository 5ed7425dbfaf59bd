"""docs/llms.txt equals the pages, and the skill for coding agents names commands and options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from documents import text_of
from llms_page import first_sentence, page
from workspace import ROOT

from rllm.cli.main import cli, main

SKILL = "rllm/src/rllm/.agents/skills/rllm/SKILL.md"
COMMAND = re.compile(r"`rllm ([^`]+)`|^ {4}rllm (.+)$", re.MULTILINE)


def test_file_in_repository_equals_the_generated_file() -> None:
    assert (ROOT / "docs/llms.txt").read_text(encoding="utf-8") == page(), "docs/llms.txt is stale: run `make docs`"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# Title\n\nYou get [a page](x.md). More.\n", "You get a page."),
        ("# Title\n\n<!-- Made. -->\n\n> **Status:** none.\n\nKeys: all of\nthem\n\n| a |\n", "Keys: all of them"),
    ],
)
def test_first_sentence_has_no_markup(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and its arguments."""
    context, command = click.Context(cli), cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            break
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("page_name", [SKILL, "AGENTS.md"])
def test_commands_and_options_of_agent_pages_exist(page_name: str) -> None:
    lines = [one or other for one, other in COMMAND.findall(text_of(page_name))]
    assert lines
    for line in lines:
        command, arguments = find_command(shlex.split(line, comments=True))
        assert command is not cli or line == "COMMAND --help", line
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        wrong = [word for word in arguments if word.startswith("--") and word not in known]
        assert not wrong, line


def test_skill_command_prints_and_writes_the_skill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == text_of(SKILL)

    assert main(["skill", "--into", str(tmp_path / "skills")]) == 0
    assert (tmp_path / "skills/rllm/SKILL.md").read_text(encoding="utf-8") == text_of(SKILL)
