"""Tasks of a plan, their errors, and the runner for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_time
from expecting import expect_error
from places import without_place

from rllm.planning.plan import RunPlan
from rllm.planning.preflight import check_plugins, check_to_train
from rllm.training.setup import load_local_tasks, load_tasks, open_runner
from rllm_core.contracts.agent import Agent, AgentPlugin
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome, Split
from rllm_core.contracts.estimator import ALWAYS_FILLED, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.rollout import RolloutRequest
from rllm_core.contracts.workflow import OpenedRun, Workflow, WorkflowContext, WorkflowPlugin
from rllm_core.data.messages import Response
from rllm_core.data.tasks import LazyTasks, RowIds
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.notices import forget_warnings
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MultiTurnWorkflow
from rllm_core.schema.run_config import RunConfig


@pytest.fixture
def plan_with(plan: Callable[..., RunPlan], registry: Registry) -> Callable[..., RunPlan]:
    """The plan of a run with an environment whose tasks come from this function of the split."""

    def make(tasks: Callable[[Split], Any]) -> RunPlan:
        class Mine(Environment):
            @classmethod
            def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
                given: Sequence[Task] = tasks(split)
                return given

            def reset(self, task: Any) -> str:
                raise NotImplementedError

            def step(self, action: str) -> Any:
                raise NotImplementedError

        registry.add(EnvironmentPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: Mine))
        return plan({"rllm.env.name": "mine"})

    return make


@pytest.mark.parametrize("calls_tools", [False, True])
def test_an_environment_with_tools_needs_a_workflow_that_calls_them(
    plan: Callable[..., RunPlan], registry: Registry, calls_tools: bool
) -> None:
    class WithTools(Environment):
        tasks = reset = step = None  # type: ignore[assignment]

        def tools(self, task: Any) -> Any:
            return [abs]

    registry.add(EnvironmentPlugin(name="armed", summary="For tests.", params=NoParams, load=lambda: WithTools))
    registry.add(
        WorkflowPlugin(name="calling", summary="For tests.", load=lambda: MultiTurnWorkflow, calls_tools=calls_tools)
    )
    made = plan({"rllm.env.name": "armed", "rllm.workflow.name": "calling"})
    if calls_tools:
        check_plugins(made)
        return
    with expect_error(ConfigError, "workflow-without-tools", "'armed'", "'calling'", "rllm.workflow.name=tool_calling"):
        check_plugins(made)


def test_the_tasks_of_a_split_are_a_list(plan_with: Callable[..., RunPlan]) -> None:
    def tasks(split: Split) -> Iterator[Task]:
        return (Task(id=f"{split}-{index}") for index in range(3))

    made = plan_with(tasks)
    assert [task.id for task in load_tasks(made, "train")] == ["train-0", "train-1", "train-2"]
    assert [task.id for task in load_tasks(made, "val")] == ["val-0", "val-1", "val-2"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_without_tasks_is_told_to_name_an_environment_or_a_dataset(
    plan: Callable[..., RunPlan], split: Split
) -> None:
    with expect_error(ConfigError, "no-environment", "`rllm train NAME`", split, "_dataset={name"):
        load_tasks(plan(), split)


@pytest.mark.parametrize("stranger", [{"id": "a"}, "a", None])
def test_what_is_no_task_is_refused_and_shown(plan_with: Callable[..., RunPlan], stranger: Any) -> None:
    with expect_error(PluginError, "bad-task", "'mine'", repr(stranger), "Return Task records."):
        load_tasks(plan_with(lambda split: [Task(id="good"), stranger]), "train")


def _fail(split: Split) -> Sequence[Task]:
    raise FileNotFoundError(f"{split}.jsonl")


def _fail_late(split: Split) -> Iterator[Task]:
    yield Task(id="a")
    raise FileNotFoundError(f"{split}.jsonl")


@pytest.mark.parametrize("tasks", [_fail, _fail_late])
def test_tasks_that_cannot_be_given_are_an_error_that_names_environment_and_split(
    plan_with: Callable[..., RunPlan], tasks: Any
) -> None:
    with pytest.raises(PluginError) as caught:
        load_tasks(plan_with(tasks), "val")
    message = "Environment 'mine' could not give its val tasks: FileNotFoundError: val.jsonl."
    assert without_place(caught.value.message) == message
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_no_list_of_tasks_at_all_is_an_error_that_names_the_environment(plan_with: Callable[..., RunPlan]) -> None:
    with expect_error(PluginError, "tasks-failed", "'mine'", "TypeError"):
        load_tasks(plan_with(lambda split: None), "train")


def test_two_tasks_of_one_id_are_refused(plan_with: Callable[..., RunPlan]) -> None:
    with expect_error(ConfigError, "duplicate-task-id", "'mine'", "'a'"):
        load_tasks(plan_with(lambda split: [Task(id="a"), Task(id="b"), Task(id="a")]), "train")


def test_lazy_tasks_are_checked_by_their_ids_and_stay_lazy(plan_with: Callable[..., RunPlan]) -> None:
    made: list[int] = []

    def make(index: int) -> Task:
        made.append(index)
        return Task(id=f"t{index}")

    ids = {"train": ["t0", "t1"], "val": ["t0", "t0"]}
    planned = plan_with(lambda split: LazyTasks(ids[split], make))
    tasks = load_tasks(planned, "train")
    assert (len(tasks), made) == (2, [])
    assert tasks[1] == Task(id="t1")
    with expect_error(ConfigError, "duplicate-task-id", "'mine'", "'t0'"):
        load_tasks(planned, "val")
    assert made == [1]


def test_row_numbers_are_not_gone_through(plan_with: Callable[..., RunPlan]) -> None:
    """A set of a billion ids would not fit into memory."""
    given = LazyTasks(RowIds(range(10**9)), lambda index: Task(id=str(index)))
    assert load_tasks(plan_with(lambda split: given), "train") is given


def test_file_instead_of_dataset_is_read_by_suffix(
    plan: Callable[..., RunPlan], registry: Registry, tmp_path: Path
) -> None:
    class File(Params):
        path: str

    def read(params: File) -> list[Task]:
        return [Task(id=Path(params.path).stem)]

    lines = DatasetPlugin(name="lines", summary="S.", params=File, load=lambda: read, suffixes=frozenset({".lines"}))
    registry.add(lines)
    planned = plan({"data.train_dataset": str(tmp_path / "a.lines")})
    assert [task.id for task in load_tasks(planned, "train")] == ["a"]


def test_a_plugin_is_asked_about_its_options_before_a_run_starts(
    plan: Callable[..., RunPlan], registry: Registry
) -> None:
    class Sums(Params):
        terms: int = 2

    def check(params: Sums) -> None:
        if params.terms > 9:
            raise ConfigError("made-up", f"{params.terms} terms are too many.")

    registry.add(DatasetPlugin(name="sums", summary="For tests.", params=Sums, load=lambda: None, check=check))
    check_plugins(plan({"data.train_dataset": "sums"}))
    with expect_error(ConfigError, "made-up", "10"):
        check_plugins(plan({"data.train_dataset": {"name": "sums", "terms": 10}}))


def test_the_check_of_a_workflow_sees_the_configuration_of_the_run(
    plan: Callable[..., RunPlan], registry: Registry
) -> None:
    def check_run(config: RunConfig, params: Any) -> None:
        raise ConfigError("made-up", f"Port {config.rllm.sdk.proxy.port} is taken.")

    record = WorkflowPlugin(
        name="asks", summary="For tests.", load=lambda: None, check_run=check_run, config_keys=frozenset({"rllm.sdk.*"})
    )
    registry.add(record)
    with pytest.raises(ConfigError, match="Port 4321 is taken"):
        check_plugins(plan({"rllm.workflow.name": "asks", "rllm.sdk.proxy.port": 4321}))


def test_an_environment_that_cannot_be_loaded_is_named(plan: Callable[..., RunPlan], registry: Registry) -> None:
    def fail() -> Any:
        raise ImportError("No module named 'pygame'")

    registry.add(EnvironmentPlugin(name="mine", summary="For tests.", params=NoParams, load=fail))
    with expect_error(PluginError, "plugin-not-loadable", "in-process/mine", "ImportError", "'pygame'"):
        load_tasks(plan({"rllm.env.name": "mine"}), "train")


@pytest.fixture
def offer(registry: Registry) -> Callable[..., None]:
    """Offers datasets of these names, whose tasks come from a function."""

    def make(**datasets: Callable[[], Any]) -> None:
        for name, tasks in datasets.items():
            registry.add(
                DatasetPlugin(
                    name=name,
                    summary="For tests.",
                    params=NoParams,
                    load=lambda tasks=tasks: lambda params: tasks(),  # type: ignore[misc]
                )
            )

    return make


def _named(*ids: str) -> Callable[[], Iterator[Task]]:
    return lambda: (Task(id=name) for name in ids)


SHARING = "share tasks: 2 of the 3 tasks of data.val_dataset, such as 'elsewhere', 'a'. Validation on these measures"


@pytest.mark.parametrize("names", [("ours", "theirs"), ("ours", None)], ids=["two_datasets", "one"])
def test_a_task_that_is_trained_on_and_validated_on_is_warned_about(
    names: tuple[str, str | None],
    plan: Callable[..., RunPlan],
    offer: Callable[..., None],
    registry: Registry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forget_warnings()
    registry.add(EnvironmentPlugin(name="world", summary="For tests.", params=NoParams, load=lambda: None))
    train = [Task(id=name, data={"n": name}) for name in "abc"]
    val = [
        Task(id="elsewhere", data={"n": "c"}),
        Task(id="b", data={"n": "another row"}),
        Task(id="a", data={"n": "a"}),
    ]
    offer(ours=lambda: train, theirs=lambda: val)
    given = {f"data.{split}_dataset": name for split, name in zip(("train", "val"), names, strict=True) if name}
    check_to_train(plan({"rllm.env.name": "world", **given}), train, val)
    assert (SHARING in capsys.readouterr().err) == (None not in names)


def test_each_split_has_its_own_dataset(plan: Callable[..., RunPlan], offer: Callable[..., None]) -> None:
    offer(ours=_named("a", "b"), theirs=_named("a"))
    made = plan({"data.train_dataset": "ours", "data.val_dataset": "theirs"})
    assert load_tasks(made, "train") == [Task(id="a"), Task(id="b")]
    assert load_tasks(made, "val") == [Task(id="a")]


def test_a_dataset_goes_before_the_environment_and_the_other_split_stays_the_environment_s(
    plan_with: Callable[..., RunPlan], plan: Callable[..., RunPlan], offer: Callable[..., None]
) -> None:
    plan_with(lambda split: [Task(id=f"{split} of the environment")])
    offer(ours=_named("a"))
    for chosen, others in (("train", "val"), ("val", "train")):
        made = plan({"rllm.env.name": "mine", f"data.{chosen}_dataset": "ours"})
        assert load_tasks(made, chosen) == [Task(id="a")]  # type: ignore[arg-type]
        assert load_tasks(made, others) == [Task(id=f"{others} of the environment")]  # type: ignore[arg-type]


def test_run_with_only_training_dataset_has_no_validation(
    plan: Callable[..., RunPlan], offer: Callable[..., None]
) -> None:
    offer(ours=_named("a"))
    assert list(load_tasks(plan({"data.train_dataset": "ours"}), "val")) == []
    with expect_error(ConfigError, "no-environment"):
        load_tasks(plan({"data.val_dataset": "ours"}), "train")


@pytest.mark.parametrize(
    ("tasks", "error", "message"),
    [
        (_named("a", "b", "a"), ConfigError, ("duplicate-task-id", "'ours'", "'a'")),
        (lambda: [{"id": "a"}], PluginError, ("bad-task", "'ours'", "'id'", "'a'")),
        (
            lambda: None,
            PluginError,
            ("tasks-failed", "'ours'", "TypeError", "'NoneType'"),
        ),
    ],
)
def test_tasks_of_a_dataset_are_checked_like_those_of_an_environment(
    plan: Callable[..., RunPlan],
    offer: Callable[..., None],
    tasks: Callable[[], Any],
    error: type[RllmError],
    message: tuple[str, ...],
) -> None:
    offer(ours=tasks)
    with expect_error(error, *message):
        load_tasks(plan({"data.train_dataset": "ours"}), "train")


class Echoes:
    """In place of an engine: says `response`, and remembers what it was asked."""

    max_context = 1000

    def __init__(self, response: str = "ok", delay: float = 0.0) -> None:
        self.response, self.delay = response, delay
        self.prompts: list[str] = []
        self.renderer = TemplateRenderer(Characters(), [])

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.prompts.append("".join(map(chr, prompt_ids)))
        await asyncio.sleep(self.delay)
        ids = np.array([ord(character) for character in self.response], np.int32)
        return Completion(
            token_ids=ids, logprobs=np.zeros(len(ids), np.float32), finish_reason="stop", weight_version=0
        )

    async def end_session(self, session: str) -> None:
        pass


class Characters:
    """A tokenizer of characters, for which ``{`` and ``}`` are the marks of thinking."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in conversation) + "<assistant>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text.replace("<think>", "{").replace("</think>", "}")]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


