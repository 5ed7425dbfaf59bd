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
from rllm_core.contracts.agent import Agent
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.estimator import ALWAYS_FILLED
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import OpenedRun, Workflow, WorkflowContext
from rllm_core.data.messages import Response
from rllm_core.data.tasks import LazyTasks, RowIds
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.notices import forget_warnings
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MultiTurnWorkflow
from rllm_core.schema.run_config import RunConfig

MakePlan = Callable[..., RunPlan]
RunRollouts = Callable[..., list[Episode]]


def _raise(error: BaseException) -> Any:
    raise error


@pytest.fixture
def plan_with(plan: MakePlan, offer: Any) -> MakePlan:
    """The plan of a run with an environment whose tasks come from this function of the split."""

    def make(tasks: Callable[[Split], Any]) -> RunPlan:
        class Mine(Environment):
            reset = step = None  # type: ignore[assignment]

            @classmethod
            def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
                given: Sequence[Task] = tasks(split)
                return given

        offer("environment", "mine", Mine)
        return plan({"rllm.env.name": "mine"})

    return make


@pytest.fixture
def datasets(offer: Any) -> Callable[..., None]:
    """Offers datasets of these names, whose tasks come from a function."""

    def make(**given: Callable[[], Any]) -> None:
        for name, tasks in given.items():
            offer("dataset", name, lambda params, tasks=tasks: tasks())

    return make


def _named(*ids: str) -> Callable[..., Iterator[Task]]:
    return lambda *split: (Task(id=name) for name in ids)


@pytest.mark.parametrize("calls_tools", [False, True])
def test_environment_with_tools_needs_a_workflow_for_them(plan: MakePlan, offer: Any, calls_tools: bool) -> None:
    class WithTools(Environment):
        tasks = reset = step = None  # type: ignore[assignment]

        def tools(self, task: Any) -> Any:
            return [abs]

    offer("environment", "armed", WithTools)
    offer("workflow", "calling", MultiTurnWorkflow, calls_tools=calls_tools)
    made = plan({"rllm.env.name": "armed", "rllm.workflow.name": "calling"})
    if calls_tools:
        check_plugins(made)
        return
    with expect_error(ConfigError, "workflow-without-tools", "'armed'", "'calling'", "rllm.workflow.name=tool_calling"):
        check_plugins(made)


