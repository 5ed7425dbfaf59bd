"""A page's first command works with only the packages of the page's install line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import commands

from .environments import Environment, same_process

TWO_STEPS = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false")
PAGES = {
    "README.md": TWO_STEPS,
    # The other pages need a service, or start Ray for half a minute.
    "docs/backends/tinker.md": ("--dry-run",),
    "docs/backends/verl.md": ("--dry-run",),
    "docs/how-to/plugin.md": (),
}
"""Page -> further arguments of its first command."""
TORCH_FIRST = "torch=="
BUILT = re.compile(r"dist/rllm-[\d.]+-py3-none-any\.whl(\S*) --find-links dist")
"""Install line of a clone. The test has the same wheels."""


def first_lines(page: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the arguments of a page's first ``pip install``, and its first ``rllm`` command."""
    found = [shlex.split(BUILT.sub(r"rllm\1", each)) for each in commands(page)]
    installs = [words[2:] for words in found if words[:2] == ["pip", "install"]]
    install = next(words for words in installs if not words[0].startswith(TORCH_FIRST))
    command = next(words for words in found if words[:1] == ["rllm"])
    assert found.index(["pip", "install", *install]) < found.index(command), "the install line comes first"
    return tuple(install), command


@pytest.mark.parametrize("page", [pytest.param(page, marks=same_process(first_lines(page)[0])) for page in PAGES])
def test_the_first_command_works(
    page: str, with_line: Callable[[tuple[str, ...]], Environment], tmp_path: Path
) -> None:
    line, command = first_lines(page)

    done = with_line(line).run([*command, *PAGES[page]], tmp_path)

    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
