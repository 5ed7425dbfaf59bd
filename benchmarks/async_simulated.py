"""Simulated asynchronous runs: ``python benchmarks/async_simulated.py [waiting] [guess] [table]``.

`waiting` and `guess` are the runs of ``async.py``. The simulation is calibrated only on the synchronous run. Its
predictions for the other runs are printed next to the measurements: seconds of `waiting`, CPU time of the slower
process of `guess`.

`table` prints gains on more devices than this machine has, next to published gains. It is calibrated on published
times. It covers batches in order, and training on the rollouts that end first.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence

from rllm_core.plugins.registry import Registry

STALENESSES = (1, 2, 4)
PASSES = 3
"""Passes over all runs. The median is printed, because other work on the machine comes and goes."""


def compare(name: str) -> None:
    """Measure runs in an environment, and print them with the simulation's predictions."""
    from async_sides.runs import registry

    found = registry()
    gains: dict[tuple[int, bool], list[tuple[float, float]]] = {}
    for _ in range(PASSES):
        for key, pair in _one_pass(found, name):
            gains.setdefault(key, []).append(pair)
    for (staleness, latest), pairs in gains.items():
        measured, predicted = (statistics.median(each) for each in zip(*pairs, strict=True))
        errors = ", ".join(f"{said / took - 1:+.0%}" for took, said in pairs)
        weights = "latest" if latest else "fixed"
        print(
            f"  S={staleness} {weights}  measured {measured:.2f}x  predicted {predicted:.2f}x  "
            f"({predicted / measured - 1:+.0%}; of each pass {errors})"
        )


def _one_pass(found: Registry, name: str) -> Iterator[tuple[tuple[int, bool], tuple[float, float]]]:
    """Yield the measured and the predicted gain for each staleness and choice of weights."""
    from async_sides.calibrated import calibrated, seconds_per_step
    from async_sides.runs import run

    turns = run(found, name, 0, latest=False)
    base = turns.per_step()
    fit = calibrated(name, turns)
    response, update = fit.response / base.wall, fit.world.update / base.wall
    shares = f"a response takes {response:.1%} of a synchronous step, an update {update:.1%}"
    print(f"{name}: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; {shares}", flush=True)
    for staleness in STALENESSES:
        for latest in (False, True):
            took = run(found, name, staleness, latest=latest).per_step()
            measured = base.wall / took.wall if name == "waiting" else base.slower / took.slower
            yield (staleness, latest), (measured, base.wall / seconds_per_step(fit.world, staleness, latest=latest))


def main(names: Sequence[str]) -> None:
    """Print the requested comparisons."""
    for name in names or ("waiting", "guess", "table"):
        if name == "table":
            from async_sides.table import print_table

            print_table()
        else:
            from rllm_local.same_bits import fix_order_of_sums

            fix_order_of_sums()
            compare(name)


if __name__ == "__main__":
    main(sys.argv[1:])