class TwoTurns(Environment):
    """Ends with the second answer and gives a reward for each."""

    def __init__(self, params: NoParams) -> None:
        self.actions: list[str] = []

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return [Task(id="t")]

    def reset(self, task: Any) -> str:
        return "go"

    def step(self, action: str) -> Outcome:
        self.actions.append(action)
        return Outcome(observation=action, reward=1.0, done=len(self.actions) == 2)


@pytest.fixture
def run_plan(plan: Callable[..., RunPlan], registry: Registry) -> Callable[..., list[Episode]]:
    """Two rollouts of the task of `TwoTurns`, with these settings and engine."""
    common: dict[str, Any] = {"summary": "For tests.", "params": NoParams}
    registry.add(EnvironmentPlugin(name="twice", load=lambda: TwoTurns, blocking=False, **common))
    registry.add(EstimatorPlugin(name="steps", load=lambda: None, needs=ALWAYS_FILLED, **common))

    def run(settings: dict[str, Any], engine: Any) -> list[Episode]:
        made = plan({"rllm.env.name": "twice", "rllm.workflow.name": "multi_turn_workflow"} | settings)
        order = RolloutRequest(
            tasks=load_tasks(made, "train"), rollouts=2, sampling=SamplingParams(max_tokens=9), label="train"
        )

        async def rolled_out() -> list[Episode]:
            async with open_runner(made, engine) as runner:
                return await runner.run(order)

        return virtual_time.run(rolled_out())

    return run


