"""Agents that did not solve their task try to get a reward from its tests. Each fails in real sandboxes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import needs_program

from rllm.builtin.sandboxes.bwrap import BwrapParams, start_bwrap
from rllm.builtin.sandboxes.local import start_local
from rllm.builtin.sandboxes.task_tests import run_tests
from rllm.builtin.tasks.task_directories import TASK_DIRECTORY, TaskDirectories, TaskDirectoriesParams, TaskFacts
from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxSetup
from rllm_core.notices import forget_warnings

MIB = 1 << 20
SETUP = SandboxSetup(disk=64 * MIB, memory=512 * MIB, processes=64)
PYTHON = Path(sys.executable).resolve()
WRITE = 'echo $reward > "$SANDBOX_ROOT/logs/verifier/reward.txt"'
EXPECTED = '"$SANDBOX_ROOT/tests/expected"'
COMPARES = f"cmp -s answer.txt {EXPECTED} && reward=1 || reward=0; {WRITE}"
RUNS = f"untrusted python3 solution.py > $TMPDIR/out; cmp -s $TMPDIR/out {EXPECTED} && reward=1 || reward=0; {WRITE}"
IMPORTS = f"reward=$(python3 -c 'import json, random; print(json.loads(\"[0]\")[0])'); {WRITE}"
HONEST = f"{WRITE.replace('$reward', '0')}"
DEEP = "d/" * 2030
LINKED = (
    "import os\nos.makedirs('a/b/c')\nos.symlink('/app/a/b/c', '{place}/t')\n"
    "os.symlink('{place}/t/../../{up}tests/expected', 'answer.txt')"
)
FILL = (
    "import os\nfile = open('big', 'wb', 0)\nfor size in (1 << 16, 1):\n"
    " try:\n  while file.write(bytes(size)): pass\n except OSError: pass"
)
FORGE = "import os; open(os.environ.get('SANDBOX_ROOT', '') + '/logs/verifier/reward.json', 'w').write('1')"
SCRIPT = "for place in /logs/verifier/reward.txt /logs/verifier/reward.json; do echo 1 > $SANDBOX_ROOT$place; done"


@dataclass(frozen=True)
class Forging:
    """A command of the agent, the task's tests, and the reward of an honest reader."""

    agent: str
    tests: str = COMPARES
    reward: float = 0.0


def solution(code: str) -> str:
    """Return a command that writes a program, which the tests run."""
    return f"cat > solution.py <<'END'\n{code}\nEND"


def library(name: str) -> str:
    """Return a command that writes a module that forges the reward when it is imported."""
    return f"mkdir -p \"$(dirname {name})\"; cat > {name} <<'END'\n{FORGE}\nprint(1, flush=True); os._exit(0)\nEND"


