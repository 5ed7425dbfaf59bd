"""The plugins of rllm-gateway: the workflow `agent`."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.workflow import OpenedRun, WorkflowPlugin
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig
    from rllm_gateway.running.workflow import AgentParams

requires_api = 1


def _check(params: AgentParams) -> None:
    from rllm_gateway.running.harnesses import HARNESSES, check_harness
    from rllm_gateway.running.target import check_target

    if (params.agent is None) == (params.command is None):
        raise ConfigError(
            "no-agent",
            "Workflow agent needs an agent, either a function or a program.",
            "Set a function with --agent FILE.py:FUNCTION, or a program with rllm.workflow.workflow_args.command=[…].",
        )
    if params.arguments and params.agent not in HARNESSES:
        agents = " or ".join(HARNESSES)
        raise ConfigError(
            "arguments-without-program",
            "rllm.workflow.workflow_args.arguments needs an agent by name, and this run has none.",
            f"Remove it, or add --agent {agents}. Write your program's arguments into `command`.",
        )
    if params.agent is not None and params.agent in HARNESSES:
        check_harness(params.agent)
    elif params.agent is not None and not {":", "."} & set(params.agent):
        raise ConfigError(
            "unknown-agent",
            f"No agent has the name {params.agent!r}.",
            did_you_mean(params.agent, HARNESSES) or f"Write FILE.py:FUNCTION, or a name: {', '.join(HARNESSES)}.",
        )
    elif params.agent is not None:
        check_target(params.agent)
    elif params.command and shutil.which(params.command[0]) is None:
        raise ConfigError(
            "program-not-found",
            f"rllm.workflow.workflow_args.command starts {params.command[0]!r}, but no such program exists.",
            "Set rllm.workflow.workflow_args.command to the program's path and its arguments.",
        )


def _sources(params: AgentParams) -> Mapping[str, str]:
    from rllm_gateway.running.harnesses import HARNESSES
    from rllm_gateway.running.target import sources_of_command, sources_of_function

    if params.agent is not None and params.agent not in HARNESSES:
        return sources_of_function(params.agent)
    return sources_of_command(params.command or params.arguments)


def _task_directories(config: RunConfig) -> list[str]:
    """Return the run's directories of tasks with tests, from the environment ``tasks`` or ``tasks:DIRECTORY``."""
    name, _, directory = config.rllm.env.name.partition(":")
    given = config.rllm.env.env_args
    found = [directory, given.get("directory"), given.get("val_directory")]
    return [each for each in found if each] if name == "tasks" else []


def _check_reports(config: RunConfig, params: AgentParams) -> None:
    """Raise ConfigError if the agent may report its reward, and the reward has a different source."""
    from rllm_gateway.running.harnesses import HARNESSES

    has_tests = bool(_task_directories(config))
    if params.reports_reward and (has_tests or config.rllm.reward or params.agent in HARNESSES):
        source = "the tests of its tasks" if has_tests else "rllm.reward"
        raise ConfigError(
            "unused-key",
            f"rllm.workflow.workflow_args.reports_reward is true, but the reward of this run comes from {source}.",
            "Remove rllm.workflow.workflow_args.reports_reward.",
        )


def _check_run(config: RunConfig, params: AgentParams) -> None:
    from rllm_gateway.running.harnesses import HARNESSES
    from rllm_gateway.serving.checks import check_sdk

    check_sdk(config.rllm.sdk)
    _check_reports(config, params)
    if params.agent is not None and params.agent in HARNESSES:
        if config.rllm.sandbox is None:
            raise ConfigError(
                "no-sandbox",
                f"{params.agent} runs commands that the model writes, and this run has no sandbox.",
                "Add --sandbox bwrap. If you trust the model with all your files, add --sandbox local.",
            )
    elif config.rllm.sandbox is not None and params.command is None:
        raise ConfigError(
            "function-in-sandbox",
            f"The agent {params.agent} is a function, and only programs run in a sandbox.",
            "Remove rllm.sandbox, or start a program with rllm.workflow.workflow_args.command=[…].",
        )


@asynccontextmanager
async def _open(run: OpenedRun, params: AgentParams) -> AsyncIterator[Any]:
    """Open the gateway of a run, and prepare the runner that starts agents."""
    from rllm_gateway.running.harnesses import HARNESSES, HarnessRunner
    from rllm_gateway.running.runners import CommandRunner, FunctionRunner
    from rllm_gateway.running.sandboxed import SandboxRunner, warn_of_readable_tests
    from rllm_gateway.running.target import check_target, described_target
    from rllm_gateway.running.workflow import NoCallWarning, OpenedAgent
    from rllm_gateway.serving.opening import open_gateway
    from rllm_serving.process_directory import ProcessDirectory

    with ProcessDirectory("rllm-gateway-") as files:
        directory = files.path
        harness, name = HARNESSES.get(params.agent or ""), "The agent"
        if harness is not None and run.sandbox is not None:
            runner: Any = HarnessRunner(harness, params.arguments, run.sandbox, params.timeout)
        elif params.agent is not None:
            target = check_target(params.agent)
            name = described_target(target)
            runner = FunctionRunner(target, directory)
        elif run.sandbox is not None:
            runner = SandboxRunner(params.command or [], run.sandbox, params.timeout)
        else:
            runner = CommandRunner(params.command or [], directory)
        if isinstance(runner, SandboxRunner):
            chosen = run.config.rllm.sandbox
            shown = chosen.get("readable", ()) if isinstance(chosen, dict) else ()
            warn_of_readable_tests(_task_directories(run.config), (*shown, *runner.readable))
        no_call_warning = NoCallWarning(run.config.data.train_batch_size * run.config.rllm.rollout.n)
        async with open_gateway(run, directory) as gateway:
            try:
                yield OpenedAgent(gateway=gateway, runner=runner, no_call_warning=no_call_warning, name=name)
            finally:
                await runner.close()


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="agent",
        summary="Your own agent, unmodified, with any client of the OpenAI, Anthropic or Google APIs.",
        load_params=load_from("rllm_gateway.running.workflow", "AgentParams"),
        load=load_from("rllm_gateway.running.workflow", "AgentWorkflow"),
        check=_check,
        check_run=_check_run,
        sources=_sources,
        open=_open,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=frozenset(
            {"rllm.agent.max_steps", "rllm.accumulate_reasoning", "rllm.reward", "rllm.sandbox", "rllm.sdk.*"}
        ),
    )
