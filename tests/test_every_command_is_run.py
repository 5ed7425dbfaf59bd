"""Every command and every block of Python and YAML of the documents is run by a test, or it is said here why not."""

from __future__ import annotations

import pytest
from documents import blocks, commands, pages
from workspace import ROOT

from rllm_core.plugins.kinds import KINDS

COMMANDS_TEST = "tests/e2e/test_commands_of_the_documents.py"
RUN_BY = {
    "README.md": ("tests/e2e/test_readme.py",),
    "docs/tutorial.md": ("tests/e2e/test_tutorial.py",),
    "docs/backends/tinker.md": (COMMANDS_TEST,),
    "docs/backends/verl.md": (COMMANDS_TEST,),
    "docs/explain/resume.md": (COMMANDS_TEST,),
    "docs/explain/step.md": (COMMANDS_TEST,),
    "docs/how-to/configure.md": ("tests/e2e/test_python_in_the_guides.py", COMMANDS_TEST),
    "docs/how-to/async.md": ("tests/e2e/test_async_guide.py", COMMANDS_TEST),
    "docs/how-to/data-sets.md": ("tests/e2e/test_data_sets_guide.py",),
    "docs/how-to/deployed-agent.md": ("tests/e2e/test_deployed_agent_guide.py",),
    "docs/how-to/evaluate.md": ("tests/e2e/test_evaluate_guide.py",),
    "docs/how-to/from-rllm.md": ("tests/e2e/test_coming_from.py",),
    "docs/how-to/from-verl.md": ("tests/e2e/test_coming_from.py",),
    "docs/how-to/look-into-a-run.md": ("tests/e2e/test_look_into_a_run_guide.py",),
    "docs/how-to/own-data.md": ("tests/e2e/test_own_data.py",),
    "docs/how-to/own-environment.md": ("tests/e2e/test_own_environment.py",),
    "docs/how-to/plugin.md": ("tests/e2e/test_scaffold.py", COMMANDS_TEST),
    "docs/how-to/python.md": ("tests/e2e/test_python_in_the_guides.py", COMMANDS_TEST),
    "docs/how-to/real-models.md": ("tests/e2e/test_real_models.py",),
    "docs/how-to/reasoning-gym.md": ("tests/e2e/test_reasoning_gym.py",),
    "docs/how-to/rescore.md": (COMMANDS_TEST,),
    "docs/how-to/textarena.md": ("tests/e2e/test_textarena.py",),
    "docs/how-to/tools.md": ("tests/e2e/test_tools_guide.py",),
    "docs/how-to/train.md": (COMMANDS_TEST,),
    "docs/how-to/two-roles.md": ("tests/e2e/test_solver_judge.py",),
    "docs/how-to/your-agent.md": ("tests/e2e/test_agent_guide.py",),
    "docs/reference/pipeline.md": (COMMANDS_TEST,),
    "docs/reference/run-folder.md": (COMMANDS_TEST,),
    "docs/reference/testing.md": (COMMANDS_TEST,),
    **{
        f"docs/reference/{kind}.md": ("tests/e2e/test_scaffold.py", "rllm_core/tests/plugins/test_specs.py")
        for kind in KINDS
    },
}
"""Page -> the tests that run what is on it. The pages of kinds show what `rllm plugins new` writes, and the examples of
hooks."""
MADE_OF_TESTED_PARTS = {f"docs/reference/{kind}.md" for kind in KINDS}
NOT_RUN = {
    "pip ": "asks an index; tests/wheels installs every distribution from built files",
    "make ": "the commands of continuous integration itself",
    "ray ": "needs several machines",
    "export ": "sets a variable for the commands below it",
    "unset ": "the same",
    "twine ": "publishes",
    "pytest ": "the tests of a new package; tests/e2e/test_scaffold.py runs them",
}
"""How a command begins that no test of a page runs, and why."""


def runs_something(page: str) -> bool:
    mine = [command for command in commands(page) if not command.startswith(tuple(NOT_RUN))]
    return bool(mine or blocks(page, "python") or blocks(page, "yaml"))


@pytest.mark.parametrize("page", [page for page in pages() if runs_something(page)])
def test_a_page_with_commands_has_a_test(page: str) -> None:
    assert page in RUN_BY, f"{page} has commands or code: let a test run them, and name it in RUN_BY"


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_of_a_page_is_there_and_reads_it(page: str) -> None:
    assert runs_something(page), f"{page} has nothing to run: take it out of RUN_BY"
    for test in RUN_BY[page]:
        source = (ROOT / test).read_text(encoding="utf-8")
        name = page.rpartition("/")[2]
        quoted = (f'"{name}"', f'/{name}"', f'"{name.removesuffix(".md")}"')
        assert page in MADE_OF_TESTED_PARTS or any(each in source for each in quoted), f"{test} does not read {page}"