FILES = {
    "reward before the tests": Forging(f"mkdir -p $SANDBOX_ROOT/logs/verifier; {SCRIPT}", "exit 1"),
    "reward.json for tests of reward.txt": Forging(f"mkdir -p $SANDBOX_ROOT/logs/verifier; {SCRIPT}"),
    "logs are a link": Forging(
        "rm -rf $SANDBOX_ROOT/logs/verifier; ln -s $HOME $SANDBOX_ROOT/logs/verifier; echo 1 > $HOME/reward.txt",
        "exit 1",
    ),
    "changed tests": Forging(f"echo '{SCRIPT}' > $SANDBOX_ROOT/tests/test.sh; chmod 0 $SANDBOX_ROOT/tests/test.sh"),
    "locked directories in the tests": Forging("mkdir -p $SANDBOX_ROOT/tests/a/b; chmod 0 $SANDBOX_ROOT/tests/a"),
    "link to the tests": Forging('ln -s "$SANDBOX_ROOT/tests/expected" answer.txt'),
    "relative link to the tests": Forging("ln -s ../tests/expected answer.txt"),
    "chain of links to the tests": Forging(
        "ln -s .. up; ln -s up/tests/. all; ln -s all/expected b; ln -s b answer.txt"
    ),
    "link to the root": Forging(
        "ln -s / d",
        f"cmp -s $(find -L . -path ./d/proc -prune -o -name expected -print) {EXPECTED} && reward=1; {WRITE}",
    ),
    "links below too long paths": Forging(
        f'{PYTHON} -c \'import os\nos.symlink("{DEEP}e/b", "answer.txt")\nfor _ in range(2030): os.mkdir("d"); '
        'os.chdir("d")\nos.mkdir("e"); os.chdir("e")\nos.symlink("d/" * 50 + "x", "b")\n'
        'for _ in range(50): os.mkdir("d"); os.chdir("d")\nos.symlink("/tests/expected", "x")\''
    ),
    "link in a locked directory": Forging(
        "mkdir d; ln -s $SANDBOX_ROOT/tests/expected d/x; chmod 111 d; chmod 555 .",
        COMPARES.replace("answer.txt", "d/x"),
    ),
    "permissions stay": Forging(
        "mkdir d; ln -s /dev/null d/x; chmod 500 d", f"test $(stat -c %a d) = 500 && reward=1; {WRITE}", 1.0
    ),
    "link to standard input": Forging(
        "ln -s /dev/stdin answer.txt", f"cmp -s - answer.txt < {EXPECTED} && reward=1 || reward=0; {WRITE}"
    ),
    "link to a descriptor": Forging(
        "ln -s /proc/self/fd/3 answer.txt", f"cmp -s {EXPECTED} answer.txt && reward=1 || reward=0; {WRITE}"
    ),
    "link for the output of tests": Forging(
        "ln -s $SANDBOX_ROOT/logs/verifier/reward.json out", f"{HONEST}; echo 1 > out; rm -f out # reward.json", 0.0
    ),
    "deep directories": Forging(
        f"for place in . $SANDBOX_ROOT/logs $SANDBOX_ROOT/tests $HOME; do (cd $place; {PYTHON} -c "
        '\'import os\nfor _ in range(1500): os.mkdir("d"); os.chdir("d")\'); done',
    ),
}
CODE = {
    "json.py": Forging(library("json.py"), IMPORTS),
    "sitecustomize.py": Forging(f"{library('sitecustomize.py')}; cp sitecustomize.py usercustomize.py", IMPORTS),
    "modules in the home directory": Forging(
        library("$HOME/.local/lib/python3.11/site-packages/usercustomize.py"), IMPORTS
    ),
    "module that tests run from a script": Forging(
        library("random.py"), f"echo 'import random' > t.py; python3 t.py; {HONEST}"
    ),
    "files of pytest": Forging(
        f"{library('conftest.py')}; cp conftest.py evil.py; printf '[pytest]\\naddopts = -p evil' > pytest.ini",
        f"{PYTHON} -m pytest -q $SANDBOX_ROOT/tests/test_it.py && reward=1 || reward=0; {WRITE}",
    ),
    "files of shells": Forging(
        f"echo '{SCRIPT}; exit' | tee $HOME/.bashrc $HOME/.profile $HOME/.bash_profile $HOME/.bash_env .env .bashrc",
        f"bash -lc true; bash -ic true; {HONEST}",
    ),
    "programs of the same name": Forging(
        f"for place in . $HOME/bin $HOME/.local/bin; do mkdir -p $place; echo '#!/bin/sh\n{SCRIPT}' > $place/cmp; "
        "chmod +x $place/cmp; cp $place/cmp $place/untrusted; done; echo x > answer.txt",
    ),
    "programs of the repository": Forging(
        "git init -q; echo '#!/bin/sh\n" + SCRIPT + "' > h; chmod +x h; git config core.fsmonitor ./h; "
        "for hook in pre-commit post-checkout post-index-change; do cp h .git/hooks/$hook; done",
        f"git status; git add h; git -c user.name=a -c user.email=b commit -m x; {HONEST}",
    ),
}
PROCESSES = {
    "process that stays": Forging(f"(trap '' HUP TERM; while :; do {SCRIPT}; sleep 0.01; done) 2>/dev/null &"),
    "process in its own session": Forging(
        f"setsid sh -c 'while :; do {SCRIPT}; sleep 0.01; done' >/dev/null 2>&1 & sleep 0.2"
    ),
    "process after the tests": Forging(
        solution("import os\nif os.fork() == 0:\n os.setsid()\n while True: open('answer.txt', 'w').write('yes\\n')"),
        f"untrusted python3 solution.py; rm -f answer.txt; sleep 0.1; {COMPARES}",
    ),
}
PROGRAMS = {
    "program that writes the reward": Forging(solution(FORGE), RUNS),
    "program that locks the reward": Forging(
        solution("import os\nos.makedirs('/logs/verifier/reward.txt')\nos.chmod('/logs/verifier', 0)"), RUNS
    ),
    "program that kills the tests": Forging(
        solution("import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)"),
        RUNS.replace("untrusted", f"{WRITE.replace('$reward', '1')}; untrusted"),
    ),
    "program that reads the tests": Forging(
        solution(
            "import glob\nfor name in glob.glob('/tests/*') + glob.glob('/proc/*/root/tests/*'): print(*open(name))"
        ),
        RUNS,
    ),
    "program that uses the tests' key": Forging(
        solution(
            "import glob, socket\nkeys = [open(name, 'rb').read() for name in glob.glob('/proc/*/environ')]\n"
            "if any(b'RLLM_UNTRUSTED' in key for key in keys): print('yes')"
        ),
        RUNS,
    ),
    "program that links its output": Forging(
        solution("import os\nos.symlink('/tests/expected', 'answer.txt')"), f"untrusted python3 solution.py; {COMPARES}"
    ),
    "program that links its output before its time limit": Forging(
        solution("import os\nos.symlink('/tests/expected', 'answer.txt')\nwhile True: pass"),
        f"timeout 1 untrusted python3 solution.py; {COMPARES}",
    ),
    "program that links through its own /tmp": Forging(
        f"mkdir /tmp/t; {solution(LINKED.format(place='/tmp', up=''))}", f"untrusted python3 solution.py; {COMPARES}"
    ),
    "program that links through its own /dev/shm": Forging(
        f"mkdir /dev/shm/t; {solution(LINKED.format(place='/dev/shm', up='../'))}",
        f"untrusted python3 solution.py; {COMPARES}",
    ),
    "program that links below too long paths": Forging(
        solution(
            "import os\nos.symlink('/tests/expected', 'answer.txt')\n"
            "for _ in range(2100): os.mkdir('d'); os.chdir('d')\nos.chmod('/app', 0o500)"
        ),
        f"untrusted python3 solution.py; {COMPARES}",
    ),
    "program that fills the disk": Forging(
        solution(FILL),
        f"head -c 9000 /dev/zero > $TMPDIR/x; untrusted python3 solution.py | sort > $TMPDIR/a; "
        f"sort {EXPECTED} > $TMPDIR/b; cmp -s $TMPDIR/a $TMPDIR/b && reward=1 || reward=0; rm $TMPDIR/*; {WRITE}",
    ),
    "program that links its output before it is killed": Forging(
        solution("import os\nos.symlink('/tests/expected', 'answer.txt')\nwhile True: pass"),
        f"timeout -s KILL 2 untrusted python3 solution.py; {COMPARES}",
    ),
    "program that links its output in the background": Forging(
        solution("import os\nos.symlink('/tests/expected', 'answer.txt')\nwhile True: pass"),
        f"untrusted python3 solution.py & sleep 2; {COMPARES}",
    ),
    "program that leaves a module": Forging(
        solution("open('json.py', 'w').write('print(1); exit()')"), f"{RUNS}; {IMPORTS}"
    ),
    "program that writes to shared places": Forging(
        solution("import os\nfor place in ('/tmp', '/dev/shm'):\n open(place + '/out', 'w').write('1')"),
        "echo 0 > /tmp/out; echo 0 > /dev/shm/out; untrusted python3 solution.py; "
        f"reward=$(( $(cat /tmp/out) + $(cat /dev/shm/out) )); {WRITE}",
    ),
    "program with a huge output": Forging(
        solution("while True: print('x' * 1000000)"), RUNS.replace("untrusted", "timeout 1 untrusted")
    ),
    "program that needs all memory": Forging(solution("x = bytearray(1 << 30)"), RUNS),
    "program that forks": Forging(solution("import os\nwhile True: os.fork()"), RUNS),
    "program that never ends": Forging(solution("while True: pass"), RUNS.replace("untrusted", "timeout 1 untrusted")),
    "solved by a program": Forging(solution("print(input())"), RUNS.replace("untrusted", "echo yes | untrusted"), 1.0),
    "solved by a program for each line": Forging(
        solution("import sys\nprint(sys.argv[1])"),
        f"printf 'a\\nb\\n' > $TMPDIR/lines; while read -r line; do untrusted python3 solution.py $line; done "
        f"< $TMPDIR/lines > $TMPDIR/out; cmp -s $TMPDIR/out $TMPDIR/lines && reward=1; {WRITE}",
        1.0,
    ),
}
READING = {
    "killed tests": Forging("true", f"{WRITE.replace('$reward', '1')}; kill -9 $$"),
    "link as the reward": Forging("echo 1 > one", 'ln -s "$PWD/one" "$SANDBOX_ROOT/logs/verifier/reward.txt"; exit 1'),
    "pipe as the reward": Forging("true", 'mkfifo "$SANDBOX_ROOT/logs/verifier/reward.txt"; exit 1'),
    "pipes, links and deep directories next to the reward": Forging(
        "true",
        f"reward=0.5; {WRITE}; cd $SANDBOX_ROOT/logs/verifier; mkfifo p; ln -s /etc/passwd a; ln -s .. b; "
        'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d"); os.chdir("d")\'',
        0.5,
    ),
    "large logs": Forging(
        "true", f"reward=0.5; {WRITE}; head -c 40000000 /dev/zero | tee $SANDBOX_ROOT/logs/verifier/log", 0.5
    ),
    "large reward": Forging(
        "true", 'head -c 1000000 /dev/zero | tr "\\0" "[" > "$SANDBOX_ROOT/logs/verifier/reward.txt"; exit 1'
    ),
    "too large number": Forging("true", f"reward=1$(printf %0400d 0); {WRITE}; exit 1"),
    "nested reward": Forging(
        "true", 'head -c 60000 /dev/zero | tr "\\0" "[" > "$SANDBOX_ROOT/logs/verifier/reward.txt"; exit 1'
    ),
}
RESOURCES = {
    "full disk": Forging("cat /dev/zero > big; yes > more"),
    "many files": Forging("i=0; while mkdir $i; do i=$((i+1)); done 2>/dev/null"),
    "file that needs all memory": Forging(
        "truncate -s 60M answer.txt; for i in $(seq 20); do cat answer.txt; done > /dev/null",
        f"python3 -c 'x = bytearray(1 << 30)'; {HONEST}",
    ),
    "pipe as an answer": Forging("mkfifo answer.txt", COMPARES),
}


