"""Start time of the command line: ``python benchmarks/startup.py [RUNS]`` prints one line.

CPU time (user + system) of whole processes, which a busy machine disturbs less than wall time. Output goes into a
pipe. The line also lists imported packages that must not be imported.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

COMMANDS = {"--help": ("--help",), "plugins list": ("plugins", "list")}
TARGETS_MS = {"--help": 100, "plugins list": 300}
HEAVY = ("torch", "transformers", "numpy")
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


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
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


if __name__ == "__main__":
    main()
