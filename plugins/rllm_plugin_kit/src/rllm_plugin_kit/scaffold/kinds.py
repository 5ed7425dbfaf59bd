"""The kinds of plugin there is a template for, and how each is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rllm_core import __version__

_MAJOR, _MINOR, *_ = (int(part) for part in __version__.split("."))
LOWEST_CORE = f"{_MAJOR}.{_MINOR}.0"
"""The lowest version of rllm-core in `CORE_BOUNDS`."""
CORE_BOUNDS = f">={_MAJOR}.{_MINOR},<{_MAJOR}.{_MINOR + 1}"
"""Version range of rllm-core that a new package requires: this minor release."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """Data of a kind that is not in ``templates/<kind>``. ``$chosen`` is replaced by the name in config."""

    title: str
    """Name of the kind in prose."""
    summary: str
    """The record's summary."""
    train: str
    """A command that trains with it."""
    config: str
    """The same in a config file, with the plugin's option."""
    dependencies: tuple[str, ...] = (f"rllm-core{CORE_BOUNDS}",)


_NUMPY = ("numpy>=2.0", "pydantic>=2.10.1", f"rllm-core{CORE_BOUNDS}")
_PLAIN = ("pydantic>=2.10.1", f"rllm-core{CORE_BOUNDS}")
_TORCH = ("pydantic>=2.10.1", f"rllm-core[torch]{CORE_BOUNDS}", "torch>=2.6")

TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "estimator": Template(
            title="Advantage estimator",
            summary="Reward minus the group's median, times a constant.",
            train="rllm train guess --estimator $chosen",
            config="rllm:\n  algorithm:\n    adv_estimator: {name: $chosen, strength: 2.0}",
            dependencies=_NUMPY,
        ),
        "loss": Template(
            title="Policy loss",
            summary="Importance ratio times advantage, held near the old policy by a quadratic penalty.",
            train="rllm train guess --loss $chosen",
            config="rllm:\n  algorithm:\n    loss_fn: {name: $chosen, strength: 0.5}",
            dependencies=_TORCH,
        ),
        "grouping": Template(
            title="Trajectory grouping",
            summary="Rollouts of one role at one task, at most `size` in a group.",
            train="rllm train guess --grouping $chosen",
            config="rllm:\n  transform:\n    grouping: {name: $chosen, size: 2}",
            dependencies=_PLAIN,
        ),
        "rejection": Template(
            title="Rejection mode",
            summary="Drop groups whose rewards lie close together.",
            train="rllm train guess --rejection $chosen",
            config="rllm:\n  rejection_sample:\n    enable: true\n    mode: {name: $chosen, spread: 0.2}",
            dependencies=_PLAIN,
        ),
        "sampler": Template(
            title="Sampler",
            summary="Random tasks; tasks that are not solved come first.",
            train="rllm train guess --sampler $chosen",
            config="rllm:\n  sampler: {name: $chosen, bound: 0.5}",
            dependencies=_NUMPY,
        ),
        "teacher": Template(
            title="Teacher",
            summary="Prefers one token. All other tokens are equally likely.",
            train="rllm train guess --objective opd --teacher $chosen",
            config=(
                "rllm:\n  teacher: {name: $chosen, probability: 0.9}\n"
                "  pipeline:\n    insert: [{stage: distill, after: advantages}]"
            ),
            dependencies=_NUMPY,
        ),
        "objective": Template(
            title="Objective",
            summary="Imitate the best rollouts of each group.",
            train="rllm train guess --objective $chosen",
            config="rllm:\n  objective: $chosen\n  pipeline:\n    options: {$chosen: {keep: 2}}",
            dependencies=_PLAIN,
        ),
        "sandbox": Template(
            title="Sandbox",
            summary="A directory, without isolation. Commands run with low priority.",
            train="rllm train guess --sandbox $chosen rllm.workflow.name=agent "
            "rllm.workflow.workflow_args.command=[python3,agent.py] rllm.workflow.workflow_args.reports_reward=true",
            config="rllm:\n  sandbox: {name: $chosen, niceness: 10}\n"
            "  workflow: {name: agent, workflow_args: {command: [python3, agent.py], reports_reward: true}}",
            dependencies=_PLAIN,
        ),
        "stage": Template(
            title="Pipeline stage",
            summary="Takes a little reward for every token that was sampled.",
            train='rllm train guess "rllm.pipeline.insert=[{stage: $chosen, after: check_rewards}]"',
            config=(
                "rllm:\n  pipeline:\n    insert:\n"
                "      - {stage: {name: $chosen, cost_per_token: 0.01}, after: check_rewards}"
            ),
            dependencies=_PLAIN,
        ),
        "backend": Template(
            title="Backend",
            summary="A table of which character follows which: the smallest model that can be trained.",
            train="rllm train guess --backend $chosen",
            config="rllm:\n  backend: $chosen\ntraining:\n  learning_rate: 50.0",
            dependencies=("numpy>=2.0", *_TORCH),
        ),
        "engine": Template(
            title="Rollout engine",
            summary="Samples with transformers, every token from the whole conversation.",
            train="rllm train guess rllm.rollout.engine=$chosen",
            config="rllm:\n  rollout:\n    engine: {name: $chosen, threads: 2}",
            dependencies=("numpy>=2.0", *_TORCH, "transformers>=5.6.1"),
        ),
        "workflow": Template(
            title="Workflow",
            summary="Two answers to one question; the second is the action.",
            train="rllm train sum rllm.workflow.name=$chosen",
            config="rllm:\n  workflow:\n    name: $chosen\n    workflow_args: {request: once more}",
            dependencies=_PLAIN,
        ),
        "agent": Template(
            title="Agent",
            summary="The last line of a response is the action.",
            train="rllm train guess rllm.agent.name=$chosen",
            config="rllm:\n  agent:\n    name: $chosen\n    agent_args: {request: last line}",
            dependencies=_PLAIN,
        ),
        "environment": Template(
            title="Environment",
            summary="Say which of two numbers is larger (one turn).",
            train="rllm train $chosen",
            config="rllm:\n  env:\n    name: $chosen\n    env_args: {largest: 20}",
            dependencies=_PLAIN,
        ),
        "reward": Template(
            title="Reward",
            summary="1 for a response of the requested form, else 0.",
            train="rllm train sum rllm.reward=[$chosen]",
            config="rllm:\n  reward: [{name: $chosen, weight: 0.5, pattern: '[0-9]+'}]",
            dependencies=_PLAIN,
        ),
        "renderer": Template(
            title="Renderer",
            summary="The template of the model; the content of a response is the text after a mark.",
            train="rllm train guess rllm.renderer=$chosen",
            config="rllm:\n  renderer: {name: $chosen, mark: result}",
            dependencies=_NUMPY,
        ),
        "dataset": Template(
            title="Dataset",
            summary="Pairs of numbers to add, whose sum is small.",
            train="rllm train sum data.train_dataset=$chosen",
            config="rllm:\n  env:\n    name: sum\ndata:\n  train_dataset: {name: $chosen, largest: 12}",
            dependencies=_PLAIN,
        ),
        "tracker": Template(
            title="Tracker",
            summary="A CSV file with one line per metric.",
            train='rllm train guess "rllm.trainer.logger=[console,$chosen]"',
            config="rllm:\n  trainer:\n    logger: [console, {name: $chosen, file: run.csv}]",
            dependencies=_PLAIN,
        ),
        "observer": Template(
            title="Observer",
            summary="Skips validations until enough rollouts are solved.",
            train='rllm train guess "rllm.trainer.observers=[$chosen]"',
            config="rllm:\n  trainer:\n    observers: [{name: $chosen, solved: 0.5}]",
            dependencies=_PLAIN,
        ),
    }
)
"""By kind."""