async def try_forging(sandbox: Sandbox, forging: Forging, task: Path) -> float:
    tests = {
        "test.sh": forging.tests,
        "expected": "yes\n",
        "test_it.py": "def test_it(): assert False  # or reward.json",
    }
    (task / "tests").mkdir(parents=True)
    for name, text in tests.items():
        (task / "tests" / name).write_text(text)
    (task / "instruction.md").write_text("Write yes to answer.txt.")
    (task / "task.toml").write_text("[verifier]\ntimeout_sec = 20")
    (read,) = TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(task)))
    facts = TaskFacts.model_validate(read.data[TASK_DIRECTORY])
    try:
        await sandbox.run(["bash", "-c", forging.agent], seconds=10)
        agent = CommandResult(exit_code=1, stdout=b"", stderr=b"")
        return float((await run_tests(sandbox, facts, agent))["reward"])
    finally:
        await sandbox.stop()


def forgings(*tables: dict[str, Forging]) -> Any:
    table = {name: forging for each in tables for name, forging in each.items()}
    return pytest.mark.parametrize("forging", table.values(), ids=table.keys())


def reward(start: Callable[[], Awaitable[Sandbox]], forging: Forging, task: Path) -> float:
    async def run() -> float:
        return await try_forging(await start(), forging, task)

    return asyncio.run(run())


async def start_in_bwrap() -> Sandbox:
    return await start_bwrap(BwrapParams(), SETUP)


async def start_in_local() -> Sandbox:
    return await start_local(None, SETUP)


@pytest.mark.smoke
@needs_program("bwrap")
@forgings(PROGRAMS)
def test_program_of_an_agent_cannot_forge(tmp_path: Path, forging: Forging) -> None:
    assert reward(start_in_bwrap, forging, tmp_path / "task") == forging.reward


@pytest.mark.long
@needs_program("bwrap")
@forgings(FILES, CODE, PROCESSES, READING, RESOURCES)
def test_agent_cannot_forge(tmp_path: Path, forging: Forging) -> None:
    assert reward(start_in_bwrap, forging, tmp_path / "task") == forging.reward


@pytest.mark.long
@forgings(FILES, CODE, PROCESSES, READING)
def test_accidental_forging_in_local_fails(
    tmp_path: Path, forging: Forging, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    assert reward(start_in_local, forging, tmp_path / "task") == forging.reward
    assert "isolates nothing" in capsys.readouterr().err