def test_every_rollout_has_the_chosen_agent_with_its_options(
    run_plan: Callable[..., list[Episode]], registry: Registry
) -> None:
    made: list[Any] = []

    class Shout(Agent):
        def __init__(self, params: MathAgentParams) -> None:
            made.append(params)

        def observe(self, observation: Any) -> Any:
            return [{"role": "user", "content": observation.upper()}]

        def act(self, response: Response) -> str:
            return f"{response.text}!"

    registry.add(AgentPlugin(name="shout", summary="For tests.", params=MathAgentParams, load=lambda: Shout))
    engine = Echoes()
    run_plan({"rllm.agent.name": "shout", "rllm.agent.agent_args": {"system_prompt": "x"}}, engine)
    assert made == [MathAgentParams(system_prompt="x")] * 2
    assert sorted(engine.prompts) == ["<user>GO<assistant>"] * 2 + ["<user>GO<assistant>ok<user>OK!<assistant>"] * 2


def test_agent_that_cannot_load_fails_before_rollouts(
    run_plan: Callable[..., list[Episode]], registry: Registry
) -> None:
    def fail() -> Any:
        raise ImportError("No module named 'sympy'")

    registry.add(AgentPlugin(name="solver", summary="For tests.", params=NoParams, load=fail))
    engine = Echoes()
    with expect_error(PluginError, "plugin-not-loadable", "in-process/solver", "ImportError"):
        run_plan({"rllm.agent.name": "solver"}, engine)
    assert engine.prompts == []


