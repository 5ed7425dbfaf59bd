"""Advantages that a workflow computes itself, such as distillation's, next to estimated ones in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.api.trainer import UnifiedTrainer
from rllm_core.algorithms.columns import mark_tokens
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.rollout.conversation import Conversation

from .conftest import Steps

ROWS = [{"a": a, "b": b} for a in range(2) for b in range(2)]


def teacher_logprobs(step: Step, answer: str) -> Any:
    """Return the teacher's log-probs of the student's tokens, (n_response,). It is certain only of the first token."""
    first = 0.99 if step.text.startswith(answer) else 0.001
    return np.log([first, *[0.1] * (len(step.response_ids) - 1)])


class Distilling(Workflow):
    """A student that learns from a teacher, token by token, and a judge that learns from its reward."""

    def __init__(self, context: Any, gives: bool = True, turns: int = 1, judged: bool = True) -> None:
        super().__init__(context)
        self._gives, self._turns = gives, turns
        self._roles = ("student", "judge") if judged else ("student",)

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        answer = str(task["a"] + task["b"])
        trajectories = [Trajectory(role) for role in self._roles]
        for trajectory in trajectories:
            conversation = Conversation(self.context, trajectory, f"{uid}{trajectory.name}")
            try:
                for _ in range(self._turns):
                    conversation.add_observation(f"{task['a']}+{task['b']}")
                    step = await conversation.generate()
                    if trajectory.name == "student" and self._gives:
                        step.advantage = teacher_logprobs(step, answer) - step.logprobs
            finally:
                await conversation.close()
            trajectory.reward = float(trajectory.steps[-1].text.startswith(answer))
        return Episode(id=uid, trajectories=trajectories, is_correct=trajectories[0].reward == 1.0)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(
    algorithm: dict[str, Any],
    steps: int = 1,
    more: Any = None,
    rollouts: int = 4,
    backend_args: Any = None,
    **workflow_args: Any,
) -> list[TrainStep]:
    trainer = {"total_batches": steps, "val_before_train": False, "test_freq": -1}
    sections = {"rollout": {"n": rollouts}, "trainer": trainer, "algorithm": algorithm, **(more or {})}
    config = {"rllm": sections, "data": {"train_batch_size": 4, "max_response_length": 2}}
    kept = Steps()
    run = UnifiedTrainer(
        config=config,
        workflow_class=Distilling,
        workflow_args=workflow_args,
        backend_args=backend_args,
        train_dataset=ROWS,
        observers=[kept],
        overwrite=True,
    )
    try:
        run.fit()
    finally:
        run.shutdown()
    return kept.steps


def sampled_advantages(step: TrainStep, role: str) -> Any:
    batch = step.filled_batch
    assert batch.advantages is not None
    of_role = np.array([group.group_role == role for group in batch.groups])
    return batch.advantages[mark_tokens(batch, of_role) & batch.loss_mask]


def said_by_workflow(step: TrainStep) -> Any:
    groups = [group for group in step.trajectory_groups if group.group_role == "student"]
    steps = [each for group in groups for trajectory in group.trajectories for each in trajectory.steps]
    return np.concatenate([np.asarray(each.advantage) for each in steps]).astype(np.float32)


KEEP = {"use_precomputed_advantage": True, "adv_estimator": "reinforce"}


@pytest.mark.parametrize("by_steps", [False, True])
def test_distilled_advantages_are_exact_next_to_estimated_role(by_steps: bool) -> None:
    stepwise = {"stepwise_advantage": {"enable": by_steps, "normalize_by_steps": by_steps}}
    (step,) = trained(KEEP, more=stepwise, turns=2)
    student, judge = sampled_advantages(step, "student"), sampled_advantages(step, "judge")
    assert student.tobytes() == said_by_workflow(step).tobytes()
    assert len(set(student.tolist())) > 2
    assert set(judge.tolist()) == {0.0, 0.5 if by_steps else 1.0}
    assert step.metrics["advantage/precomputed"] == 0.5
    assert step.metrics["advantage/precomputed_mismatched"] == 0.0
    assert step.metrics["actor/grad_norm"] > 0


def test_advantages_without_the_switch_are_estimated_with_warning(capsys: pytest.CaptureFixture[str]) -> None:
    steps = trained({"adv_estimator": "reinforce"}, steps=2)
    assert set(sampled_advantages(steps[0], "student").tolist()) <= {0.0, 1.0}
    assert [step.metrics["advantage/precomputed_ignored"] for step in steps] == [0.5, 0.5]
    assert capsys.readouterr().err.count("warning: 50% ") == 1


def test_missing_precomputed_advantages_are_reported_with_the_switch(capsys: pytest.CaptureFixture[str]) -> None:
    steps = trained(KEEP, steps=2, gives=False)
    assert [step.metrics["advantage/precomputed"] for step in steps] == [0.0, 0.0]
    line = "use_precomputed_advantage is true, and no group of this step has precomputed advantages"
    assert capsys.readouterr().err.count(line) == 1


def test_mismatch_option_without_the_switch_is_rejected() -> None:
    switch = "rllm.algorithm.use_precomputed_advantage is false"
    with expect_error(ConfigError, "unused-key", "rllm.algorithm.on_precomputed_mismatch", switch):
        trained({"on_precomputed_mismatch": "zero"})


@pytest.mark.nightly
def test_student_learns_from_precomputed_advantages_only(tmp_path: Path) -> None:
    step = trained(KEEP, steps=40, backend_args={"training": {"learning_rate": 0.003}}, rollouts=8, judged=False)[-1]
    assert step.metrics["advantage/precomputed"] == 1.0
    lines = (tmp_path / "runs/rllm-training/run-1/metrics.jsonl").read_text().splitlines()
    solved = [line["batch/solved"] for line in map(json.loads, lines) if "batch/solved" in line]
    assert np.mean(solved[-10:]) > np.mean(solved[:10]) + 0.3
