"""Start time of the command line, and the cost of a configuration: ``python benchmarks/startup.py [RUNS]``.

The first line is the CPU time (user + system) of whole processes, which a busy machine disturbs less than wall time. It
also lists imported packages that must not be imported. The second line is ``rllm config validate`` with the local
backend: the part from overrides to a checked plan, and the whole process, also with 50 more plugins. Each repeat runs
all variants one after the other, so a busy machine disturbs them alike.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PLUGINS = 50
CONFIG_TARGET_MS = 400
VALIDATE = """
import sys, time
from rllm.cli.main import main
import rllm.inspection.config_command as checking
checked = checking.check_run
def timed(*arguments):
    start = time.process_time()
    result = checked(*arguments)
    print("seconds", time.process_time() - start, file=sys.stderr)
    return result
checking.check_run = timed
sys.exit(main(sys.argv[1:]))
"""
MODULE = """
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.params import Params
from rllm_core.plugins import hookimpl


class Options(Params):
    scale: float = 1.0


def estimate(inputs, params):
    return Advantages(values=inputs.rewards * params.scale)


@hookimpl
def rllm_estimators():
    yield EstimatorPlugin(name="{name}", summary="Scaled rewards.", load_params=lambda: Options, load=lambda: estimate)
"""


def install_plugins(directory: Path) -> None:
    """Write packages to a directory as an installer would."""
    for index in range(PLUGINS):
        name = f"bench_estimator_{index}"
        (directory / f"{name}.py").write_text(MODULE.format(name=name))
        metadata = directory / f"{name}-1.0.dist-info"
        metadata.mkdir()
        distribution = name.replace("_", "-")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[rllm.plugins]\n{distribution} = {name}\n")


def run_validate(file: Path, extra: Path | None) -> tuple[float, float]:
    """Return the CPU milliseconds of one process, and of the part that composes and checks."""
    environ = os.environ | ({"PYTHONPATH": str(extra)} if extra else {})
    words = ["config", "validate", str(file), "guess", "rllm.rollout.n=4"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run([sys.executable, "-c", VALIDATE, *words], capture_output=True, text=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if finished.returncode != 0:
        raise SystemExit(f"`rllm {' '.join(words)}` failed:\n{finished.stderr}")
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (part,) = (line.split()[1] for line in finished.stderr.splitlines() if line.startswith("seconds "))
    return 1000 * whole, 1000 * float(part)


def print_composing(runs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "my.yaml"
        file.write_text("rllm:\n  algorithm:\n    adv_estimator: rloo\n")
        extra = directory / "site"
        extra.mkdir()
        install_plugins(extra)
        run_validate(file, extra)  # compiles the modules
        pairs = [(run_validate(file, None), run_validate(file, extra)) for _ in range(runs)]
    usual, crowded = zip(*pairs, strict=True)
    whole, part = (statistics.median(values) for values in zip(*usual, strict=True))
    whole_crowded, part_crowded = (statistics.median(values) for values in zip(*crowded, strict=True))
    ratio = statistics.median(b[1] / a[1] for a, b in pairs)
    print(
        f"compose and check: {part:.0f} ms CPU (target {CONFIG_TARGET_MS}), the whole process {whole:.0f} ms; "
        f"with {PLUGINS} more plugins {part_crowded:.0f} ms and {whole_crowded:.0f} ms, ratio {ratio:.2f}; "
        f"medians of {runs} repeats"
    )


COMMANDS = {
    "--help": ("--help",),
    "plugins list": ("plugins", "list"),
    "plugins search": ("plugins", "search", "game"),
}
TARGETS_MS = {"--help": 80, "plugins list": 200, "plugins search": 200}
HEAVY = ("torch", "transformers", "numpy", "pydantic")
PROGRAM = f"""
import sys
from rllm.cli.main import main
exit_code = main(sys.argv[1:])
print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
sys.exit(exit_code)
"""


def run(arguments: tuple[str, ...]) -> tuple[float, list[str]]:
    """Return the CPU milliseconds of one run, and the heavy packages that it imported."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if finished.returncode != 0:
        raise SystemExit(f"`rllm {' '.join(arguments)}` failed:\n{finished.stderr}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * seconds, finished.stderr.splitlines()[-1].split()


def print_starts(runs: int) -> None:
    metrics = []
    for name, arguments in COMMANDS.items():
        results = [run(arguments) for _ in range(runs)]
        times = [milliseconds for milliseconds, _ in results]
        imported = results[-1][1]
        metrics.append(
            f"rllm {name}: best {min(times):.0f} ms, median {statistics.median(times):.0f} ms CPU"
            f" (target {TARGETS_MS[name]}), heavy imports: {', '.join(imported) or 'none'}"
        )
    print(f"{'; '.join(metrics)}; {runs} runs")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print_starts(runs)
    print_composing(runs)


if __name__ == "__main__":
    main()
