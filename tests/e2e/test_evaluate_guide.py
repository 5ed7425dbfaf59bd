"""docs/how-to/evaluate.md, word for word, from top to bottom in an empty directory."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from chat_server import Scripted, completion, serving

pytestmark = pytest.mark.usefixtures("with_view")

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "evaluate.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
ADDRESS, NAME = "http://127.0.0.1:8000/v1", "NAME"


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def printed(rllm_here: Any, tmp_path: Path) -> dict[str, str]:
    """Return standard output by command. Every command of the guide succeeds."""
    (tmp_path / "val.jsonl").write_text(block("json"))
    found = {}
    with serving(Scripted(completion("1"), models=[NAME]).app) as url:
        for command in COMMANDS:
            done = rllm_here(*shlex.split(command.replace(ADDRESS, url)))
            assert done.returncode == 0, (command, done.stderr)
            found[command] = done.stdout
    return found


@pytest.mark.long
def test_the_guide_runs_from_top_to_bottom(printed: dict[str, str], tmp_path: Path) -> None:
    assert len(printed) == 9
    first, *_ = printed.values()
    shown = block("text")
    assert [line.split()[:3] for line in first.splitlines()] == [line.split()[:3] for line in shown.splitlines()]
    games = printed["eval guess --model tiny rllm.rollout.n_val=1 --show 3"]
    assert [line.split(":")[0] for line in games.splitlines() if line.startswith("══")] == [
        f"══ guess, task guess-{number}, rollout 0" for number in range(3)
    ]
    compared = printed["eval compare evals/before evals/after"].splitlines()
    assert [line.split()[:3] for line in compared[3:5]] == [["guess", "16", "pass@1"], ["guess", "16", "reward"]]
    directories = {"answers", "before", "after", "served"}
    assert {directory.name for directory in (tmp_path / "evals").iterdir()} == directories
    assert all((tmp_path / "evals" / name / "eval.json").is_file() for name in directories)


def test_every_key_in_the_guide_is_one() -> None:
    from rllm.endpoint.settings import EndpointSection

    named = set(re.findall(r"`endpoint\.(\w+)", GUIDE))
    assert named
    assert named <= set(EndpointSection.model_fields)
