"""From a command line to the plan of what is played and not trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rllm_core.cli.configuring import Request, plan_for
from rllm_core.config.compose import BACKEND_KEY
from rllm_core.config.layers import COMMAND_LINE, Layer, Tier, layer_from_file, layers_from_overrides
from rllm_core.config.merge import merge_layers
from rllm_core.config.paths import path_of, value_at
from rllm_core.config.whole import of_any_backend, values_of
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.planning.plan import RunPlan
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.runs.run_folder import read_plugins
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


@dataclass(frozen=True)
class PlayPlan:
    """What is played."""

    plan: RunPlan
    run: Path | None
    """The folder of the run whose config is used; None: no run's."""

    @property
    def model(self) -> str:
        """The model as the configuration names it."""
        return str(self.plan.composed.value(self.plan.backend.plugin.model_key))


def plan_to_play(request: Request) -> PlayPlan:
    """The plan of a request. A checkpoint is played with the config of its run, on the environment of that run.

    Raises:
        ConfigError: what `make_plan` raises, or a word on the command line is for training alone.
    """
    beneath = _config_of_checkpoint(request)
    run = Path(beneath.origin).parent if beneath else None
    try:
        plan = plan_for(request, [beneath] if beneath else [])
    except (ConfigError, PluginError) as error:
        raise _with_advice(error, run) from error
    _refuse_training_keys(plan)
    return PlayPlan(plan, run)


def _with_advice(error: RllmError, run: Path | None) -> RllmError:
    """The error; with what to do where it names something that the program of a run registered by a call."""
    names = [] if run is None else [each["name"] for each in read_plugins(run) if each["distribution"] == IN_PROCESS]
    if not any(repr(name) in error.message or f"/{name}'" in error.message for name in names):
        return error
    return PluginError(
        f"{error.message} The Python program that started {run} registered it.",
        "Write it into a module, and name that: 'rllm.plugins.import_modules=[MODULE]'. A run that is started so is "
        "played without it.",
    )


def _refuse_training_keys(plan: RunPlan) -> None:
    """What is typed for this command must act in it. Files may hold what is for training: they serve both."""
    for key in sorted(plan.composed.by_user):
        core = key.split(".")[0] in RunConfig.model_fields
        if core and plan.composed.tiers[key] is Tier.COMMAND_LINE and not key.startswith(PLAYED):
            raise ConfigError(
                f"`{key}` (from {COMMAND_LINE}) has no effect in `rllm eval`, which plays and does not train.",
                "Leave it out; rllm.rollout.n_val and sampling.val say how to play.",
            )


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
    # Its model is the checkpoint now, for which there is no recipe: what that of the run's model said stays.
    same = _backend_of(request) in (None, saved_value(saved, BACKEND_KEY))
    return values_of(saved) if same else of_any_backend(saved)


def _backend_of(request: Request) -> str | None:
    """The backend that was asked for; None where none was."""
    given = [layer_from_file(file) for file in request.files] + layers_from_overrides(request.overrides)
    name = value_at(merge_layers(given, [RunConfig]).tree, path_of(BACKEND_KEY))
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _as_given(folder: Path) -> Path:
    """Relative to the working directory where it lies within, as users write it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
