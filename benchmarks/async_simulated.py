"""Asynchronous runs, simulated: ``python benchmarks/async_simulated.py [waiting] [guess] [table]``.

`waiting`, `guess`: the runs of ``async.py``. The simulation is calibrated on the run that takes turns alone, and what
it says of the others stands beside what they take: seconds of `waiting`, CPU of the slower process of `guess`.
`table`: gains on more devices than there are here, calibrated on published times, beside published gains; for rounds in
order, and for training on what is completed first.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence

from rllm_core.plugins.registry import Registry

STALENESSES = (1, 2, 4)
PASSES = 3
"""Over all runs; what is shown is the median. Other work on the machine comes and goes."""


def compare(name: str) -> None:
    """Measure runs in an environment, and print what the simulation says of them."""
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
    """By staleness and choice of weights, the gain that is measured, and the one that is predicted."""
    from async_sides.calibrated import calibrated, seconds_per_step
    from async_sides.runs import run

    turns = run(found, name, 0, latest=False)
    base = turns.per_step()
    fit = calibrated(name, turns)
    shares = f"a response takes {fit.response / base.wall:.1%} of a step in turns, an update {fit.world.update / base.wall:.1%}"
    print(f"{name}: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; {shares}", flush=True)
    for staleness in STALENESSES:
        for latest in (False, True):
            took = run(found, name, staleness, latest=latest).per_step()
            measured = base.wall / took.wall if name == "waiting" else base.slower / took.slower
            yield (staleness, latest), (measured, base.wall / seconds_per_step(fit.world, staleness, latest=latest))


def main(names: Sequence[str]) -> None:
    """Print what was asked for."""
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
