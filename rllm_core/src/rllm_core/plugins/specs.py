"""The hooks that a plugin can implement, one per kind. Each takes no arguments and returns plugin specs of its kind.

A plugin is a module with some of these functions, marked ``@hookimpl``, and one line of packaging::

    [project.entry-points."rllm.plugins"]
    rllm-example = "rllm_example.plugin"        # left of the "=": the name of the package

The docstring of every hook contains a complete module of this kind. The test suite runs these modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import (
    AgentPlugin,
    BackendPlugin,
    DatasetPlugin,
    EnginePlugin,
    EnvironmentPlugin,
    EstimatorPlugin,
    GroupingPlugin,
    LossPlugin,
    ObjectivePlugin,
    ObserverPlugin,
    RejectionPlugin,
    RendererPlugin,
    RewardPlugin,
    SamplerPlugin,
    SandboxPlugin,
    StagePlugin,
    TeacherPlugin,
    TrackerPlugin,
    WorkflowPlugin,
)
from rllm_core.plugins.markers import hookspec


@hookspec
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    """Offer advantage estimators. Users choose one with ``rllm.algorithm.adv_estimator``.

    An estimator takes the rewards of one role's trajectories. It returns one advantage per trajectory, step or token::

        from pydantic import Field
        from rllm_core.contracts import Advantages, EstimatorPlugin, Params
        from rllm_core.plugins import hookimpl

        class ScaledParams(Params):
            scale: float = Field(1.0, gt=0, description="Multiplies every advantage.")

        def scaled_reward(inputs, params):
            return Advantages(values=params.scale * inputs.rewards)

        @hookimpl
        def rllm_estimators():
            yield EstimatorPlugin(
                name="scaled_reward",
                summary="The reward itself, times a constant.",
                params=ScaledParams,
                load=lambda: scaled_reward,
            )
    """
    return ()


@hookspec
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    """Offer policy losses. Users choose one with ``rllm.algorithm.loss_fn``.

    A loss takes log-probs and advantages of sampled tokens as torch tensors and returns the loss of each token. If your
    module needs ``import torch``, import it inside `load`::

        from rllm_core.contracts import LossPlugin, NoParams
        from rllm_core.plugins import hookimpl

        def unclipped(inputs, params):
            return -(inputs.logprobs - inputs.old_logprobs).exp() * inputs.advantages

        @hookimpl
        def rllm_losses():
            yield LossPlugin(
                name="unclipped", summary="Importance ratio, no clipping.", params=NoParams, load=lambda: unclipped
            )
    """
    return ()


@hookspec
def rllm_groupings() -> Iterable[GroupingPlugin[Any]]:
    """Offer groupings. Users choose one with ``rllm.transform.grouping``.

    A grouping takes episodes and returns groups of trajectories whose rewards are compared::

        from rllm_core.contracts import GroupingPlugin, NoParams
        from rllm_core.plugins import hookimpl

        def load_one_group():
            from rllm_core.data.types import TrajectoryGroup        # imported only here, because it needs numpy

            def one_group(episodes, params):
                everything = [trajectory for episode in episodes for trajectory in episode.trajectories]
                return [TrajectoryGroup(group_id="batch", trajectories=everything)]

            return one_group

        @hookimpl
        def rllm_groupings():
            yield GroupingPlugin(
                name="one_group", summary="The whole batch is one group.", params=NoParams, load=load_one_group
            )
    """
    return ()


@hookspec
def rllm_rejections() -> Iterable[RejectionPlugin[Any]]:
    """Offer rejection modes. Users choose one with ``rllm.rejection_sample.mode``.

    A mode takes the groups of one step and decides which to train on, which to keep for later and which to drop::

        from rllm_core.contracts import NoParams, RejectionPlugin, RejectionResult
        from rllm_core.plugins import hookimpl

        class DropSingles:
            def __init__(self, params):
                pass

            def __call__(self, groups):
                train = [group for group in groups if len(group.trajectories) > 1]
                singles = [group for group in groups if len(group.trajectories) <= 1]
                return RejectionResult(train=train, dropped={"single": singles})

            def state_dict(self):
                return {}

            def load_state_dict(self, state): ...

        @hookimpl
        def rllm_rejections():
            yield RejectionPlugin(
                name="drop_singles", summary="Drop groups of one.", params=NoParams, load=lambda: DropSingles
            )
    """
    return ()


@hookspec
def rllm_samplers() -> Iterable[SamplerPlugin[Any]]:
    """Offer samplers, which choose the tasks of the next rollout batch. Users choose it with ``rllm.sampler``.

    A sampler returns positions of tasks. It may observe the results of earlier tasks::

        from rllm_core.contracts import NoParams, Sampler, SamplerPlugin
        from rllm_core.plugins import hookimpl

        class HardestFirst(Sampler):
            def __init__(self, params, setup):
                self.size = setup.batch_size
                self.rates = [0.0] * len(setup.tasks)

            def draw(self, batch):
                return sorted(range(len(self.rates)), key=lambda position: self.rates[position])[: self.size]

            def observe(self, results):
                for result in results:
                    self.rates[result.position] = result.pass_rate

            def state_dict(self):
                return {"rates": self.rates}

            def load_state_dict(self, state):
                self.rates = state["rates"]

        @hookimpl
        def rllm_samplers():
            yield SamplerPlugin(
                name="hardest_first",
                summary="The tasks with the lowest pass rates.",
                params=NoParams,
                load=lambda: HardestFirst,
            )
    """
    return ()


@hookspec
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    """Offer objectives: pipelines that learn, with default values. Users choose one with ``--objective``.

    This objective imitates the best rollout of each group::

        from rllm_core.contracts import NoParams, ObjectivePlugin, StagePlugin
        from rllm_core.plugins import hookimpl

        class KeepBest:
            def __init__(self, context, params):
                pass

            async def __call__(self, step):
                for group in step.trajectory_groups:
                    group.trajectories = [max(group.trajectories, key=lambda each: each.reward)]

        @hookimpl
        def rllm_stages():
            groups = frozenset({"trajectory_groups"})
            yield StagePlugin(
                name="keep_best", summary="Keep the best rollout.", load=lambda: KeepBest, reads=groups, writes=groups
            )

        @hookimpl
        def rllm_objectives():
            rollouts = ["generate", "impute_names", "group", "check_rewards", "keep_best"]
            yield ObjectivePlugin(
                name="best_of_n",
                summary="Imitate the best rollout of each group.",
                stage="rllm-example/keep_best",
                defaults={
                    "rllm.pipeline.stages": [*rollouts, "build_batch", "supervise", "update", "log"],
                    "rllm.algorithm.loss_fn": "cross_entropy",
                },
            )
    """
    return ()


@hookspec
def rllm_teachers() -> Iterable[TeacherPlugin[Any]]:
    """Offer teachers, which score the tokens of rollouts for distillation. Users choose one with ``rllm.teacher``.

    A teacher takes a batch of tokens and returns a log-prob for each::

        from rllm_core.contracts import Params, TeacherPlugin
        from rllm_core.plugins import hookimpl

        class UniformParams(Params):
            logprob: float = -5.0

        def load_uniform():
            import numpy as np

            class Uniform:
                def __init__(self, params, setup):
                    self.logprob = params.logprob

                async def logprobs(self, batch):
                    return np.full(len(batch.tokens), self.logprob, np.float32)

            return Uniform

        @hookimpl
        def rllm_teachers():
            yield TeacherPlugin(
                name="uniform", summary="All tokens are equally likely.", params=UniformParams, load=load_uniform
            )
    """
    return ()


@hookspec
def rllm_sandboxes() -> Iterable[SandboxPlugin[Any]]:
    """Offer sandboxes, in which the commands of agents and of tests run. Users choose one with ``rllm.sandbox``.

    A sandbox runs commands and copies directories. This sandbox pretends that all commands succeed::

        from rllm_core.contracts import CommandResult, NoParams, Sandbox, SandboxPlugin
        from rllm_core.plugins import hookimpl

        class Pretending(Sandbox):
            async def run(self, command, *, seconds, environment=None, stdin=b"", port=None):
                return CommandResult(exit_code=0, stdout=b"", stderr=b"")

            async def run_untrusted(self, command, *, seconds, stdin=b""):
                return await self.run(command, seconds=seconds, stdin=stdin)

            async def copy_in(self, source, target): ...

            async def stop(self): ...

        async def start(params, setup):
            return Pretending()

        @hookimpl
        def rllm_sandboxes():
            yield SandboxPlugin(
                name="pretending", summary="Runs nothing.", params=NoParams, load=lambda: start
            )
    """
    return ()


@hookspec
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    """Offer pipeline stages. Users place them with ``rllm.pipeline``.

    A stage declares the fields that it reads and writes, so that rllm can check the order before the run starts::

        from rllm_core.contracts import NoParams, StagePlugin
        from rllm_core.plugins import hookimpl

        class CountGroups:
            def __init__(self, context, params):
                pass

            async def __call__(self, step):
                step.metrics["my/groups"] = float(len(step.trajectory_groups))

        @hookimpl
        def rllm_stages():
            yield StagePlugin(
                name="count_groups",
                summary="Log the number of groups.",
                params=NoParams,
                load=lambda: CountGroups,
                reads=frozenset({"trajectory_groups"}),
                writes=frozenset(),
            )
    """
    return ()


@hookspec
def rllm_backends() -> Iterable[BackendPlugin[Any]]:
    """Offer backends, which sample, update and save the weights. Users choose one with ``rllm/backend=NAME``.

    The plugin spec declares the backend's features. A run that needs more features stops before anything is loaded::

        from pathlib import Path
        from rllm_core.contracts import Backend, BackendPlugin, Capabilities, NoParams, UpdateResult
        from rllm_core.plugins import hookimpl

        class Nowhere(Backend):
            async def start(self, run):
                raise NotImplementedError("return a RolloutEngine here")

            async def update(self, batch, plan):
                return UpdateResult(metrics={})

            async def sync_weights(self, version): ...
            async def save(self, directory): ...
            async def load(self, directory): ...

        @hookimpl
        def rllm_backends():
            yield BackendPlugin(
                name="nowhere",
                summary="Trains nothing.",
                params=NoParams,
                load=lambda: Nowhere,
                config_yaml=lambda: Path("rllm_example/config/rllm/backend/nowhere.yaml"),
                capabilities=Capabilities(custom_losses=True),
            )
    """
    return ()


@hookspec
def rllm_engines() -> Iterable[EnginePlugin[Any]]:
    """Offer rollout engines, which sample for backends. Users choose one with ``rllm.rollout.engine``::

    from rllm_core.contracts import EnginePlugin, Params
    from rllm_core.plugins import hookimpl

    class RemoteParams(Params):
        url: str = "http://127.0.0.1:8000"

    class Remote:
        def __init__(self, params):
            self.url = params.url

        async def start(self, setup):
            self.renderer, self.max_context = setup.renderer, setup.max_context

        async def load_weights(self, weights, version):
            raise NotImplementedError("send them there, and forget what is cached")

        async def generate(self, prompt_ids, sampling, *, session):
            raise NotImplementedError("return a Completion here")

        async def end_session(self, session): ...
        async def close(self): ...

    @hookimpl
    def rllm_engines():
        yield EnginePlugin(
            name="remote", summary="Samples on another machine.", params=RemoteParams, load=lambda: Remote
        )
    """
    return ()


@hookspec
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    """Offer workflows, which produce one rollout of a task. Users choose one with ``rllm.workflow.name``.

    A workflow sends messages to the engine and actions to the environment, and returns an episode::

        from rllm_core.contracts import NoParams, Workflow, WorkflowPlugin
        from rllm_core.plugins import hookimpl

        def load_answer_once():
            from rllm_core.data.types import Episode, Trajectory

            class AnswerOnce(Workflow):
                async def run(self, task, uid, **kwargs):
                    prompt = task["prompt_ids"]
                    completion = await self.context.engine.generate(prompt, self.context.sampling, session=uid)
                    trajectory = Trajectory("solver", reward=float(len(completion.token_ids) < 10))
                    trajectory.add_step(prompt, completion.token_ids, completion.logprobs)
                    return Episode(id=uid, trajectories=[trajectory])

            return AnswerOnce

        @hookimpl
        def rllm_workflows():
            yield WorkflowPlugin(
                name="answer_once", summary="One call, brevity is rewarded.", params=NoParams, load=load_answer_once
            )
    """
    return ()


@hookspec
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    """Offer agents, which convert model responses to actions. Users choose one with ``rllm.agent.name``::

    from rllm_core.contracts import Agent, AgentPlugin, Params
    from rllm_core.plugins import hookimpl

    class LastLineParams(Params):
        request: str = "Think aloud. Your last line is your answer."

    class LastLine(Agent):
        def __init__(self, params):
            self.request = params.request

        def observe(self, observation):
            said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
            return [*said, {"role": "user", "content": self.request}]

        def act(self, response):
            return response.text.strip().rpartition("\\n")[2]

    @hookimpl
    def rllm_agents():
        yield AgentPlugin(
            name="last_line",
            summary="The last line of a response is the action.",
            params=LastLineParams,
            load=lambda: LastLine,
        )
    """
    return ()


@hookspec
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    """Offer environments, which provide tasks, observations and rewards. Users choose one with ``rllm.env.name``::

    from rllm_core.contracts import Environment, EnvironmentPlugin, Outcome, Params
    from rllm_core.plugins import hookimpl

    class EchoParams(Params):
        tasks: int = 100

    class Echo(Environment):
        def __init__(self, params):
            self.word = ""

        @classmethod
        def tasks(cls, split, params):
            from rllm_core.data.types import Task

            return [Task(id=f"{split}-{i}", data={"word": f"word{i}"}) for i in range(params.tasks)]

        def reset(self, task):
            self.word = task["word"]
            return f"Say {self.word}."

        def step(self, action):
            return Outcome(reward=float(action.strip() == self.word), done=True)

    @hookimpl
    def rllm_environments():
        yield EnvironmentPlugin(
            name="echo", summary="Repeat a word.", params=EchoParams, load=lambda: Echo, blocking=False
        )
    """
    return ()


@hookspec
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    """Offer rewards, which score rollouts. Users list them in ``rllm.reward``. `load` returns a factory::

    from rllm_core.contracts import Params, RewardPlugin, Score
    from rllm_core.plugins import hookimpl

    class ContainsParams(Params):
        ignore_case: bool = True

    class Contains:
        def __init__(self, params):
            self.ignore_case = params.ignore_case

        def __call__(self, rollout):
            answer, said = str(rollout.data["answer"]), rollout.response.content
            if self.ignore_case:
                answer, said = answer.lower(), said.lower()
            return Score(value=float(answer in said), correct=answer in said)

    @hookimpl
    def rllm_rewards():
        yield RewardPlugin(
            name="contains",
            summary="1 if the response contains the answer.",
            params=ContainsParams,
            load=lambda: Contains,
            needs=frozenset({"answer"}),
            blocking=False,
        )
    """
    return ()


@hookspec
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    """Offer renderers, which convert messages to tokens and back. Users choose one with ``rllm.renderer``::

    from rllm_core.contracts import NoParams, RendererPlugin
    from rllm_core.plugins import hookimpl

    def load_answer_only():
        from dataclasses import replace

        from rllm_core.rollout.template_renderer import TemplateRenderer

        class AnswerOnly(TemplateRenderer):
            def parse(self, prompt_ids, response_ids, tools=()):
                response = super().parse(prompt_ids, response_ids, tools)
                return replace(response, content=response.content.rpartition("Answer:")[2].strip())

        return lambda setup, params: AnswerOnly(setup.tokenizer, setup.stop_ids, setup.template_options)

    @hookimpl
    def rllm_renderers():
        yield RendererPlugin(
            name="answer_only",
            summary="The model's template; a response's content is what follows `Answer:`.",
            params=NoParams,
            load=load_answer_only,
        )
    """
    return ()


@hookspec
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    """Offer datasets of tasks. Users choose them with ``data.train_dataset`` and ``data.val_dataset``.

    Workflows and the environment's `reset` receive the `data` of a task::

        from rllm_core.contracts import DatasetPlugin, Params
        from rllm_core.plugins import hookimpl

        class ProductsParams(Params):
            first: int = 2
            last: int = 99

        def load_products():
            from rllm_core.data.types import Task        # imported only here, because it needs numpy

            def products(params):
                numbers = range(params.first, params.last + 1)
                return [Task(id=f"{a}x{b}", data={"a": a, "b": b}) for a in numbers for b in numbers]

            return products

        @hookimpl
        def rllm_datasets():
            yield DatasetPlugin(
                name="products", summary="Two numbers to multiply.", params=ProductsParams, load=load_products
            )
    """
    return ()


@hookspec
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    """Offer trackers, which receive metrics. Users list them in ``rllm.trainer.logger``. `load` returns a factory::

    from rllm_core.contracts import NoParams, TrackerPlugin
    from rllm_core.plugins import hookimpl

    class TextFile:
        def __init__(self, run, params):
            self.path = run.directory / "metrics.txt"   # opened later: a run may fail to start, or replace another

        def log(self, global_step, metrics):
            with self.path.open("a") as file:
                file.write(f"{global_step} {dict(metrics)}\\n")

        def close(self): ...

    @hookimpl
    def rllm_trackers():
        yield TrackerPlugin(name="text_file", summary="One line per step.", params=NoParams, load=lambda: TextFile)
    """
    return ()


@hookspec
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    """Offer observers, which receive events of the training loop. Users list them in ``rllm.trainer.observers``::

    from rllm_core.contracts import NoParams, Observer, ObserverPlugin
    from rllm_core.plugins import hookimpl

    class SkipEarlyValidation(Observer):
        def __init__(self, params):
            pass

        def on_validation_start(self, global_step):
            return global_step >= 10

    @hookimpl
    def rllm_observers():
        yield ObserverPlugin(
            name="skip_early_validation",
            summary="No validation in the first ten steps.",
            params=NoParams,
            load=lambda: SkipEarlyValidation,
        )
    """
    return ()
