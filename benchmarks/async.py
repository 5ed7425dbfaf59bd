"""What rounds played ahead save and cost on the backend `local`: ``python benchmarks/async.py [waiting|guess|tinker]``.

`waiting`: an environment whose answers take 0.3 s (median of a lognormal); seconds a step, as a ratio to rollouts and
updates that take turns. Waiting dominates, so that ratios hold on a busy machine too. `guess`: the demo, which computes
all the time; CPU of a step in the process that plays and in the one that trains, and how many times the slower of them
is faster than the one process of a run that takes turns. That is what two free cores give; the ratio of seconds beside
it means something on a quiet machine only. `tinker`: the demo on the backend `tinker` with its own server, which is the
process that trains, and also samples. Each prints the largest staleness that it saw.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# A file in this directory has the name of Tinker's client, and Python looks into this directory first.
sys.path.append(sys.path.pop(0))

from async_sides.runs import SIZES, Times, registry, run

from rllm_local.same_bits import fix_order_of_sums

STALENESSES = {"waiting": (0, 1, 2, 4), "guess": (0, 1), "tinker": (0, 1)}


def main(names: Sequence[str]) -> None:
    """Measure and print."""
    fix_order_of_sums()  # for all runs alike
    found = registry()
    said = {"waiting": waiting_line, "guess": guess_line, "tinker": guess_line}
    for name in names or list(SIZES):
        print(f"{name}: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
        base: Times | None = None
        for staleness in STALENESSES[name]:
            for latest in (False, True) if staleness else (False,):
                clock = run(found, name, staleness, latest=latest)
                took = clock.per_step()
                base = base or took
                weights = "turns" if not staleness else "latest" if latest else "fixed"
                print(f"  S={staleness} {weights:6}  {said[name](base, took)}  staleness {clock.stale:.0f}")


def waiting_line(base: Times, took: Times) -> str:
    """Seconds."""
    return f"{base.wall / took.wall:5.2f}x a step  {(took.here + took.child) * 1e3:6.0f} ms of CPU"


def guess_line(base: Times, took: Times) -> str:
    """CPU."""
    return (
        f"{base.slower / took.slower:5.2f}x by the CPU of the slower process: plays {took.here * 1e3:4.0f} ms, trains "
        f"{took.child * 1e3:4.0f} ms; {base.wall / took.wall:5.2f}x by time, on a quiet machine"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
