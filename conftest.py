"""Fixtures for tests of several distributions: ``rllm`` as its users run it."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked import CommandServer, running

from rllm_serving.child_process import ChildProcess

# Each test process keeps one core busy: threads of torch and NumPy would wait for each other's cores. Read at import.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# MKL reads it at a process's first product. The backend `local` sets it for the processes of users.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Property tests. `make test-nightly` draws more examples (`--hypothesis-profile`). The environments of `make test-vllm`
# and `make test-gpu` have no hypothesis, and no such tests.
if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    settings.register_profile("quick", deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
    settings.register_profile("thorough", settings.get_profile("quick"), max_examples=300)
    settings.load_profile("quick")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

GROWTH_BETWEEN_COLLECTIONS = 200 * 1024
"""KiB of resident memory."""
REPORTED, SHOWN = 100 * 1024, 8
"""KiB by which a test raises the peak memory of its process to be reported, and the number of such tests."""
BLOCKED = ("rllm-local", "rllm-renderers", "rllm-tinker", "rllm-verl")
"""Distributions that import much when `rllm plugins doctor` loads their plugins. One test of it loads most."""
TIERS = ("smoke", "long", "nightly", "gpu")
"""Marks of tests that `make test` does not run. A test without one of them belongs to `make test`."""
_of_several_tiers = pytest.StashKey[list[str]]()
_memory_after_collection = 0
_growths: dict[str, int] = {}
"""KiB by which a test raised the peak memory of this process, by its id."""
_of_processes: dict[str, dict[str, int]] = {}
"""`_growths` of each test process, in the process that prints the summary."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-part", metavar="K/N", help="Run only part K of N of the long tests, and all other tests.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Store which tests belong to several tiers, and remove the long tests of other parts."""
    tiers = {item: {mark.name for mark in item.iter_markers()} & {*TIERS} for item in items}
    # A long test may have a parameter for a GPU. That case belongs only to the tier gpu.
    tiers |= {item: {"gpu"} for item, marks in tiers.items() if "gpu" in marks}
    config.stash[_of_several_tiers] = [item.nodeid for item in items if len(tiers[item]) > 1]
    if part := config.getoption("long_part"):
        wanted, parts = map(int, part.split("/"))

        def belongs(item: pytest.Item) -> bool:
            # All tests of a file are in one part, because they share fixtures.
            return "long" not in tiers[item] or zlib.crc32(item.location[0].encode()) % parts == wanted % parts

        config.hook.pytest_deselected(items=[item for item in items if not belongs(item)])
        items[:] = filter(belongs, items)


def pytest_runtest_setup() -> None:
    """Freeze the current objects, so that the garbage collector ignores them.

    Otherwise it visits the modules and all collected tests repeatedly: 0.3 s at the start of every training.
    First the garbage of the last test is collected, because frozen garbage stays: a test process grew to 5 GB.
    All garbage is collected whenever the memory has grown by `GROWTH_BETWEEN_COLLECTIONS`, because frozen garbage may
    refer to the models of the last test.
    """
    global _memory_after_collection
    if _resident_memory() > _memory_after_collection + GROWTH_BETWEEN_COLLECTIONS:
        gc.unfreeze()
        gc.collect()
        _memory_after_collection = _resident_memory()
    gc.collect()
    gc.freeze()


def _resident_memory() -> int:
    """Return the resident memory of this process in KiB, or its peak on systems without ``/proc``."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(pages.read_text().split()[1]) * resource.getpagesize() // 1024


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = yield
    _growths[item.nodeid] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Unfreeze, so that the collection at exit finds unclosed resources among all objects."""
    gc.unfreeze()
    if hasattr(session.config, "workeroutput"):
        largest = dict(sorted(_growths.items(), key=lambda each: -each[1])[:SHOWN])
        session.config.workeroutput["memory"] = {
            **largest,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the memory of a test process that has ended."""
    _of_processes[node.gateway.id] = getattr(node, "workeroutput", {}).get("memory", {})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the peak memory of each test process, and the tests that raised it most."""
    for process, growths in _of_processes.items():
        if peak := growths.pop("peak", 0):
            most = ", ".join(f"{name} +{size / 2**20:.2f}" for name, size in growths.items() if size > REPORTED)
            terminalreporter.write_line(f"peak memory of {process}: {peak / 2**20:.2f} GiB; most: {most or 'no test'}")


@pytest.fixture
def tests_of_several_tiers(pytestconfig: pytest.Config) -> list[str]:
    """Return the ids of collected tests that have marks of several tiers."""
    return pytestconfig.stash[_of_several_tiers]


@pytest.fixture(scope="session")
def command_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    """Yield a server that starts commands in processes without imports of torch and transformers."""
    with running(tmp_path_factory.mktemp("output")) as server:
        yield server


@pytest.fixture(scope="module")
def forked_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork training processes from the command server, which saves five seconds for each."""

    def spawn(*arguments: Any) -> ChildProcess:
        server: CommandServer = request.getfixturevalue("command_server")
        return server.spawn(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChildProcess, "spawn", spawn)
        yield


@pytest.fixture
def environ_of_users(tmp_path: Path) -> dict[str, str]:
    """Return the environment of processes that run in an empty directory, with few plugins of this repository."""
    blocked = {"RLLM_BLOCK_PLUGINS": ",".join(BLOCKED), "RLLM_DEBUG": "", "COLUMNS": "80"}
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **blocked, "PYTHONPATH": path}


@pytest.fixture
def rllm(command_server: CommandServer, environ_of_users: dict[str, str]) -> Run:
    """Runs ``rllm`` with warnings as errors, in its own process."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        process = command_server.start("rllm.cli.main", words, Path.cwd(), environ_of_users | environ)
        stdout, stderr = process.communicate()
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def rllm_from_inside(environ_of_users: dict[str, str]) -> Run:
    """Runs a program instead of ``rllm``, for tests of a new process: ``(program, *words)``."""

    def run(program: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *words],
            env=environ_of_users | environ,
            capture_output=True,
            text=True,
            timeout=200,
        )

    return run


@pytest.fixture
def nothing_stays_registered() -> Iterator[None]:
    """Remove everything that a test registered in this process."""
    from rllm_core.plugins.registry import forget_in_process, records_in_process

    before = {(record.kind, record.name) for record in records_in_process()}
    yield
    for record in records_in_process():
        if (record.kind, record.name) not in before:
            forget_in_process(record.kind, record.name)
