"""The table of simulated gains, next to published ones."""

from __future__ import annotations

import numpy as np
from async_sides.events import Simulated, Simulation, Take, as_completed, in_order
from async_sides.published import ASYNC_STEP, GAINS, GENERATE, GROUP, STEP, TASKS, Devices, drawn_lengths

GPUS = (8, 64, 256, 1024)
SPLITS = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Shares of the GPUs that sample."""
STALENESSES = (1, 2, 4)
UPDATES, SKIPPED = 40, 8
"""Updates of a run, and the first updates that are not counted, because batches ahead begin together there."""
ORDERS: dict[str, Take] = {"in order": in_order, "as completed": as_completed}


def print_table() -> None:
    """Simulate and print."""
    batches = UPDATES + max(STALENESSES) + 1
    devices = Devices(drawn_lengths(batches * TASKS * GROUP))
    print("Seconds of a synchronous step, published and fitted:")
    for gpus, seconds in STEP.items():
        print(
            f"  {gpus:4} GPUs: {seconds:.0f} and {devices.step(gpus):.0f}, of it sampling {GENERATE[gpus]:.0f} and "
            f"{devices.generate(gpus):.0f}"
        )
    print("Half of the GPUs for each side, gain published (as completed, threshold 0.5) and simulated with S=1:")
    for gpus, seconds in ASYNC_STEP.items():
        found = {order: _simulated(devices, gpus, 0.5, 1, take) for order, take in ORDERS.items()}
        gains = [f"{order} {STEP[gpus] / made.seconds_per_step(SKIPPED):.2f}" for order, made in found.items()]
        print(f"  {gpus:4} GPUs: {STEP[gpus] / seconds:.2f}; {', '.join(gains)}")
    print(
        "Gain over a synchronous step. By overlap: over a synchronous step whose update is as fast as on separate GPUs."
    )
    print("| GPUs | order | S | sampling | gain | by overlap | updates above S | oldest | trained length |")
    print("|---|---|---|---|---|---|---|---|---|")
    for gpus in GPUS:
        for order, take in ORDERS.items():
            for staleness in STALENESSES:
                print(_row(devices, gpus, order, take, staleness), flush=True)
    for system, gain, where in GAINS:
        print(f"Published: {system} {gain} ({where})")


def _row(devices: Devices, gpus: int, order: str, take: Take, staleness: int) -> str:
    """Return the row of the table for the best split."""
    tried = {split: _simulated(devices, gpus, split, staleness, take) for split in SPLITS}
    split, made = min(tried.items(), key=lambda each: each[1].seconds_per_step(SKIPPED))
    seconds = made.seconds_per_step(SKIPPED)
    synchronous = devices.generate(gpus) + devices.world(gpus, gpus).update
    above = np.mean([stale > staleness for stale in made.stale])
    length = np.mean(made.lengths) / devices.lengths[: UPDATES * TASKS * GROUP].mean()
    gains = f"{devices.step(gpus) / seconds:.2f} | {synchronous / seconds:.2f}"
    ages = f"{above:.0%} | {max(made.stale)}"
    return f"| {gpus} | {order} | {staleness} | {split:.3g} | {gains} | {ages} | {length:.3f} |"


def _simulated(devices: Devices, gpus: int, split: float, staleness: int, take: Take) -> Simulated:
    world = devices.world(gpus * split, gpus * (1 - split))
    return Simulation(world, staleness, take, fixed_version=False).run(UPDATES)
