"""docs/how-to/evaluate.md, word for word, from top to bottom in an empty directory."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from chat_server import Scripted, completion, serving
from documents import blocks, commands, text_of

pytestmark = pytest.mark.usefixtures("with_view")

GUIDE = "docs/how-to/evaluate.md"
ADDRESS, NAME = "http://127.0.0.1:8000/v1", "NAME"


@pytest.fixture
def printed(rllm_here: Any, tmp_path: Path) -> dict[str, str]:
    """Return standard output by command. Every command of the guide succeeds."""
    (tmp_path / "val.jsonl").write_text(blocks(GUIDE, "json")[0])
    found = {}
    with serving(Scripted(completion("1"), models=[NAME]).app) as url:
        for command in [each for each in commands(GUIDE) if each.startswith("rllm ")]:
            done = rllm_here(*shlex.split(command.replace(ADDRESS, url))[1:])
            assert done.returncode == 0, (command, done.stderr)
            found[command] = done.stdout
    return found


@pytest.mark.long
def test_the_guide_runs_from_top_to_bottom(printed: dict[str, str], tmp_path: Path) -> None:
    assert len(printed) == 9
    first, *_ = printed.values()
    (shown,) = blocks(GUIDE, "text")
    assert [line.split()[:3] for line in first.splitlines()] == [line.split()[:3] for line in shown.splitlines()]
    games = printed["rllm eval guess --model tiny rllm.rollout.n_val=1 --show 3"]
    assert [line.split(":")[0] for line in games.splitlines() if line.startswith("══")] == [
        f"══ guess, task guess-{number}, rollout 0" for number in range(3)
    ]
    compared = printed["rllm eval compare evals/before evals/after"].splitlines()
    assert [line.split()[:3] for line in compared[3:5]] == [["guess", "16", "pass@1"], ["guess", "16", "reward"]]
    directories = {"answers", "before", "after", "served"}
    assert {directory.name for directory in (tmp_path / "evals").iterdir()} == directories
    assert all((tmp_path / "evals" / name / "eval.json").is_file() for name in directories)


def test_every_key_in_the_guide_is_one() -> None:
    from rllm.builtin.endpoint.settings import EndpointSection

    named = set(re.findall(r"`endpoint\.(\w+)", text_of(GUIDE)))
    assert named
    assert named <= set(EndpointSection.model_fields)
