"""Advantages that a workflow computes itself, such as distillation's, next to estimated ones in one run."""

from __future__ import annotations

import gzip
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
from rllm_core.data.codec import episode_from_json
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import AdvantageError, ConfigError
from rllm_core.rollout.conversation import Conversation

from .conftest import Steps

ROWS = [{"a": a, "b": b} for a in range(2) for b in range(2)]


def teacher_logprobs(step: Step, answer: str) -> Any:
    """Return the teacher's log-probs of the student's tokens, (n_response,). It is certain only of the first token."""
    first = 0.99 if step.text.startswith(answer) else 0.001
    return np.log([first, *[0.1] * (len(step.response_ids) - 1)])


class Distilling(Workflow):
    """A student that learns from a teacher, token by token, and a judge that learns from its reward."""

    def __init__(self, context: Any, spoil: str = "", turns: int = 1, judged: bool = True) -> None:
        super().__init__(context)
        self._spoil = spoil
        self._turns = turns
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
                    if trajectory.name == "student":
                        step.advantage = self._spoilt(teacher_logprobs(step, answer) - step.logprobs, uid)
            finally:
                await conversation.close()
            trajectory.reward = float(trajectory.steps[-1].text.startswith(answer))
        return Episode(id=uid, trajectories=trajectories, is_correct=trajectories[0].reward == 1.0)

    def _spoilt(self, advantage: Any, uid: str) -> Any:
        if self._spoil == "none":
            return None
        if not uid.endswith(":1"):
            return advantage
        return {"": advantage, "long": [*advantage, 0.5], "missing": None, "nan": advantage * np.nan}[self._spoil]


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
    config = {
        "rllm": {
            "rollout": {"n": rollouts},
            "trainer": {"total_batches": steps, "val_before_train": False, "test_freq": -1},
            "algorithm": algorithm,
            **(more or {}),
        },
        "data": {"train_batch_size": 4, "max_response_length": 2},
    }
    kept = Steps()
    trainer = UnifiedTrainer(
        config=config,
        workflow_class=Distilling,
        workflow_args=workflow_args,
        backend_args=backend_args,
        train_dataset=ROWS,
        observers=[kept],
        overwrite=True,
    )
    try:
        trainer.fit()
    finally:
        trainer.shutdown()
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


@pytest.mark.parametrize("turns", [1, 2])
def test_distilled_advantages_are_exact_next_to_estimated_role(turns: int) -> None:
    (step,) = trained(KEEP, turns=turns)
    student, judge = sampled_advantages(step, "student"), sampled_advantages(step, "judge")
    assert student.tobytes() == said_by_workflow(step).tobytes()
    assert len(set(student.tolist())) > 2
    assert set(judge.tolist()) == {0.0, 1.0}
    assert step.metrics["advantage/precomputed"] == 0.5
    assert step.metrics["advantage/precomputed_mismatched"] == 0.0
    assert step.metrics["actor/grad_norm"] > 0


def test_steps_weigh_as_the_workflow_said_when_estimated_advantages_are_divided_by_steps() -> None:
    by_steps = {"stepwise_advantage": {"enable": True, "normalize_by_steps": True}}
    (step,) = trained(KEEP, more=by_steps, turns=2)
    assert sampled_advantages(step, "student").tobytes() == said_by_workflow(step).tobytes()
    assert set(sampled_advantages(step, "judge").tolist()) <= {0.0, 0.5}


def test_without_the_switch_they_are_estimated_again_with_warning(capsys: pytest.CaptureFixture[str]) -> None:
    steps = trained({"adv_estimator": "reinforce"}, steps=2)
    assert set(sampled_advantages(steps[0], "student").tolist()) <= {0.0, 1.0}
    assert [step.metrics["advantage/precomputed_ignored"] for step in steps] == [0.5, 0.5]
    assert capsys.readouterr().err.count("warning: 50% ") == 1


def test_that_no_workflow_brings_any_is_said_where_they_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    steps = trained(KEEP, steps=2, spoil="none")
    assert [step.metrics["advantage/precomputed"] for step in steps] == [0.0, 0.0]
    line = "use_precomputed_advantage is true, and no group of this step has precomputed advantages"
    assert capsys.readouterr().err.count(line) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("spoil", "value"),
    [("long", "response token"), ("missing", "response token"), ("nan", "NaN")],
)
def test_an_advantage_that_does_not_fit_stops_the_run_or_becomes_zero(spoil: str, value: str) -> None:
    with expect_error(AdvantageError, "bad-precomputed-advantages", "step 0", "trajectory 1", ":1')", value):
        trained(KEEP, spoil=spoil)
    (step,) = trained({**KEEP, "on_precomputed_mismatch": "zero"}, spoil=spoil)
    assert step.metrics["advantage/precomputed_mismatched"] == 4.0, "one rollout of each task"
    groups = [group for group in step.trajectory_groups if group.group_role == "student"]
    lengths = [trajectory.response_length for group in groups for trajectory in group.trajectories]
    per_trajectory = np.split(sampled_advantages(step, "student"), np.cumsum(lengths)[:-1])
    for index, advantages in enumerate(per_trajectory):
        assert (index % 4 == 1) == (not advantages.any())


def test_they_are_kept_on_disk_as_they_were(tmp_path: Path) -> None:
    (step,) = trained(KEEP, more={"episode_logging": {"log_episodes": True}})
    (file,) = (tmp_path / "runs/rllm-training/default/episodes").iterdir()
    stored = [
        np.asarray(each.advantage)
        for episode in map(episode_from_json, map(json.loads, gzip.decompress(file.read_bytes()).splitlines()))
        for trajectory in episode.trajectories
        for each in trajectory.steps
        if each.advantage is not None
    ]
    ours = [
        np.asarray(each.advantage)
        for episode in step.generated
        for trajectory in episode.trajectories
        for each in trajectory.steps
        if each.advantage is not None
    ]
    assert [array.tobytes() for array in stored] == [array.tobytes() for array in ours]


def test_what_to_do_with_a_mismatch_is_no_question_without_the_switch() -> None:
    switch = "rllm.algorithm.use_precomputed_advantage is false"
    with expect_error(ConfigError, "unused-key", "rllm.algorithm.on_precomputed_mismatch", switch):
        trained({"on_precomputed_mismatch": "zero"})


@pytest.mark.long
def test_student_learns_from_precomputed_advantages_only(tmp_path: Path) -> None:
    step = trained(KEEP, steps=40, backend_args={"training": {"learning_rate": 0.003}}, rollouts=8, judged=False)[-1]
    assert step.metrics["advantage/precomputed"] == 1.0
    lines = (tmp_path / "runs/rllm-training/default/metrics.jsonl").read_text().splitlines()
    solved = [line["batch/solved"] for line in map(json.loads, lines) if "batch/solved" in line]
    assert np.mean(solved[-10:]) > np.mean(solved[:10]) + 0.3
