"""Cost of composing and checking a configuration: ``python benchmarks/config.py [RUNS]`` prints one line.

The values are CPU times of ``rllm config validate`` for the local backend. The first is the time of the whole process.
The second is the part from the command line's overrides to a checked plan. Both are measured again with 50 more
plugins, each with an estimator. Each repeat runs all variants one after the other, so a busy machine disturbs them
alike.
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
TARGET_MS = 400
PROGRAM = """
import sys, time
from rllm.cli.main import main
import rllm.inspection.checking as checking
checked = checking.checked_plan
def timed(*arguments):
    start = time.process_time()
    result = checked(*arguments)
    print("seconds", time.process_time() - start, file=sys.stderr)
    return result
checking.checked_plan = timed
sys.exit(main(sys.argv[1:]))
"""
MODULE = """
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.plugins import hookimpl


class Options(Params):
    scale: float = 1.0


def estimate(inputs, params):
    return Advantages(values=inputs.rewards * params.scale)


@hookimpl
def rllm_estimators():
    yield EstimatorPlugin(name="{name}", summary="Scaled rewards.", params=Options, load=lambda: estimate)
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


def run(file: Path, extra: Path | None) -> tuple[float, float]:
    """Return the CPU milliseconds of one process, and of the part that composes and checks."""
    environ = os.environ | ({"PYTHONPATH": str(extra)} if extra else {})
    words = ["config", "validate", str(file), "guess", "rllm.rollout.n=4"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if finished.returncode != 0:
        raise SystemExit(f"`rllm {' '.join(words)}` failed:\n{finished.stderr}")
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (part,) = (line.split()[1] for line in finished.stderr.splitlines() if line.startswith("seconds "))
    return 1000 * whole, 1000 * float(part)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = directory / "my.yaml"
        file.write_text("rllm:\n  algorithm:\n    adv_estimator: rloo\n")
        extra = directory / "site"
        extra.mkdir()
        install_plugins(extra)
        run(file, extra)  # compiles the modules
        pairs = [(run(file, None), run(file, extra)) for _ in range(runs)]
    usual, crowded = zip(*pairs, strict=True)
    whole, part = (statistics.median(values) for values in zip(*usual, strict=True))
    whole_crowded, part_crowded = (statistics.median(values) for values in zip(*crowded, strict=True))
    ratio = statistics.median(b[1] / a[1] for a, b in pairs)
    print(
        f"compose and check: {part:.0f} ms CPU (target {TARGET_MS}), the whole process {whole:.0f} ms; "
        f"with {PLUGINS} more plugins {part_crowded:.0f} ms and {whole_crowded:.0f} ms, ratio {ratio:.2f}; "
        f"medians of {runs} repeats"
    )


if __name__ == "__main__":
    main()
