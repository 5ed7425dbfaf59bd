"""What rounds played ahead save and cost on the backend `local`: ``python benchmarks/async.py [waiting|guess]``.

`waiting`: an environment whose answers take 0.3 s (median of a lognormal); seconds a step, as a ratio to rollouts and
updates that take turns. Waiting dominates, so that ratios hold on a busy machine too. `guess`: the demo, which computes
all the time; CPU seconds a step, since what a second core saves shows on a quiet machine only. Each prints the largest
staleness that it saw.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from async_sides.runs import SIZES, registry, run

from rllm_local.same_bits import fix_order_of_sums

STALENESSES = {"waiting": (0, 1, 2, 4), "guess": (0, 1)}


def main(names: Sequence[str]) -> None:
    """Measure and print."""
    fix_order_of_sums()  # for all runs alike
    found = registry()
    for name in names or list(SIZES):
        print(f"{name}: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
        base: tuple[float, float] | None = None
        for staleness in STALENESSES[name]:
            for newest in (False, True) if staleness else (False,):
                clock = run(found, name, staleness, newest=newest)
                seconds, cpu = clock.per_step()
                base = base or (seconds, cpu)
                weights = "turns" if not staleness else "newest" if newest else "pinned"
                said = f"{base[0] / seconds:5.2f}x a step" if name == "waiting" else f"{cpu / base[1]:5.2f}x the CPU"
                print(f"  S={staleness} {weights:6}  {said}  {cpu * 1e3:6.0f} ms of CPU  staleness {clock.stale:.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