def test_the_tasks_of_a_split_are_a_list(plan_with: MakePlan) -> None:
    made = plan_with(lambda split: (Task(id=f"{split}-{index}") for index in range(3)))
    assert [task.id for task in load_tasks(made, "train")] == ["train-0", "train-1", "train-2"]
    assert [task.id for task in load_tasks(made, "val")] == ["val-0", "val-1", "val-2"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_run_without_tasks_must_name_their_source(plan: MakePlan, split: Split) -> None:
    with expect_error(ConfigError, "no-environment", "`rllm train NAME`", split, "_dataset={name"):
        load_tasks(plan(), split)


def _fail_late(*split: str) -> Iterator[Task]:
    yield Task(id="a")
    raise FileNotFoundError("rows.jsonl")


@pytest.mark.parametrize("source", ["environment", "dataset"])
@pytest.mark.parametrize(
    ("tasks", "error", "values"),
    [
        (lambda *split: [Task(id="good"), "a"], PluginError, ("bad-task", "'a'", "Task(id=")),
        (lambda *split: [Task(id="good"), {"id": "a"}], PluginError, ("bad-task", {"id": "a"})),
        (lambda *split: [None], PluginError, ("bad-task", "None")),
        (lambda *split: None, PluginError, ("bad-task", "None")),
        (lambda *split: _raise(FileNotFoundError("rows.jsonl")), PluginError, ("tasks-failed", "rows.jsonl")),
        (_fail_late, PluginError, ("tasks-failed", "FileNotFoundError: rows.jsonl")),
        (_named("a", "b", "a"), ConfigError, ("duplicate-task-id", "'a'")),
    ],
)
def test_unusable_tasks_are_errors_with_their_source(
    source: str, tasks: Any, error: type[RllmError], values: Any, plan: MakePlan, plan_with: MakePlan, datasets: Any
) -> None:
    datasets(mine=tasks)
    made = plan_with(tasks) if source == "environment" else plan({"data.train_dataset": "mine"})
    with expect_error(error, *values, "'mine'") as caught:
        load_tasks(made, "train")
    if "rows.jsonl" in str(values):
        assert "train tasks" in without_place(caught.value.message)
        assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_lazy_tasks_are_checked_by_id_only(plan_with: MakePlan) -> None:
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


def test_row_numbers_are_not_gone_through(plan_with: MakePlan) -> None:
    """A set of a billion ids would not fit into memory."""
    given = LazyTasks(RowIds(range(10**9)), lambda index: Task(id=str(index)))
    assert load_tasks(plan_with(lambda split: given), "train") is given


def test_file_instead_of_dataset_is_read_by_suffix(plan: MakePlan, offer: Any, tmp_path: Path) -> None:
    class File(Params):
        path: str

    offer(
        "dataset",
        "lines",
        lambda params: [Task(id=Path(params.path).stem)],
        params=File,
        suffixes=frozenset({".lines"}),
    )
    planned = plan({"data.train_dataset": str(tmp_path / "a.lines")})
    assert [task.id for task in load_tasks(planned, "train")] == ["a"]


def test_plugins_check_their_options_before_a_run_starts(plan: MakePlan, offer: Any) -> None:
    class Sums(Params):
        terms: int = 2

    def check(params: Sums) -> None:
        if params.terms > 9:
            raise ConfigError("made-up", f"{params.terms} terms are too many.")

    offer("dataset", "sums", params=Sums, check=check)
    offer("dataset", "broken", check=lambda params: _raise(KeyError("x")))
    check_plugins(plan({"data.train_dataset": "sums"}))
    with expect_error(ConfigError, "made-up", "10"):
        check_plugins(plan({"data.train_dataset": {"name": "sums", "terms": 10}}))
    with expect_error(PluginError, "plugin-failed", "in-process/broken", "KeyError"):
        check_plugins(plan({"data.train_dataset": "broken"}))


def test_a_workflow_checks_the_configuration_of_the_run(plan: MakePlan, offer: Any) -> None:
    def check_run(config: RunConfig, params: Any) -> None:
        raise ConfigError("made-up", f"Port {config.rllm.sdk.proxy.port} is taken.")

    offer("workflow", "asks", check_run=check_run, config_keys=frozenset({"rllm.sdk.*"}))
    with expect_error(ConfigError, "made-up", "Port 4321 is taken"):
        check_plugins(plan({"rllm.workflow.name": "asks", "rllm.sdk.proxy.port": 4321}))


def test_an_environment_that_cannot_be_loaded_is_named(plan: MakePlan, offer: Any) -> None:
    offer("environment", "mine", load=lambda: _raise(ImportError("No module named 'pygame'")))
    with expect_error(PluginError, "plugin-not-loadable", "in-process/mine", "ImportError", "'pygame'"):
        load_tasks(plan({"rllm.env.name": "mine"}), "train")


SHARING = "share tasks: 2 of the 3 tasks of data.val_dataset, such as 'elsewhere', 'a'. Validation on these measures"


@pytest.mark.parametrize("chosen", [("train", "val"), ("train",)], ids=["two_datasets", "one"])
def test_tasks_of_training_and_validation_are_warned_about(
    chosen: tuple[str, ...], plan: MakePlan, datasets: Any, offer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    offer("environment", "world")
    train = [Task(id=name, data={"n": name}) for name in "abc"]
    val = [Task(id=name, data={"n": row}) for name, row in (("elsewhere", "c"), ("b", "another row"), ("a", "a"))]
    datasets(train=lambda: train, val=lambda: val)
    check_to_train(plan({"rllm.env.name": "world", **{f"data.{name}_dataset": name for name in chosen}}), train, val)
    assert (SHARING in capsys.readouterr().err) == (len(chosen) == 2)


def test_each_split_has_its_own_tasks(plan_with: MakePlan, plan: MakePlan, datasets: Any) -> None:
    plan_with(lambda split: [Task(id=f"{split} of the environment")])
    datasets(ours=_named("a", "b"), theirs=_named("c"))

    def read(**chosen: str) -> list[list[str]]:
        made = plan({"rllm.env.name": "mine"} | {f"data.{split}_dataset": name for split, name in chosen.items()})
        return [[task.id for task in load_tasks(made, split)] for split in ("train", "val")]

    assert read(train="ours", val="theirs") == [["a", "b"], ["c"]]
    assert read(train="ours") == [["a", "b"], ["val of the environment"]]
    assert read(val="theirs") == [["train of the environment"], ["c"]]


def test_run_with_only_training_dataset_has_no_validation(plan: MakePlan, datasets: Any) -> None:
    datasets(ours=_named("a"))
    assert list(load_tasks(plan({"data.train_dataset": "ours"}), "val")) == []
    with expect_error(ConfigError, "no-environment"):
        load_tasks(plan({"data.val_dataset": "ours"}), "train")


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

    received: list[int]
    """Lengths of the task's list at each reset. A rollout changes its task."""

    def __init__(self, params: NoParams) -> None:
        self.actions: list[str] = []

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        cls.received = []
        return [Task(id="t", data={"xs": []})]

    def reset(self, task: Any) -> str:
        task["xs"].append(1)
        self.received.append(len(task["xs"]))
        return "go"

    def step(self, action: str) -> Outcome:
        self.actions.append(action)
        return Outcome(observation=action, reward=1.0, done=len(self.actions) == 2)


def _order(tasks: Any, rollouts: int = 1, label: str = "train") -> RolloutRequest:
    return RolloutRequest(tasks=tasks, rollouts=rollouts, sampling=SamplingParams(max_tokens=9), label=label)


@pytest.fixture
def run_plan(plan: MakePlan, offer: Any) -> RunRollouts:
    """Two rollouts of the task of `TwoTurns`, with these settings and engine."""
    offer("environment", "twice", TwoTurns, blocking=False)
    offer("estimator", "steps", needs=ALWAYS_FILLED)

    def run(settings: dict[str, Any], engine: Any) -> list[Episode]:
        made = plan({"rllm.env.name": "twice", "rllm.workflow.name": "multi_turn_workflow"} | settings)

        async def rolled_out() -> list[Episode]:
            async with open_runner(made, engine) as runner:
                return await runner.run(_order(load_tasks(made, "train"), 2))

        return virtual_time.run(rolled_out())

    return run


def test_rollouts_have_the_chosen_agent_and_options(run_plan: RunRollouts, offer: Any) -> None:
    made: list[Any] = []

    class Shout(Agent):
        def __init__(self, params: MathAgentParams) -> None:
            made.append(params)

        def observe(self, observation: Any) -> Any:
            return [{"role": "user", "content": observation.upper()}]

        def act(self, response: Response) -> str:
            return f"{response.text}!"

    offer("agent", "shout", Shout, params=MathAgentParams)
    engine = Echoes()
    run_plan({"rllm.agent.name": "shout", "rllm.agent.agent_args": {"system_prompt": "x"}}, engine)
    assert made == [MathAgentParams(system_prompt="x")] * 2
    assert sorted(engine.prompts) == ["<user>GO<assistant>"] * 2 + ["<user>GO<assistant>ok<user>OK!<assistant>"] * 2
    assert TwoTurns.received == [1, 1]


def test_agent_that_cannot_load_fails_before_rollouts(run_plan: RunRollouts, offer: Any) -> None:
    offer("agent", "solver", load=lambda: _raise(ImportError("No module named 'sympy'")))
    engine = Echoes()
    with expect_error(PluginError, "plugin-not-loadable", "in-process/solver", "ImportError"):
        run_plan({"rllm.agent.name": "solver"}, engine)
    assert engine.prompts == []


def test_options_of_the_workflow_reach_it(run_plan: RunRollouts) -> None:
    first, _ = run_plan(
        {"rllm.workflow.workflow_args": {"gamma": 0.5}, "rllm.algorithm.adv_estimator": "steps"}, Echoes()
    )
    assert [step.reward for step in first.trajectories[0].steps] == [1.5, 1.0]
    assert first.trajectories[0].reward == 2.0


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        ({"rllm.accumulate_reasoning": False}, "<user>go<assistant>ok<user>ok<assistant>"),
        ({"rllm.accumulate_reasoning": True}, "<user>go<assistant>{hm}ok<user>ok<assistant>"),
        (
            {"rllm.agent.agent_args": {"system_prompt": "be brief"}},
            "<system>be brief<user>go<assistant>ok<user>ok<assistant>",
        ),
    ],
)
def test_settings_of_prompts_reach_the_engine(run_plan: RunRollouts, settings: dict[str, Any], prompt: str) -> None:
    engine = Echoes("{hm}ok")
    run_plan(settings, engine)
    assert engine.prompts[-1] == prompt


