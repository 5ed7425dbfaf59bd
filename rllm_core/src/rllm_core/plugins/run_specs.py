"""Hooks of what a run is made of: backends, engines, workflows, agents, environments, datasets, trackers, observers.

All are in ``specs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.engine import EnginePlugin
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.plugins.markers import hookspec


@hookspec
def rllm_backends() -> Iterable[BackendPlugin[Any]]:
    """Offer backends, chosen by ``rllm/backend=NAME``: they hold the weights, sample, update and save.

    The record says what the backend can do, so that a run which asks for more stops before anything is loaded::

        from pathlib import Path
        from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
        from rllm_core.contracts.plugin import NoParams
        from rllm_core.plugins import hookimpl

        class Nowhere(Backend):
            async def start(self, run):
                raise NotImplementedError("return a RolloutEngine here")

            async def update(self, batch, plan):
                return {}

            async def publish(self, version):
                pass

            async def save(self, folder):
                pass

            async def load(self, folder):
                pass

        @hookimpl
        def rllm_backends():
            return [
                BackendPlugin(
                    name="nowhere",
                    summary="Trains nothing.",
                    params=NoParams,
                    load=lambda: Nowhere,
                    config_yaml=lambda: Path("rllm_example/config/rllm/backend/nowhere.yaml"),
                    capabilities=Capabilities(custom_losses=True),
                )
            ]
    """
    return ()


@hookspec
def rllm_engines() -> Iterable[EnginePlugin[Any]]:
    """Offer rollout engines, chosen by ``rllm.rollout.engine``: they sample for backends that can host one::

    from rllm_core.contracts.engine import EnginePlugin
    from rllm_core.contracts.plugin import Params
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

        async def end_session(self, session):
            pass

        async def close(self):
            pass

    @hookimpl
    def rllm_engines():
        return [
            EnginePlugin(
                name="remote", summary="Samples on another machine.", params=RemoteParams, load=lambda: Remote
            )
        ]
    """
    return ()


@hookspec
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    """Offer workflows, chosen by ``rllm.workflow.name``: how one attempt at a task is made.

    Messages go to the engine, actions to the environment, an episode comes out::

        from rllm_core.contracts.plugin import NoParams
        from rllm_core.contracts.workflow import WorkflowPlugin
        from rllm_core.plugins import hookimpl

        def load_answer_once():
            from rllm_core.contracts.workflow import Workflow
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
            return [
                WorkflowPlugin(
                    name="answer_once", summary="One call, brevity is rewarded.", params=NoParams, load=load_answer_once
                )
            ]
    """
    return ()


@hookspec
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    """Offer agents, chosen by ``rllm.agent.name``: what the model hears, and which of its words are its action::

    from rllm_core.contracts.agent import Agent, AgentPlugin
    from rllm_core.contracts.plugin import Params
    from rllm_core.plugins import hookimpl

    class LastLineParams(Params):
        request: str = "Think aloud. Your last line is your answer."

    class LastLine(Agent):
        def __init__(self, params):
            self.request = params.request

        def observe(self, observation):
            said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
            return [*said, {"role": "user", "content": self.request}]

        def act(self, reply):
            return reply.text.strip().rpartition("\\n")[2]

    @hookimpl
    def rllm_agents():
        return [
            AgentPlugin(
                name="last_line",
                summary="The last line of a reply is the action.",
                params=LastLineParams,
                load=lambda: LastLine,
            )
        ]
    """
    return ()


@hookspec
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    """Offer environments, chosen by ``rllm.env.name``: tasks, what the agent sees, and what its words earn::

    from rllm_core.contracts.plugin import Params
    from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
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
        return [
            EnvironmentPlugin(
                name="echo", summary="Repeat a word.", params=EchoParams, load=lambda: Echo, blocking=False
            )
        ]
    """
    return ()


@hookspec
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    """Offer datasets, chosen by ``data.train_dataset`` and ``data.val_dataset``: tasks that no environment makes up.

    A task's `data` is what workflows get and what `reset` of an environment is given::

        from rllm_core.contracts.dataset import DatasetPlugin
        from rllm_core.contracts.plugin import Params
        from rllm_core.plugins import hookimpl

        class ProductsParams(Params):
            first: int = 2
            last: int = 99

        def load_products():
            from rllm_core.data.types import Task        # needs numpy, so it waits until it is called for

            def products(params):
                numbers = range(params.first, params.last + 1)
                return [Task(id=f"{a}x{b}", data={"a": a, "b": b}) for a in numbers for b in numbers]

            return products

        @hookimpl
        def rllm_datasets():
            return [
                DatasetPlugin(
                    name="products", summary="Two numbers to multiply.", params=ProductsParams, load=load_products
                )
            ]
    """
    return ()


@hookspec
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    """Offer trackers, listed in ``rllm.trainer.logger``: where metrics go. `load` returns a factory::

    from rllm_core.contracts.plugin import NoParams
    from rllm_core.contracts.tracker import TrackerPlugin
    from rllm_core.plugins import hookimpl

    class TextFile:
        def __init__(self, run, params):
            self.file = (run.folder / "metrics.txt").open("a")

        def log(self, global_step, metrics):
            self.file.write(f"{global_step} {dict(metrics)}\\n")

        def close(self):
            self.file.close()

    @hookimpl
    def rllm_trackers():
        return [
            TrackerPlugin(name="text_file", summary="One line per step.", params=NoParams, load=lambda: TextFile)
        ]
    """
    return ()


@hookspec
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    """Offer observers, listed in ``rllm.trainer.observers``: they watch the loop, and may veto a validation::

    from rllm_core.contracts.observer import Observer, ObserverPlugin
    from rllm_core.contracts.plugin import NoParams
    from rllm_core.plugins import hookimpl

    class SkipEarlyValidation(Observer):
        def __init__(self, params):
            pass

        def on_validation_start(self, global_step):
            return global_step >= 10

    @hookimpl
    def rllm_observers():
        return [
            ObserverPlugin(
                name="skip_early_validation",
                summary="No validation in the first ten steps.",
                params=NoParams,
                load=lambda: SkipEarlyValidation,
            )
        ]
    """
    return ()
