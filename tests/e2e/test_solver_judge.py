"""Two roles in one run, each with its own estimator and loss, chosen by the user."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks, commands

import rllm.cli.train
from rllm.api.trainer import AgentTrainer
from rllm.cli.configuring import plan_for, read_request
from rllm.planning.plan import RunPlan
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

GUIDE = "docs/how-to/two-roles.md"
TWO_ROLES = "rllm.workflow.name=solver_judge"


def by_role(plan: RunPlan) -> dict[str, tuple[str, str]]:
    return {
        role: (plan.estimators.get(role).plugin.name, plan.losses.get(role).plugin.name) for role in ("solver", "judge")
    }


CHOSEN = {"solver": ("grpo", "ppo"), "judge": ("reinforce", "ppo")}


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["rllm.algorithm.estimator_map={solver: grpo, judge: {name: reinforce, loss_fn: ppo}}"], []),
        ([], ["solver=grpo", "judge={name: reinforce, loss_fn: ppo}"]),
        (["rllm.algorithm.loss_map.judge=ppo"], ["solver=grpo", "judge=reinforce"]),
    ],
    ids=["word", "flags", "flags and word"],
)
def test_command_line_chooses_estimator_and_loss_by_role(words: list[str], flags: list[str]) -> None:
    plan = plan_for(read_request(["sum", TWO_ROLES, *words], None, [], {"role_estimator": flags}))
    assert plan.workflow.registered.qualified_name == "rllm/solver_judge"
    assert by_role(plan) == CHOSEN
    assert plan.warnings == ()
    # The user's workflow replaces the environment's, whose recipe is still used.
    assert plan.composed.origins["rllm.workflow.name"] == "command line"
    assert plan.composed.origins["rllm.rollout.n"] == "recipe sum local/tiny"


def test_commands_and_python_of_guide_choose_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plans: list[RunPlan] = []
    monkeypatch.setattr(rllm.cli.train, "show_plan", lambda plan, keys: plans.append(plan))
    for command in commands(GUIDE):
        rllm.cli.train.train.main([*shlex.split(command)[2:], "--dry-run"], standalone_mode=False)
    assert [plan.workflow.plugin.name for plan in plans] == ["solver_judge"] * 3
    assert [by_role(plan) == CHOSEN for plan in plans] == [True, False, True]

    def note(trainer: AgentTrainer) -> None:
        trainer.trainer.shutdown()
        plans.append(trainer.trainer.plan)

    monkeypatch.setattr(AgentTrainer, "train", note)
    (python,) = blocks(GUIDE, "python")
    exec(python, {})
    assert by_role(plans[-1]) == CHOSEN


class Recorded:
    """A policy loss that stores the rows and advantages of its tokens."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.advantages: list[float] = []

    def __call__(self, inputs: Any, params: NoParams) -> Any:
        self.rows += inputs.row_ids.tolist()
        self.advantages += inputs.advantages.tolist()
        return -(inputs.logprobs - inputs.old_logprobs).exp() * inputs.advantages


@pytest.mark.smoke
def test_role_tokens_use_the_roles_estimator_and_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: Registry, carry_out: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    registry, losses = Registry.load(), {"solver": Recorded(), "judge": Recorded()}
    registry.add(worlds.get("environment", "lucky").plugin)
    for role, loss in losses.items():
        registry.add(LossPlugin(name=f"of_{role}", summary="For tests.", load=lambda loss=loss: loss))
    settings = {
        "rllm.env.name": "lucky",
        "rllm.workflow.name": "solver_judge",
        # With many answers a random model's pick is readable often enough.
        "rllm.workflow.workflow_args": {"n_solvers": 8, "judge_prompt": "{answers}"},
        "rllm.algorithm.estimator_map": {
            "solver": {"name": "grpo", "loss_fn": "of_solver"},
            "judge": {"name": "reinforce", "loss_fn": "of_judge"},
        },
        "rllm.rollout.n": 40,
        "data.max_response_length": 4,
        "data.train_batch_size": 2,
        "rllm.trainer.total_batches": 1,
        "rllm.trainer.val_before_train": False,
        "rllm.trainer.test_freq": -1,
    }
    step = carry_out(plan_of(settings, registry)).steps[0]
    # One row per trajectory: each has one turn.
    assert step.batch.trajectory.tolist() == list(range(2 * 40 * (8 + 1)))
    expected: dict[str, dict[int, float]] = {"solver": {}, "judge": {}}
    for group in step.trajectory_groups:
        rewards = np.array([trajectory.reward for trajectory in group.trajectories])
        centered = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        values = centered if group.group_role == "solver" else rewards
        first = sum(len(part) for part in expected.values())
        expected[group.group_role] |= dict(enumerate(values.tolist(), start=first))
    for role, loss in losses.items():
        assert set(loss.rows) == expected[role].keys()
        said = [t.response_length for g in step.trajectory_groups for t in g.trajectories if t.name == role]
        assert len(loss.rows) == sum(said)
        assert loss.advantages == pytest.approx([expected[role][row] for row in loss.rows], abs=1e-6)
        assert len(set(loss.advantages)) > 2, "these rewards would show nothing"


@pytest.mark.long
def test_both_roles_learn_on_sum_from_random_weights(rllm_here: Any, tmp_path: Path) -> None:
    roles = "rllm.algorithm.estimator_map={solver: grpo, judge: {name: reinforce, loss_fn: ppo}}"
    words = (TWO_ROLES, "rllm.workflow.workflow_args.judge_prompt='{task} {answers}'", roles)
    length = ("rllm.trainer.total_batches=45", "rllm.trainer.test_freq=-1", "rllm.record=off")
    assert rllm_here("train", "sum", *words, *length).returncode == 0
    lines = (tmp_path / "runs" / "rllm-training" / "sum-1" / "metrics.jsonl").read_text().splitlines()
    history = [metrics for line in lines if "reward/solver/mean" in (metrics := json.loads(line))]
    assert len(history) == 45
    for role in ("solver", "judge"):
        curve = [metrics[f"reward/{role}/mean"] for metrics in history]
        assert np.mean(curve[:5]) < 0.05
        assert np.mean(curve[-5:]) > 0.25
    validation = json.loads(lines[-1])
    assert validation["val/sum/reward/judge"] == validation["val/sum/pass@1"] > 0.25