@pytest.mark.parametrize(("timeout", "limit"), [(0.05, None), (0.05, 60.0), (60.0, 0.05), (None, 0.05)], ids=str)
def test_rollout_ends_after_the_smaller_time_limit(run_plan: RunRollouts, timeout: Any, limit: float | None) -> None:
    args = {} if timeout is None else {"rllm.workflow.workflow_args": {"timeout": timeout}}
    episodes = run_plan(args | {"rllm.agent.trajectory_timeout": limit}, Echoes(delay=3600.0))
    assert [episode.termination_reason for episode in episodes] == [TerminationReason.TIMEOUT] * 2
    assert {episode.error for episode in episodes} == {"not finished after 0.05 s"}


@pytest.mark.parametrize("limit", [None, 0.05])
def test_workflow_with_other_options_has_the_general_limit(run_plan: RunRollouts, offer: Any, limit: Any) -> None:
    class Sleep(Workflow):
        def __init__(self, context: WorkflowContext, timeout: float) -> None:
            super().__init__(context)

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            await asyncio.sleep(0.1 if limit is None else 3600.0)
            return Episode(id=uid)

    class SleepParams(Params):
        timeout: float = 0.01

    offer("workflow", "sleep", Sleep, params=SleepParams)
    episodes = run_plan({"rllm.workflow.name": "sleep", "rllm.agent.trajectory_timeout": limit}, Echoes())
    assert [episode.termination_reason is TerminationReason.TIMEOUT for episode in episodes] == [limit is not None] * 2


