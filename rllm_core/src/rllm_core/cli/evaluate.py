"""`rllm eval`: play with a model without training it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from rllm_core.cli.configuring import Request, config_options, plan_for, read_request
from rllm_core.config.compose import BACKEND_KEY
from rllm_core.config.layers import COMMAND_LINE, Layer, layer_from_file, layers_from_overrides
from rllm_core.config.merge import merge_layers
from rllm_core.config.paths import path_of, value_at
from rllm_core.config.whole import of_any_backend
from rllm_core.errors import ConfigError
from rllm_core.planning.plan import RunPlan
from rllm_core.schema.run_config import RunConfig
from rllm_core.training.resuming import saved_config, saved_value

PLAYED = (
    "rllm.backend",
    "rllm.profile",
    "rllm.env.",
    "rllm.workflow.",
    "rllm.agent.",
    "rllm.plugins.",
    "rllm.rollout.n_val",
    "rllm.trainer.seed",
    "rllm.reward",
    "rllm.renderer",
    "rllm.disable_thinking",
    "rllm.accumulate_reasoning",
    "data.val_",
    "data.max_",
    "sampling.val.",
)
"""Keys of the core that matter when nothing is trained, or how they begin."""


@click.command("eval")
@config_options("backend", "profile", "seed", "val-data", "reward")
def evaluate(words: tuple[str, ...], model: str | None, files: tuple[str, ...], **flags: Any) -> None:
    """Play all validation tasks of ENV and report pass@1, pass@k and what the environment counts.

    \b
    A checkpoint is played with the config of the run it belongs to:
      rllm eval guess --model runs/rllm-training/default/checkpoints/latest
    By another backend than it was trained with:
      rllm eval guess --backend local --model runs/rllm-training/default/checkpoints/latest
    More attempts per task:
      rllm eval guess --model ./some-hf-folder rllm.rollout.n_val=64
    Questions of a file:
      rllm eval question --data val.jsonl --reward exact --model ./some-hf-folder
    """
    from rllm_core.cli.summary import results_console, results_table

    request = read_request(words, model, files, flags)
    beneath = _config_of_checkpoint(request)
    plan = plan_for(request, [beneath] if beneath else [])
    _refuse_training_keys(plan)
    model_name = plan.composed.value(plan.backend.plugin.model_key)
    whose = f"the config of {Path(beneath.origin).parent}" if beneath else "no run's config"
    click.echo(f"playing {plan.config.rllm.env.name} with model {model_name} and {whose}")
    metrics = asyncio.run(_play(plan))
    results_console().print(results_table(plan, metrics))


def _refuse_training_keys(plan: RunPlan) -> None:
    """What is typed for this command must act in it. Files may hold what is for training: they serve both."""
    for key in sorted(plan.composed.by_user):
        core = key.split(".")[0] in RunConfig.model_fields
        if core and plan.composed.origins[key] == COMMAND_LINE and not key.startswith(PLAYED):
            raise ConfigError(
                f"`{key}` (from {COMMAND_LINE}) has no effect in `rllm eval`, which plays and does not train.",
                "Leave it out; rllm.rollout.n_val and sampling.val say how to play.",
            )


async def _play(plan: RunPlan) -> dict[str, float]:
    from rllm_core.contracts.backend import RunContext
    from rllm_core.planning.preflight import check_plugins
    from rllm_core.training.setup import open_runner, tasks_of
    from rllm_core.training.validation import validate

    check_plugins(plan)
    tasks = tasks_of(plan, "val")
    if not tasks:
        raise ConfigError("There are no validation tasks to play.", "Name some: --data FILE, or data.val_dataset.")
    backend = plan.backend.load()()
    try:
        context = RunContext(
            config=plan.config,
            backend_config=plan.composed.backend_config,
            seed=plan.config.rllm.trainer.seed,
            total_steps=1,
            renderer=plan.renderer,
            calls_tools=plan.workflow.plugin.calls_tools,
        )
        engine = await backend.start(context)
        async with open_runner(plan, engine) as runner:
            return await validate(runner, tasks, plan.config)
    finally:
        await backend.close()


def _config_of_checkpoint(request: Request) -> Layer | None:
    """The config of the run whose checkpoint is played, when it was trained on the same environment.

    A checkpoint lies in ``<run>/checkpoints/<step>``, its model deeper still.
    On another environment its prompts and lengths mean nothing.
    """
    if request.model is None:
        return None
    path = Path(request.model).expanduser().absolute()
    runs = [folder.parent for folder in (path, *path.parents) if folder.name == "checkpoints"]
    saved = saved_config(_as_given(runs[0])) if runs else None
    if saved is None:
        return None
    if request.environment not in (None, saved_value(saved, "rllm.env.name")):
        return None
    return saved if _backend_of(request) in (None, saved_value(saved, BACKEND_KEY)) else of_any_backend(saved)


def _backend_of(request: Request) -> str | None:
    """The backend that was asked for; None where none was."""
    given = [layer_from_file(file) for file in request.files] + layers_from_overrides(request.overrides)
    name = value_at(merge_layers(given, [RunConfig]).tree, path_of(BACKEND_KEY))
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _as_given(folder: Path) -> Path:
    """Relative to the working directory where it lies within, as users write it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
