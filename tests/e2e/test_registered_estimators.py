"""The worked examples of rLLM's documentation, registered in a program or in a module, train by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_printed

from rllm.api.classic import per_group
from rllm.api.trainer import AgentTrainer
from rllm_core import register_rllm_adv_estimator
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup
from rllm_core.plugins import in_process
from rllm_core.rollout.conversation import Conversation

from .conftest import Steps

ROWS = [{"number": number} for number in range(4)]


def median_baseline(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
    """Return the reward minus the group's median."""
    advantages = [group - np.median(group) for group in rewards]
    return advantages, advantages


def role_mean_baseline(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
    """Return the reward minus the mean of the role's rewards in this step."""
    mean = np.concatenate(rewards).mean()
    advantages = [group - mean for group in rewards]
    return advantages, advantages


EXAMPLES = {"median_baseline": median_baseline, "role_mean_baseline": role_mean_baseline}


class Talker(Workflow):
    """Two roles with answers of one to three tokens in one or two turns. The reward depends on the response."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectories = []
        for role, turns in (("solver", 2), ("judge", 1)):
            trajectory = Trajectory(role)
            conversation = Conversation(self.context, trajectory, session=f"{uid}{role}#{self.context.sampling.seed}")
            try:
                for _ in range(turns):
                    conversation.add_observation(str(task["number"]))
                    await conversation.generate()
            finally:
                await conversation.close()
            trajectory.reward = float(sum(int(step.response_ids.sum()) for step in trajectory.steps) % 7)
            trajectories.append(trajectory)
        return Episode(id=uid, trajectories=trajectories)


@pytest.fixture(autouse=True)
def _examples_in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name, function in EXAMPLES.items():
        register_rllm_adv_estimator(name)(function)
    yield
    for name in EXAMPLES:
        in_process.forget("estimator", name)


def trained(algorithm: dict[str, Any], **arguments: Any) -> TrainStep:
    """Return the last of two steps."""
    config = {
        "rllm": {
            "rollout": {"n": 4},
            "trainer": {"total_batches": 2, "val_before_train": False, "test_freq": -1},
            "algorithm": algorithm,
        },
        "data": {"train_batch_size": 2, "max_response_length": 3},
        "sampling": {"train": {"temperature": 1.5}},
    }
    steps = Steps()
    AgentTrainer(
        config=config,
        workflow_class=Talker,
        train_dataset=ROWS,
        observers=[steps],
        overwrite=True,
        **arguments,
    ).train()
    return steps.steps[-1]


def advantages_of(step: TrainStep, role: str) -> list[tuple[TrajectoryGroup, list[float]]]:
    """Return each trajectory's advantage, which all its tokens have, for a role and group by group."""
    batch = step.filled_batch
    assert batch.advantages is not None
    inputs = build_estimator_input(batch, np.ones(len(batch.groups), np.bool_))
    by_trajectory = []
    for start, end in zip(inputs.token_offsets[:-1], inputs.token_offsets[1:], strict=True):
        (value,) = set(batch.advantages[start:end][batch.loss_mask[start:end]].tolist())
        by_trajectory.append(value)
    values = per_group(np.array(by_trajectory), inputs.group_offsets)
    return [
        (group, each.tolist()) for group, each in zip(batch.groups, values, strict=True) if group.group_role == role
    ]


def rewards_of(group: TrajectoryGroup) -> Any:
    return np.array([trajectory.reward for trajectory in group.trajectories])


def test_the_median_of_the_group_is_a_baseline_that_trains_by_name() -> None:
    step = trained({"adv_estimator": "median_baseline"})
    for role in ("solver", "judge"):
        for group, advantages in advantages_of(step, role):
            assert advantages == (rewards_of(group) - np.median(rewards_of(group))).tolist()
    assert step.metrics["actor/grad_norm"] > 0
    assert step.weight_version == 2


def test_mean_of_role_trains_by_name_in_one_role() -> None:
    step = trained(
        {"adv_estimator": "reinforce"},
        traj_group_adv_estimator_map={"solver": ("role_mean_baseline", "importance_sampling")},
    )
    solver = advantages_of(step, "solver")
    mean = np.concatenate([rewards_of(group) for group, _ in solver]).mean()
    for group, advantages in solver:
        assert np.allclose(advantages, rewards_of(group) - mean, rtol=1e-6)
    for group, advantages in advantages_of(step, "judge"):
        assert advantages == rewards_of(group).tolist()


def test_the_config_reaches_a_classic_estimator_that_says_what_it_reads() -> None:
    key = "rllm.algorithm.norm_adv_by_std_in_grpo"
    seen: list[Any] = []

    @register_rllm_adv_estimator("reads_config", config_keys={key})
    def reads_config(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
        seen.append((algorithm_config.norm_adv_by_std_in_grpo, algorithm_config.loss_fn, sorted(kwargs)))
        return rewards, rewards

    try:
        trained({"adv_estimator": "reads_config", "norm_adv_by_std_in_grpo": False, "loss_fn": "ppo"})
    finally:
        in_process.forget("estimator", "reads_config")
    assert seen == [(False, "ppo", ["norm_adv_by_std_in_grpo", "traj_groups"])] * 4, "two roles in two steps"


MODULE = """
import numpy as np
from rllm_core import register_rllm_adv_estimator

@register_rllm_adv_estimator("median")
def median(rewards, algorithm_config, **kwargs):
    advantages = [group - np.median(group) for group in rewards]
    return advantages, advantages
"""


@pytest.mark.long
def test_module_next_to_the_config_registers_chosen_estimator(forked_rllm: Any, tmp_path: Path) -> None:
    (tmp_path / "my_estimators.py").write_text(MODULE)
    (tmp_path / "my.yaml").write_text("rllm: {plugins: {import_modules: [my_estimators]}}\n")
    words = ("guess", "--config", "my.yaml", "rllm.rollout.n=2", "rllm.trainer.val_before_train=false")
    short = ("rllm.trainer.test_freq=-1", "rllm.trainer.total_batches=1")
    done = forked_rllm("train", *words, *short, "--estimator", "median")
    assert done.returncode == 0, done.stderr
    assert '"in-process"' in (tmp_path / "runs/rllm-training/default/plugins.json").read_text()

    resumed = forked_rllm("train", "--resume", "rllm.trainer.total_batches=2")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step 1 of 2" in resumed.stdout

    (tmp_path / "my_estimators.py").unlink()
    failed = forked_rllm("train", "--resume", "rllm.trainer.total_batches=3")
    assert failed.returncode == 2
    values = ("`rllm.plugins.import_modules`", "'my_estimators'", "ModuleNotFoundError: ")
    check_printed(failed.stderr, "module-not-found", *values)