def test_math_agent_opens_with_its_system_prompt(run_plan: Callable[..., list[Episode]]) -> None:
    engine = Echoes()
    run_plan({"rllm.agent.agent_args": {"system_prompt": "be brief"}}, engine)
    assert engine.prompts[0] == "<system>be brief<user>go<assistant>"


def test_options_of_the_workflow_reach_it(run_plan: Callable[..., list[Episode]]) -> None:
    first, _ = run_plan(
        {"rllm.workflow.workflow_args": {"gamma": 0.5}, "rllm.algorithm.adv_estimator": "steps"}, Echoes()
    )
    assert [step.reward for step in first.trajectories[0].steps] == [1.5, 1.0]
    assert first.trajectories[0].reward == 2.0


@pytest.mark.parametrize(("accumulate", "kept"), [(False, ""), (True, "{hm}")])
def test_reasoning_is_accumulated_when_that_is_asked_for(
    run_plan: Callable[..., list[Episode]], accumulate: bool, kept: str
) -> None:
    engine = Echoes("{hm}ok")
    run_plan({"rllm.accumulate_reasoning": accumulate}, engine)
    assert engine.prompts[-1] == f"<user>go<assistant>{kept}ok<user>ok<assistant>"


@pytest.mark.parametrize(
    "settings",
    [
        {"rllm.workflow.workflow_args": {"timeout": 0.05}},
        {"rllm.workflow.workflow_args": {"timeout": 0.05}, "rllm.agent.trajectory_timeout": 60.0},
        {"rllm.workflow.workflow_args": {"timeout": 60.0}, "rllm.agent.trajectory_timeout": 0.05},
        {"rllm.agent.trajectory_timeout": 0.05},
    ],
)
def test_a_rollout_ends_after_the_smaller_of_both_time_limits(
    run_plan: Callable[..., list[Episode]], settings: dict[str, Any]
) -> None:
    episodes = run_plan(settings, Echoes(delay=3600.0))
    assert [episode.termination_reason for episode in episodes] == [TerminationReason.TIMEOUT] * 2
    assert {episode.error for episode in episodes} == {"not finished after 0.05 s"}


