"""The first day on GPUs: five steps of each way to train, on one device and on eight: ``make smoke-gpu``.

    python benchmarks/smoke_gpu.py                 # all runs for which the machine has devices and packages
    python benchmarks/smoke_gpu.py --only local    # the runs with such a name
    python benchmarks/smoke_gpu.py --device cpu --only float32    # tries the script itself, anywhere

Each run prints its values and the expected ones. A failed run prints the cause, its likely reason, its command and the
end of its log, and the other runs continue. Exit codes: 0 if all runs are as expected, 1 if one is not, 2 if there is
no device and nothing ran.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from heads_of_32 import save_model
from smoke_sides.results import last_lines, memory_left, metrics, problems
from smoke_sides.running import Outcome, run
from smoke_sides.scenarios import SAVED, SCENARIOS, SEVERAL, Scenario

from rllm_backend_kit.machine import Machine, examine_machine, read_machine

NOTHING_RAN = 2
GIVEN_BACK = 30.0
"""Seconds in which a device's memory is free after the end of its processes."""
NEEDED = {"local": ("rllm_local",), "verl": ("rllm_verl", "vllm")}
INSTALL = {"local": "pip install rllm 'rllm-local[lora]'", "verl": "pip install rllm 'rllm-verl[vllm]'"}


def missing(scenario: Scenario, device: str, devices: int) -> str | None:
    """Return why a run cannot be made here. None if it can."""
    if scenario.several and devices < 2:
        return f"needs 2 to {SEVERAL} devices, and there is {devices}"
    modules = [name for name in NEEDED[scenario.backend] if not (device == "cpu" and name == "vllm")]
    lacking = [name for name in modules if find_spec(name) is None]
    return f"needs {', '.join(lacking)}: {INSTALL[scenario.backend]}" if lacking else None


def no_device(machine: Machine) -> str | None:
    """Return why no run on a GPU can be made. None if one can."""
    errors = [finding for finding in examine_machine(machine) if finding.severity == "error"]
    if not errors:
        return None
    said = [finding.printed() for finding in errors]
    return "\n".join(["No GPU can be trained on here; nothing was run.", *said])


def make(scenario: Scenario, words: Sequence[str], directory: Path) -> Outcome:
    """Make a run, in two parts if it must be killed."""
    if not scenario.killed:
        return run(words, directory)
    first = run(words, directory, kill_behind=SAVED)
    return first if first.left else run([*words, "--resume"], directory)


def free_memory(at_least: Sequence[int] = ()) -> list[int]:
    """Return the free bytes of each device, after a wait until they are about as before."""
    deadline = time.monotonic() + GIVEN_BACK
    while True:
        free = [gpu.free for gpu in read_machine().gpus]
        if not at_least or not any(memory_left(at_least, free)) or time.monotonic() > deadline:
            return free
        time.sleep(1)


def judge(scenario: Scenario, device: str, devices: int, directory: Path) -> bool:
    """Make a run and print its result. Return True if all is as expected."""
    words = scenario.command(str(directory / "model"), device, devices)
    before = free_memory()
    outcome = make(scenario, words, directory / scenario.name.replace(", ", "-").replace(" ", "-"))
    wrong = [*problems(scenario, outcome), *memory_left(before, free_memory(before))]
    if not wrong:
        print(f"ok      {scenario.name} ({outcome.seconds:.0f} s): {metrics(scenario, outcome)}", flush=True)
        return True
    print(f"FAILED  {scenario.name} ({outcome.seconds:.0f} s):")
    for each in wrong:
        print(f"    - {each}")
    print(
        f"    command: rllm {shlex.join(words)}\n    the end of {outcome.log}:\n{last_lines(outcome.log)}", flush=True
    )
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs with this in their name")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    machine = read_machine()
    if options.device == "cuda" and (why := no_device(machine)) is not None:
        print(why)
        return NOTHING_RAN
    present = min(SEVERAL, machine.visible) if options.device == "cuda" else 1
    directory = Path(tempfile.mkdtemp(prefix="rllm-smoke-"))
    save_model(directory / "model")
    results = []
    for scenario in (each for each in SCENARIOS if options.only in each.name):
        if (why := missing(scenario, options.device, present)) is not None:
            print(f"skipped {scenario.name}: {why}")
            continue
        results.append(judge(scenario, options.device, present if scenario.several else 1, directory))
    print(f"{sum(results)} of {len(results)} runs are as expected; everything is in {directory}")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
