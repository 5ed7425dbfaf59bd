"""One side: `rllm train` with the backend verl, as a user runs it.

python ours.py WORKLOAD, started by benchmarks/verl.py
"""

from __future__ import annotations

import sys

from turns import Turns
from workload import Workload

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry


class StepEnds(Observer):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_batch_end(self, step: TrainStep) -> None:
        seconds = step.timing_dict
        self._turns.end_step(
            step=sum(seconds.values()) - seconds["log"],
            generation=seconds["generate"],
            tokens=step.metrics["batch/tokens"],
        )


def main() -> None:
    workload = Workload.read(sys.argv[1])
    turns = Turns()
    turns.time_transfer()
    registry = Registry.load()
    plan = make_plan(compose(registry, layers_from_overrides(workload.words)), registry)
    directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
    tasks = load_tasks(plan, "train")
    TrainingLoop(plan, directory, train_tasks=tasks, val_tasks=(), observers=[StepEnds(turns)]).fit()
    directory.close()


if __name__ == "__main__":
    main()
