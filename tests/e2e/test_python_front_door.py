"""AgentTrainer and UnifiedTrainer: their arguments, their errors, and who runs the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from tests.tools.expecting import check_error, expect_error

from rllm.api.trainer import AgentTrainer, UnifiedTrainer, rLLMAdvantageEstimator
from rllm.config.saved_config import read_config
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Task, Trajectory, TrajectoryGroup
from rllm_core.errors import ConfigError, PipelineError, RllmError
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation
from rllm_core.rollout.workflows import SingleTurnWorkflow
from rllm_core.schema.algorithm_sections import CompactFilteringSection, TransformSection

from .conftest import Steps

ROWS = [{"a": a, "b": b} for a in range(2) for b in range(2)]


def quick(**trainer: Any) -> dict[str, Any]:
    """Return the configuration of a short run on `sum`."""
    trainer = {"total_batches": 2, "val_before_train": False, "test_freq": -1, **trainer}
    environment = {"name": "sum", "env_args": {"largest": 1}}
    return {
        "rllm": {"env": environment, "rollout": {"n": 2}, "trainer": trainer},
        "data": {"train_batch_size": 2, "max_response_length": 1},
    }


def without_environment(**trainer: Any) -> dict[str, Any]:
    config = quick(**trainer)
    del config["rllm"]["env"]
    return config


class Adder(Workflow):
    """Two roles: one answers, the other judges it. `log` is any object of this process."""

    def __init__(self, context: Any, log: Callable[[Any], None] = lambda task: None, bonus: float = 0.0) -> None:
        super().__init__(context)
        self._log, self._bonus = log, bonus

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectories = []
        for role in ("solver", "judge"):
            trajectory = Trajectory(role, reward=float(len(trajectories)) + self._bonus)
            conversation = Conversation(self.context, trajectory, session=f"{uid}{role}#{self.context.sampling.seed}")
            try:
                conversation.add_observation(f"{task['a']}+{task['b']}")
                await conversation.generate()
            finally:
                await conversation.close()
            trajectories.append(trajectory)
        self._log(task)
        return Episode(id=uid, trajectories=trajectories, is_correct=True)


class Hasty(Workflow):
    def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:  # type: ignore[override]
        return Episode(id=uid)


async def _later(*arguments: Any) -> list[TrajectoryGroup]:
    return []


def all_in_one(episodes: list[Episode], *sections: Any) -> list[TrajectoryGroup]:
    """Return one group with all trajectories."""
    made = [trajectory for episode in episodes for trajectory in episode.trajectories]
    return [TrajectoryGroup(group_id="all", trajectories=made)]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fit() -> Callable[..., Steps]:
    """Train with `UnifiedTrainer`, and return the steps."""

    def run(config: Any = None, **arguments: Any) -> Steps:
        steps = Steps()
        trainer = UnifiedTrainer(config=quick() if config is None else config, observers=[steps], **arguments)
        try:
            trainer.fit()
        finally:
            trainer.shutdown()
        return steps

    return run


def refusal(**arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        UnifiedTrainer(**{"config": quick(), **arguments})
    return caught.value


# Accepted configurations


def test_config_may_be_path_and_backend_args_win(fit: Any) -> None:
    OmegaConf.save(OmegaConf.create(quick()), "my.yaml")
    first, second = fit("my.yaml", backend_args={"training": {"learning_rate": 0.25, "warmup_steps_ratio": 0.0}}).steps
    assert first.metrics["actor/lr"] == second.metrics["actor/lr"] == 0.25
    assert (len(first.tasks), len(second.tasks)) == (2, 2)
    assert Path("runs/rllm-training/sum-1/config.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ({"backend_args": {"training": {"learning_rat": 1}}}, "unknown-key", ["`training.learning_rate`"]),
        ({"backend_cls": "vrel"}, "unknown-plugin", ["'verl'"]),
        ({"workflow_class": Steps}, "bad-plugin-spec", ["workflow_class", "<class"]),
        ({"workflow_args": {"gama": 1.0}}, "unknown-option", ["'gamma'"]),
        ({"traj_group_adv_estimator_map": {"solver": 3}}, "bad-choice", ["traj_group_adv_estimator_map", "3"]),
        ({"resume": False, "config": {}}, "no-environment", ["`rllm train"]),
        ({"train_dataset": 5}, "bad-task", ["train_dataset", "5"]),
        ({"traj_group_adv_estimator_map": ["grpo"]}, "not-a-mapping", ["traj_group_adv_estimator_map", "['grpo']"]),
        ({"traj_grouping_hook": "task_role"}, "bad-plugin-spec", ["traj_grouping_hook", "'task_role'"]),
        ({"traj_grouping_hook": _later}, "bad-plugin-spec", ["traj_grouping_hook", "coroutine"]),
        ({"workflow_class": Adder, "workflow_args": {1: 2}}, "key-not-text", ["workflow_args", "key 1"]),
        ({"backend_args": "training"}, "not-a-mapping", ["backend_args", "'training'"]),
        ({"workflow_class": Hasty}, "bad-plugin-spec", ["Hasty'>", "`run`", "coroutine"]),
        ({"workflow_class": Workflow}, "bad-plugin-spec", ["Workflow'>", " run"]),
    ],
)
def test_constructor_of_trainer_reports_errors(arguments: dict[str, Any], code: str, values: list[str]) -> None:
    check_error(refusal(**arguments), code, *values)
    assert not Path("runs").exists()


def test_an_unknown_argument_names_what_to_set() -> None:
    for argument, remedy in (
        ("agent_flow", "rllm.workflow.workflow_args.agent"),
        ("evaluator", "rllm.reward"),
        ("hooks", "workflow_class"),
    ):
        with expect_error(ConfigError, "unknown-argument", argument, remedy):
            AgentTrainer({}, **{argument: object()})


# Workflows, tasks, groups


def test_workflow_class_takes_arguments_and_estimators_by_role(fit: Any) -> None:
    tasks: list[Any] = []
    config = without_environment(total_batches=1)
    config["rllm"]["workflow"] = {"workflow_args": {"bonus": 0.5}}
    estimators = {"judge": rLLMAdvantageEstimator.REINFORCE, "solver": "grpo"}
    arguments = {"workflow_class": Adder, "workflow_args": {"log": tasks.append}, "train_dataset": ROWS}
    (step,) = fit(config, **arguments, traj_group_adv_estimator_map=estimators).steps
    assert len(tasks) == 2 * 2
    assert tasks[0].keys() == {"a", "b"}
    rewards = {group.group_role: group.trajectories[0].reward for group in step.trajectory_groups}
    assert rewards == {"solver": 0.5, "judge": 1.5}
    assert (step.metrics["advantage/judge/mean"], step.metrics["advantage/solver/mean"]) == (1.5, 0.0)


@pytest.mark.long
def test_saved_config_has_arguments_of_workflow_class(fit: Any) -> None:
    class Open(Adder):
        def __init__(self, context: Any, **options: Any) -> None:
            super().__init__(context)
            given.append(options)

    given: list[dict[str, Any]] = []
    log: list[Any] = []
    plain = {"bonus": 1, "text": "${not.a.key}", "nothing": None, "log": log, "table": {"a": [1.5, False]}}
    objects = {"function": len, "pair": (1, 2), "gap": "???", "name": "open", "number": np.float32(0.5)}
    fit(without_environment(), workflow_class=Open, workflow_args={**plain, **objects}, train_dataset=ROWS)
    assert given[0] == {**plain, **objects}
    assert given[0]["log"] is log
    saved = read_config("runs/rllm-training/run-1")["rllm"]["workflow"]
    assert saved["name"] == "in-process/open"
    assert saved["workflow_args"] == plain


def test_arguments_without_class_are_options_of_named_workflow() -> None:
    trainer = UnifiedTrainer(config=quick(), workflow_args={"timeout": 7.0})
    trainer.shutdown()
    assert trainer.plan.workflow.params.timeout == 7.0


@pytest.mark.long
def test_subclass_of_core_workflow_keeps_its_options(fit: Any) -> None:
    class Hurried(SingleTurnWorkflow):
        def __init__(self, context: Any, name: str, **options: Any) -> None:
            super().__init__(context, **options)
            self.role = name

    steps = fit(workflow_class=Hurried, workflow_args={"timeout": 1e-9, "name": "hurried"})
    assert steps.steps[0].metrics["batch/ended_timeout"] == 1
    config = quick(total_batches=1, experiment_name="chosen")
    config["rllm"]["env"] = {"name": "custom"}
    chosen = {"env_cls": "sum", "env_args": {"largest": 2}, "name": "hurried"}
    steps = fit(config, workflow_class=Hurried, workflow_args=chosen)
    assert {episode.data_source for episode in steps.steps[0].generated} == {"sum"}
    assert [group.group_role for group in steps.steps[0].trajectory_groups] == ["hurried", "hurried"]


@pytest.mark.long
@pytest.mark.parametrize("named", [False, True])
def test_dataset_gives_rows_or_tasks(fit: Any, named: bool) -> None:
    rows = [{**row, "id": f"row {index}", "data_source": "book"} for index, row in enumerate(ROWS)]
    dataset = rows if named else (Task(id=f"t{index}", data=row) for index, row in enumerate(ROWS))
    steps = fit(without_environment(), workflow_class=Adder, train_dataset=dataset, val_dataset=ROWS[:1])
    sources = {episode.task_id: episode.data_source for step in steps.steps for episode in step.generated}
    assert len(sources) == 4
    assert set(sources.values()) == {"book" if named else "default"}
    last = json.loads(Path("runs/rllm-training/run-1/metrics.jsonl").read_text().splitlines()[-1])
    assert "val/default/pass@1" in last


@pytest.mark.parametrize(
    "rows",
    [[{"a": 1}, 3], "tasks.jsonl", [{"id": "x"}, {"id": "x"}], [Task(id="x"), Task(id="x")]],
    ids=["a number", "a name", "one id twice", "one id of two tasks"],
)
@pytest.mark.parametrize("argument", ["train_dataset", "val_dataset"])
def test_bad_rows_are_refused_by_name(argument: str, rows: Any) -> None:
    assert str(refusal(**{argument: rows})).startswith(argument)


def test_value_cannot_be_given_twice() -> None:
    for split in ("train", "val"):
        config = {**quick(), "data": {f"{split}_dataset": {"name": "jsonl", "path": "tasks.jsonl"}}}
        error = refusal(config=config, **{f"{split}_dataset": ROWS})
        check_error(error, "conflicting-keys", f"`data.{split}_dataset` is ", f" {split}_dataset ")
    config = without_environment()
    config["rllm"]["workflow"] = {"workflow_args": {"bonus": 0.5}}
    error = refusal(config=config, workflow_class=Adder, workflow_args={"bonus": 1.0}, train_dataset=ROWS)
    given = "`rllm.workflow.workflow_args.bonus` is 0.5 (from the Python config)"
    check_error(error, "conflicting-keys", given, "workflow_args['bonus']")


@pytest.mark.parametrize(
    ("key", "value", "workflow"),
    [
        ("engine_args", {"size": 1}, Adder),
        ("overlong_filter", True, Adder),
        ("max_steps", 3, type("Quiz", (SingleTurnWorkflow,), {"__doc__": "One turn."})),
    ],
)
def test_workflow_class_does_not_excuse_unread_values(key: str, value: Any, workflow: type[Workflow]) -> None:
    config = quick()
    config["rllm"]["agent"] = {key: value}
    config["rllm"]["pipeline"] = {"remove": ["compact_filter"]}
    error = refusal(config=config, workflow_class=workflow, train_dataset=ROWS)
    check_error(error, "unused-key", f"`rllm.agent.{key}")


@pytest.mark.long
def test_grouping_hook_receives_config_sections(fit: Any) -> None:
    seen: list[Any] = []

    def hook(episodes: list[Episode], *sections: Any) -> list[TrajectoryGroup]:
        seen.append(sections)
        return all_in_one(episodes)

    config = quick()
    config["rllm"]["compact_filtering"] = {"enable": True, "mask_error": False}
    steps = fit(config, traj_grouping_hook=hook)
    assert [group.group_id for group in steps.steps[0].trajectory_groups] == ["all"]
    transform, filtering = seen[0]
    assert isinstance(transform, TransformSection)
    assert isinstance(filtering, CompactFilteringSection)
    assert (filtering.enable, filtering.mask_error) == (True, False)


@pytest.mark.long
def test_what_a_grouping_hook_does_wrong_is_said(fit: Any) -> None:
    with pytest.raises(PipelineError, match=r"Grouping 'traj_grouping_hook' failed: ZeroDivisionError"):
        fit(traj_grouping_hook=lambda *given: 1 / 0)


@pytest.mark.parametrize(
    ("value", "estimator", "options", "loss"),
    [
        ("rloo", "rloo", {}, "importance_sampling"),
        (rLLMAdvantageEstimator.REINFORCE, "reinforce", {}, "importance_sampling"),
        ((rLLMAdvantageEstimator.GRPO, "reinforce"), "grpo", {"norm_adv_by_std_in_grpo": False}, "reinforce"),
        (["rloo", {"name": "ppo", "eps_clip": 0.5}], "rloo", {}, "ppo"),
    ],
)
def test_each_role_may_have_estimator_and_loss(value: Any, estimator: str, options: Any, loss: str) -> None:
    trainer = UnifiedTrainer(config=quick(), traj_group_adv_estimator_map={"judge": value})
    trainer.shutdown()
    chosen = trainer.plan.estimators.get("judge")
    assert (chosen.plugin.name, chosen.params.model_dump(exclude={"dialect"})) == (estimator, options)
    assert trainer.plan.losses.get("judge").plugin.name == loss
    assert trainer.plan.estimators.get("agent").plugin.name == "grpo"


# Backends


@pytest.mark.long
def test_backend_is_chosen_by_spec_or_class(fit: Any) -> None:
    from rllm_local.backend import LocalBackend
    from rllm_local.settings import LocalConfig

    class MyBackend(LocalBackend):
        """Return the local backend under a different name."""

        params = LocalConfig

    record = replace(Registry.load().get("backend", "local").plugin, name="mine", config_yaml=None)
    for name, backend in (("mine", record), ("my_backend", MyBackend)):
        assert len(fit(quick(experiment_name=name), backend_cls=backend).steps) == 2
        used = json.loads(Path(f"runs/rllm-training/{name}/plugins.json").read_text())
        (entry,) = [entry for entry in used if entry["kind"] == "backend"]
        assert (entry["distribution"], entry["name"]) == ("in-process", name)


# Control of the loop


@pytest.mark.smoke
def test_a_run_is_refused_resumed_or_replaced(fit: Any) -> None:
    assert len(fit().steps) == 2
    assert refusal(config=quick(experiment_name="sum-1")).code == "run-exists"
    assert [step.global_step for step in fit(quick(total_batches=3), resume=True).steps] == [2]
    assert [step.global_step for step in fit(overwrite=True).steps] == [0, 1]


@pytest.mark.long
def test_resumed_run_keeps_the_values_of_its_start(fit: Any) -> None:
    first = without_environment(total_batches=1)
    first["rllm"]["rollout"]["n"] = 3
    workflow = {"workflow_class": Adder, "train_dataset": ROWS, "traj_grouping_hook": all_in_one}
    fit(first, **workflow, workflow_args={"bonus": 0.5}, backend_args={"training": {"learning_rate": 0.25}})
    (step,) = fit({"rllm": {"trainer": {"total_batches": 2}}}, **workflow, resume=True).steps
    assert (step.global_step, len(step.generated), step.metrics["actor/lr"]) == (1, 6, 0.25)
    assert {trajectory.reward for episode in step.generated for trajectory in episode.trajectories} == {0.5, 1.5}
    error = refusal(config={}, resume=True, train_dataset=ROWS)
    check_error(error, "plugin-of-other-program", "'in-process/adder'")


def test_directory_is_free_after_failed_constructor(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise ConfigError("made-up", "Observer impossible.")

    with monkeypatch.context() as patch:
        patch.setattr("rllm.api.trainer.TrainingLoop", broken)
        check_error(refusal(), "made-up", "Observer impossible.")
    assert len(fit().steps) == 2


@pytest.mark.long
def test_run_stopped_by_observer_can_continue(fit: Any) -> None:
    class Once(Steps):
        def on_batch_end(self, step: TrainStep) -> None:
            super().on_batch_end(step)
            trainer.stop()

    once = Once()
    trainer = UnifiedTrainer(config=quick(total_batches=5), observers=[once])
    trainer.fit()
    assert (trainer.global_step, trainer.total_steps, len(once.steps)) == (1, 5, 1)
    assert (trainer.run_directory.checkpoints / "step_000001").is_dir()
    trainer.shutdown()
    trainer.shutdown()
    assert [step.global_step for step in fit(quick(total_batches=3), resume=True).steps] == [1, 2]


def test_in_a_running_event_loop_fit_is_awaited() -> None:
    async def notebook() -> dict[str, float]:
        trainer = UnifiedTrainer(config=quick())
        try:
            with expect_error(RllmError, "event-loop-running", "await UnifiedTrainer(...).fit_async()"):
                trainer.fit()
            return await trainer.fit_async()
        finally:
            trainer.shutdown()

    assert "val/sum/pass@1" in asyncio.run(notebook())


def test_agent_trainer_returns_the_last_validation() -> None:
    steps = Steps()
    trainer = AgentTrainer(
        without_environment(),
        "local",
        Adder,
        {"bonus": 1.0},
        ROWS,
        ROWS[:2],
        traj_group_adv_estimator_map={"judge": ("rloo", "ppo")},
        observers=[steps],
        overwrite=True,
    )
    assert trainer.train()["val/default/pass@1"] == 1.0
    assert len(steps.steps) == 2
    assert refusal(config=quick(experiment_name="run-1")).code == "run-exists", (
        "the directory is free, and the run is in it"
    )