@pytest.mark.parametrize("limit", [None, 0.05])
def test_a_workflow_with_other_options_has_the_limit_of_all_rollouts(
    run_plan: Callable[..., list[Episode]], registry: Registry, limit: float | None
) -> None:
    class Sleep(Workflow):
        def __init__(self, context: WorkflowContext, timeout: float) -> None:
            super().__init__(context)

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            await asyncio.sleep(0.1 if limit is None else 3600.0)
            return Episode(id=uid)

    class SleepParams(Params):
        timeout: float = 0.01

    registry.add(WorkflowPlugin(name="sleep", summary="For tests.", params=SleepParams, load=lambda: Sleep))
    episodes = run_plan({"rllm.workflow.name": "sleep", "rllm.agent.trajectory_timeout": limit}, Echoes())
    assert [episode.termination_reason is TerminationReason.TIMEOUT for episode in episodes] == [limit is not None] * 2


def test_what_a_workflow_opens_is_shared_by_all_rollouts_and_closed_behind_them(
    plan: Callable[..., RunPlan], registry: Registry, tmp_path: Path
) -> None:
    events: list[Any] = []

    @asynccontextmanager
    async def serve(run: OpenedRun, params: Any) -> AsyncIterator[str]:
        events.append((run.engine, run.directory, run.config.rllm.workflow.name, type(params), run.stop_texts))
        try:
            yield "server"
        finally:
            events.append("closed")

    class Asks(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            events.append((self.context.resource, self.context.label, self.context.rollout))
            if not self.context.rollout:
                raise ValueError
            return Episode(id=uid)

    registry.add(WorkflowPlugin(name="asks", summary="For tests.", params=NoParams, load=lambda: Asks, open=serve))
    made = plan({"rllm.workflow.name": "asks"})
    engine: Any = Echoes()
    order = RolloutRequest(tasks=[Task(id="t")], rollouts=1, sampling=SamplingParams(max_tokens=9), label="val")

    async def roll_out() -> None:
        async with open_runner(made, engine, tmp_path) as runner:
            await runner.run(order)

    asyncio.run(roll_out())
    assert events == [
        (engine, tmp_path, "asks", NoParams, made.stop_texts),
        ("server", "val", 0),
        ("server", "val", 1),
        "closed",
    ]
    events.clear()
    made = plan({"rllm.workflow.name": "asks", "rllm.workflow.retry_limit": 1})
    with pytest.raises(RllmError):
        asyncio.run(roll_out())
    assert events[-1] == "closed"


def test_rollouts_do_not_share_what_an_environment_changes_in_its_task(
    run_plan: Callable[..., list[Episode]], plan: Callable[..., RunPlan], registry: Registry
) -> None:
    received: list[int] = []

    class Adds(TwoTurns):
        @classmethod
        def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
            return [Task(id="t", data={"xs": []})]

        def reset(self, task: Any) -> str:
            task["xs"].append(1)
            received.append(len(task["xs"]))
            return "go"

    registry.add(EnvironmentPlugin(name="adds", summary="For tests.", load=lambda: Adds, blocking=False))
    run_plan({"rllm.env.name": "adds"}, Echoes())
    assert received == [1, 1]


@pytest.mark.parametrize(
    "opens", [lambda run, params: 1 / 0, lambda run, params: iter([])], ids=["raises", "no context manager"]
)
def test_a_workflow_that_cannot_open_is_named(opens: Any, plan: Callable[..., RunPlan], registry: Registry) -> None:
    registry.add(WorkflowPlugin(name="asks", summary="For tests.", load=lambda: Workflow, open=opens))
    made = plan({"rllm.workflow.name": "asks"})

    async def enter() -> None:
        engine: Any = Echoes()
        async with open_runner(made, engine):
            pass

    with pytest.raises(PluginError, match="`open` of workflow in-process/asks failed"):
        asyncio.run(enter())


def test_a_check_that_breaks_is_named(plan: Callable[..., RunPlan], registry: Registry) -> None:
    def check(params: Any) -> None:
        raise KeyError("x")

    registry.add(DatasetPlugin(name="sums", summary="For tests.", load=lambda: None, check=check))
    with expect_error(PluginError, "plugin-failed", "in-process/sums", "KeyError"):
        check_plugins(plan({"data.train_dataset": "sums"}))


@pytest.mark.parametrize("weight", ["much", True, None])
def test_a_weight_of_a_reward_is_a_number(weight: Any, plan: Callable[..., RunPlan], registry: Registry) -> None:
    registry.add(RewardPlugin(name="even", summary="For tests.", load=lambda: None))
    with expect_error(ConfigError, "bad-reward-weight", "rllm.reward[0].weight"):
        plan({"rllm.reward": [{"name": "even", "weight": weight}]})
    assert plan({"rllm.reward": [{"name": "even", "weight": -1}, "even"]}).rewards[0].weight == -1.0


def test_a_reward_has_no_option_of_the_name_of_its_weight(registry: Registry) -> None:
    class Heavy(Params):
        weight: float = 1.0

    with expect_error(PluginError, "bad-plugin-spec", "`weight`"):
        registry.add(RewardPlugin(name="heavy", summary="For tests.", params=Heavy, load=lambda: None))


def test_the_first_tasks_are_shown_to_environment_and_rewards_before_a_run(
    plan: Callable[..., RunPlan], registry: Registry
) -> None:
    seen: list[Any] = []

    def look(params: Any, data: Any) -> None:
        seen.append(data["n"])

    def refuse(params: Any, data: Any) -> None:
        raise ConfigError("made-up", f"No {data['n']}.", "Fix it.")

    registry.add(
        EnvironmentPlugin(name="world", summary="For tests.", params=NoParams, load=lambda: None, check_task=look)
    )
    registry.add(
        RewardPlugin(name="strict", summary="For tests.", params=NoParams, load=lambda: None, check_task=refuse)
    )
    registry.add(
        RewardPlugin(name="needy", summary="For tests.", params=NoParams, load=lambda: None, needs=frozenset({"key"}))
    )
    tasks = [Task(id=str(n), data={"n": n}) for n in range(9)]
    check_to_train(plan({"rllm.env.name": "world"}), tasks, tasks[5:])
    assert seen == [0, 1, 2, 5, 6, 7]
    with expect_error(ConfigError, "made-up", "No 0.", "'0'", "Fix it."):
        check_to_train(plan({"rllm.env.name": "world", "rllm.reward": ["strict"]}), tasks, [])
    with pytest.raises(ConfigError, match="Reward 'needy' reads 'key', and task '0' has n"):
        check_to_train(plan({"rllm.env.name": "world", "rllm.reward": ["needy"]}), tasks, [])
    passed_over = {"rllm.algorithm.on_missing_reward": "drop", "rllm.reward": ["strict", "needy"]}
    check_to_train(plan({"rllm.env.name": "world", **passed_over}), tasks, [])


@pytest.mark.parametrize("odd", [{"n": 7, "more": 1}, {"n": 7, "m": None}, {}])
def test_a_later_task_with_other_columns_is_shown_too(
    odd: dict[str, Any], plan: Callable[..., RunPlan], registry: Registry
) -> None:
    seen: list[Any] = []
    registry.add(
        EnvironmentPlugin(
            name="world",
            summary="For tests.",
            params=NoParams,
            load=lambda: None,
            check_task=lambda _, data: seen.append(data),
        )
    )
    usual = [{"n": n, "m": 1} for n in range(9)]
    tasks = [Task(id=str(n), data=data) for n, data in enumerate([*usual, odd, odd])]
    check_to_train(plan({"rllm.env.name": "world"}), tasks, [])
    assert seen == [*usual[:3], odd]
    seen.clear()
    made = LazyTasks([task.id for task in tasks], tasks.__getitem__)  # of an environment: slow to make
    check_to_train(plan({"rllm.env.name": "world"}), made, [])
    assert seen == usual[:3]


def test_a_data_set_beyond_a_network_is_not_read_by_a_dry_run(plan: Callable[..., RunPlan], registry: Registry) -> None:
    for name, remote in (("near", False), ("far", True)):
        registry.add(
            DatasetPlugin(
                name=name,
                summary="For tests.",
                params=NoParams,
                load=lambda: lambda params: [Task(id="a")],
                is_remote=lambda params, remote=remote: remote,  # type: ignore[misc]
            )
        )
    made = plan({"data.train_dataset": "near", "data.val_dataset": "far"})
    read = load_local_tasks(made, "train")
    assert read is not None
    assert [task.id for task in read] == ["a"]
    assert load_local_tasks(made, "val") is None
