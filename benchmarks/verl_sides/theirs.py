"""The other side: verl's own trainer, `verl.trainer.main_ppo`, on verl's sections of our configuration.

python theirs.py WORKLOAD, started by benchmarks/verl.py

It is the trainer of ``trainer.use_v1=false``, because the other one needs TransferQueue, which verl does not install.
"""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import Any

import ray
from hydra import compose as compose_of_verl, initialize_config_module
from omegaconf import OmegaConf
from turns import Turns
from workload import LARGEST, Workload

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm_core.plugins.registry import Registry
from rllm_verl.model import open_model
from rllm_verl.native import native_config


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return the reward of the environment `sum`. verl loads this function from this file."""
    return float(solution_str.strip() == ground_truth)


def configured(workload: Workload) -> Any:
    """Return verl's configuration, with our sections of it and the other keys that its trainer needs."""
    settings = compose(Registry.load(), layers_from_overrides(workload.words)).backend_config
    model = open_model(workload.model, seed=0, directory=Path(workload.directory), without_thinking=False)
    ours = native_config(settings, model, workload.steps)
    with initialize_config_module("verl.trainer.config", version_base=None):
        whole = compose_of_verl("ppo_trainer")
    OmegaConf.set_struct(whole, False)
    data = written_prompts(workload)
    additional = {
        "data": {
            "train_files": data,
            "val_files": data,
            "train_batch_size": workload.prompts,
            "max_prompt_length": workload.max_prompt_length,
            "max_response_length": workload.max_response_length,
            "dataloader_num_workers": 0,
        },
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": workload.prompts // workload.minibatches},
            "rollout": {"agent": {"num_workers": 1}},
        },
        "algorithm": {"adv_estimator": "grpo"},
        "reward": {"num_workers": 1, "custom_reward_function": {"path": __file__}},
        "trainer": {
            "use_v1": False,
            "logger": [],
            "total_training_steps": workload.steps,
            "total_epochs": workload.steps,
            "save_freq": -1,
            "test_freq": -1,
            "val_before_train": False,
            "resume_mode": "disable",
            "default_local_dir": f"{workload.directory}/theirs",
        },
        "ray_kwargs": {"ray_init": {"log_to_driver": False, "logging_level": "ERROR"}},
    }
    sections = {name: ours[name] for name in ("actor_rollout_ref", "trainer", "ray_kwargs")}
    return OmegaConf.merge(whole, sections, additional)


def written_prompts(workload: Workload) -> str:
    """Write a data file with the tasks of the environment `sum`."""
    import pandas as pd

    numbers = range(LARGEST + 1)
    rows = [
        {
            "data_source": "sum",
            "prompt": [{"role": "user", "content": workload.prompt.replace("{a}", str(a)).replace("{b}", str(b))}],
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": a * len(numbers) + b},
        }
        for a in numbers
        for b in numbers
    ]
    file = f"{workload.directory}/sums.parquet"
    pd.DataFrame(rows).to_parquet(file)
    return file


def measured(runner: type) -> type:
    """Return verl's runner, which reports its steps. It runs in its own process."""

    class MeasuredRunner(runner):  # type: ignore[misc, valid-type]
        def run(self, config: Any) -> None:
            from verl.utils.tracking import Tracking

            turns = Turns()
            turns.time_transfer()
            log = Tracking.log

            @wraps(log)
            def logged(tracking: Any, data: dict[str, Any], step: int, *others: Any) -> None:
                log(tracking, data, step, *others)
                turns.end_step(
                    step=data["timing_s/step"],
                    generation=data["timing_s/gen"] - turns.transfer_seconds("sleep_replicas"),
                    tokens=data["perf/total_num_tokens"],
                )

            Tracking.log = logged
            super().run(config)

    return MeasuredRunner


def main() -> None:
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.main_ppo_v0 import TaskRunner

    config = configured(Workload.read(sys.argv[1]))
    runner = measured(TaskRunner.__ray_metadata__.modified_class)
    try:
        run_ppo(config, task_runner_class=ray.remote(runner))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
