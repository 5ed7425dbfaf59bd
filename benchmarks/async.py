"""Gains and costs of rollouts ahead of training on the backend `local`: ``python benchmarks/async.py [NAME ...]``.

NAME is `waiting`, `guess` or `tinker`:

- `waiting` is an environment that answers after 0.3 s (median of a lognormal). The value is seconds per step, as a
  ratio to a synchronous run. Waiting dominates, so the ratios are valid on a busy machine too.
- `guess` is the demo, which computes all the time. The values are CPU seconds of a step in the process that generates
  and in the process that trains. The ratio shows how much faster the slower one is than the single process of a
  synchronous run. Two free cores give this gain. The ratio of seconds next to it is valid only on a quiet machine.
- `tinker` is the demo on the backend `tinker` with its own server. The server trains and also samples.

Each line shows the largest staleness of the run.
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
    """Return the line for `waiting`, in seconds."""
    return f"{base.wall / took.wall:5.2f}x a step  {(took.here + took.child) * 1e3:6.0f} ms of CPU"


def guess_line(base: Times, took: Times) -> str:
    """Return the line for a demo, in CPU time."""
    return (
        f"{base.slower / took.slower:5.2f}x by the CPU of the slower process: generates {took.here * 1e3:4.0f} ms, "
        f"trains {took.child * 1e3:4.0f} ms; {base.wall / took.wall:5.2f}x by time, on a quiet machine"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
