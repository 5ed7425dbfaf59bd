"""Python programs in forks of a process that has imported their packages once."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError, PluginError
from rllm_gateway.plugin import AgentParams, _check
from rllm_gateway.running.runners import CommandRunner, Outcome, WarmCommandRunner, count_python_options

FRAMEWORK = """
import pathlib, sys
with pathlib.Path(__file__).with_suffix(".count").open("a") as file:
    file.write("imported\\n")
print("a banner")
VALUE = []
"""
PROGRAM = """
import atexit, json, os, sys, threading
import framework

framework.VALUE.append(1)
task = json.load(sys.stdin)
seen = [sys.argv, __name__, os.environ["OPENAI_API_KEY"], sys.path[0], task, len(framework.VALUE)]
seen += [sys.modules["__main__"].task is task, os.getcwd()]
atexit.register(lambda: print(json.dumps({"answer": seen})))
threading.Timer(0.01, lambda: seen.append("a thread")).start()
"""
Play = Callable[..., list[Outcome]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "framework.py").write_text(FRAMEWORK)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def play(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a program some times, in forks where modules are preloaded."""
    monkeypatch.chdir(directory)

    def run(*words: str, preload: tuple[str, ...] = (), times: int = 1, program: str | None = None) -> list[Outcome]:
        if program is not None:
            (directory / "program.py").write_text(textwrap.dedent(program))
        command = [sys.executable, *words]

        async def go() -> list[Outcome]:
            runner: Any = (
                WarmCommandRunner(command, preload, directory) if preload else CommandRunner(command, directory)
            )
            try:
                runs = (runner.run({"n": n}, {"OPENAI_API_KEY": f"k{n}"}) for n in range(times))
                return await asyncio.gather(*runs)
            finally:
                await runner.close()

        return asyncio.run(go())

    return run


# Without its site directory Python has no rllm: the program may have another virtual environment.
@pytest.mark.parametrize("words", [("-S", "program.py", "--fast"), ("-S", "-u", "-m", "program", "x.py")])
def test_warm_program_sees_what_a_new_python_sees(play: Play, directory: Path, words: tuple[str, ...]) -> None:
    def seen(**options: Any) -> list[Any]:
        (directory / "framework.count").unlink(missing_ok=True)
        outcomes = play(*words, times=3, **options)
        assert [(each.code, each.last_lines) for each in outcomes if each.code] == []
        return [each.returned["answer"] for each in outcomes]

    cold = seen()
    assert (directory / "framework.count").read_text().count("imported") == 3
    assert cold[1][2:] == ["k1", str(directory), {"n": 1}, 1, True, str(directory), "a thread"]
    assert seen(preload=("framework", "json.tool")) == cold
    assert (directory / "framework.count").read_text().count("imported") == 1


@pytest.mark.parametrize(
    "program", ["print('so far')\nraise KeyError('no answer')", "raise SystemExit('no luck')", "exit(3)", "def ("]
)
def test_warm_program_fails_as_a_new_python(play: Play, program: str) -> None:
    (cold,), (warm,) = (play("program.py", program=program, preload=each) for each in ((), ("framework",)))
    assert cold.code != 0
    assert (warm.code, warm.last_lines) == (cold.code, cold.last_lines)


def test_preload_that_starts_threads_starts_new_pythons(
    play: Play, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    outcomes = play("program.py", preload=("framework", "threaded"), times=2)
    assert [each.returned["answer"][2] for each in outcomes] == ["k0", "k1"]
    assert "workflow_args.preload" in capsys.readouterr().err
    assert (directory / "framework.count").read_text().count("imported") == 3


def test_preloaded_numpy_gives_each_rollout_other_numbers(play: Play) -> None:
    program = "import json, os, numpy\nprint(json.dumps({'answer': [float(numpy.random.random()), os.getppid()]}))"
    outcomes = play("program.py", program=program, preload=("numpy.random",), times=3)
    numbers, parents = zip(*(each.returned["answer"] for each in outcomes), strict=True)
    assert len(set(numbers)) == 3
    assert len(set(parents)) == 1


def test_cancelled_warm_program_is_killed(directory: Path) -> None:
    pid = directory / "pid"
    program = f"import os\nopen('{pid}.new', 'w').write(str(os.getpid()))\nos.rename('{pid}.new', '{pid}')\n"
    (directory / "program.py").write_text(program + "while True: pass\n")

    async def go() -> None:
        runner = WarmCommandRunner([sys.executable, str(directory / "program.py")], ["framework"], directory)
        rollout = asyncio.create_task(runner.run({"n": 1}, {}))
        while not pid.exists():
            await asyncio.sleep(0.01)
        rollout.cancel()
        while Path(f"/proc/{pid.read_text()}").exists():
            await asyncio.sleep(0.01)
        await asyncio.wait({rollout})
        await runner.close()

    asyncio.run(go())


def test_preload_that_is_missing_is_named(play: Play) -> None:
    with pytest.raises(PluginError, match=r"No module named 'litelm'(.|\n)*preload"):
        play("program.py", preload=("litelm",))


@pytest.mark.parametrize(
    ("command", "options"),
    [("python a.py", 1), ("/x/bin/python3.12 -u -Xdev a.py -m b.py", 3), ("python -B -m pkg.main --x", 2)],
)
def test_python_options_are_counted(command: str, options: int) -> None:
    assert count_python_options(command.split()) == options


@pytest.mark.parametrize(
    "command", ["node a.js", "bash a.py", "python -c a.py", "python", "python -m", "python x a.py"]
)
def test_preload_for_other_programs_is_refused(command: str) -> None:
    with expect_error(ConfigError, "conflicting-keys", "preload"):
        count_python_options(command.split())


def test_preload_for_a_function_is_refused() -> None:
    with expect_error(ConfigError, "unused-key", "function"):
        _check(AgentParams(agent="a.py:solve", preload=["json"]))