def test_rollouts_share_what_a_workflow_opens(plan: MakePlan, offer: Any, tmp_path: Path) -> None:
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

    offer("workflow", "asks", Asks, open=serve)
    engine: Any = Echoes()

    async def roll_out(made: RunPlan) -> None:
        async with open_runner(made, engine, tmp_path) as runner:
            await runner.run(_order([Task(id="t")], label="val"))

    made = plan({"rllm.workflow.name": "asks"})
    asyncio.run(roll_out(made))
    opened = (engine, tmp_path, "asks", NoParams, made.stop_texts)
    assert events == [opened, ("server", "val", 0), ("server", "val", 1), "closed"]
    events.clear()
    with pytest.raises(RllmError):
        asyncio.run(roll_out(plan({"rllm.workflow.name": "asks", "rllm.workflow.retry_limit": 1})))
    assert events[-1] == "closed"


@pytest.mark.parametrize(
    "opens", [lambda run, params: 1 / 0, lambda run, params: iter([])], ids=["raises", "no context manager"]
)
def test_a_workflow_that_cannot_open_is_named(opens: Any, plan: MakePlan, offer: Any) -> None:
    offer("workflow", "asks", Workflow, open=opens)

    async def enter() -> None:
        engine: Any = Echoes()
        async with open_runner(plan({"rllm.workflow.name": "asks"}), engine):
            pass

    with pytest.raises(PluginError, match="`open` of workflow in-process/asks failed"):
        asyncio.run(enter())


@pytest.mark.parametrize("weight", ["much", True, None])
def test_a_weight_of_a_reward_is_a_number(weight: Any, plan: MakePlan, offer: Any) -> None:
    offer("reward", "even")
    with expect_error(ConfigError, "bad-reward-weight", "rllm.reward[0].weight"):
        plan({"rllm.reward": [{"name": "even", "weight": weight}]})
    assert plan({"rllm.reward": [{"name": "even", "weight": -1}, "even"]}).rewards[0].weight == -1.0


def test_a_reward_has_no_option_named_weight(offer: Any) -> None:
    class Heavy(Params):
        weight: float = 1.0

    with expect_error(PluginError, "bad-plugin-spec", "`weight`"):
        offer("reward", "heavy", params=Heavy)


def test_environment_and_rewards_check_the_tasks(plan: MakePlan, offer: Any) -> None:
    seen: list[Any] = []

    def refuse(params: Any, data: Any) -> None:
        raise ConfigError("made-up", f"No {data['n']}.", "Fix it.")

    offer("environment", "world", check_task=lambda params, data: seen.append(data["n"]))
    offer("reward", "strict", check_task=refuse)
    offer("reward", "needy", needs=frozenset({"key"}))
    tasks = [Task(id=str(n), data={"n": n}) for n in range(9)]
    check_to_train(plan({"rllm.env.name": "world"}), tasks, tasks[5:])
    assert seen == [*range(9), *range(5, 9)]
    with expect_error(ConfigError, "made-up", "No 0.", "'0'", "Fix it."):
        check_to_train(plan({"rllm.env.name": "world", "rllm.reward": ["strict"]}), tasks, [])
    with pytest.raises(ConfigError, match="Reward 'needy' reads 'key', and task '0' has n"):
        check_to_train(plan({"rllm.env.name": "world", "rllm.reward": ["needy"]}), tasks, [])
    passed_over = {"rllm.algorithm.on_missing_reward": "drop", "rllm.reward": ["strict", "needy"]}
    check_to_train(plan({"rllm.env.name": "world", **passed_over}), tasks, [])


def test_the_first_tasks_of_a_generator_are_checked(plan: MakePlan, offer: Any) -> None:
    seen: list[Any] = []
    offer("environment", "world", check_task=lambda params, data: seen.append(data["n"]))
    tasks = LazyTasks([str(n) for n in range(9)], lambda n: Task(id=str(n), data={"n": n}))
    check_to_train(plan({"rllm.env.name": "world"}), tasks, [])
    assert seen == [0, 1, 2]


def test_dry_run_reads_no_remote_datasets(plan: MakePlan, offer: Any) -> None:
    offer("dataset", "near", lambda params: [Task(id="a")], is_remote=lambda params: False)
    offer("dataset", "far", lambda params: [Task(id="a")], is_remote=lambda params: True)
    made = plan({"data.train_dataset": "near", "data.val_dataset": "far"})
    read = load_local_tasks(made, "train")
    assert read is not None
    assert [task.id for task in read] == ["a"]
    assert load_local_tasks(made, "val") is None
