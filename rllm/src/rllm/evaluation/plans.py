"""Turn the command line of an evaluation into a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rllm.cli import Request, config_of_checkpoint, plan_for
from rllm.config import COMMAND_LINE, Tier, covers, split_key, where_acts
from rllm.planning import RunPlan
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.schema.run_config import RunConfig
from rllm_record.run_files import PLUGINS


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan of an evaluation, and the run that its model comes from."""

    plan: RunPlan
    run: Path | None
    """The directory of the run whose config is used; None: no run's."""

    @property
    def model(self) -> str:
        """The model as the configuration names it."""
        return str(self.plan.composed.value(self.plan.backend.plugin.model_key))

    def acts(self, key: str) -> bool:
        """True if a dotted key of the configuration can change the results of an evaluation.

        False for a backend's key that is shared with the core, because the core's key decides.
        """
        backend = self.plan.backend.plugin
        if key.split(".")[0] in RunConfig.model_fields:
            return where_acts(RunConfig, split_key(key)) == "rollout"
        shared = any(key == each.native for each in backend.shared_keys)
        return not shared and not any(covers(pattern, key) for pattern in backend.training_keys)


def plan_evaluation(request: Request) -> EvaluationPlan:
    """Return the plan of a request. A checkpoint uses the config of its run if the environment is the same.

    Raises:
        ConfigError: as `make_plan`, or an override on the command line is only for training.
    """
    beneath = config_of_checkpoint(request)
    run = Path(beneath.origin).parent if beneath else None
    try:
        plan = plan_for(request, [beneath] if beneath else [])
    except (ConfigError, PluginError) as error:
        raise _with_advice(error, run) from error
    evaluation = EvaluationPlan(plan, run)
    _refuse_training_keys(evaluation)
    return evaluation


def _with_advice(error: RllmError, run: Path | None) -> RllmError:
    """Return the error. If it concerns a plugin that a run's Python program registered, add a hint about that."""
    names = [] if run is None else [each["name"] for each in _read_plugins(run) if each["distribution"] == IN_PROCESS]
    if not any(repr(name) in error.message or f"/{name}'" in error.message for name in names):
        return error
    return PluginError(
        error.code,
        f"{error.message} The Python program that started {run} registered it.",
        "Move the plugin into a module, and set 'rllm.plugins.import_modules=[MODULE]'. A run started with this key "
        "can be evaluated without the program.",
    )


def _refuse_training_keys(evaluation: EvaluationPlan) -> None:
    """Reject command-line keys that are only for training. Files may contain them, because they serve both."""
    composed = evaluation.plan.composed
    shared = {each.native for each in evaluation.plan.backend.plugin.shared_keys}
    for key in sorted(composed.by_user - shared):
        if composed.tiers[key] is Tier.COMMAND_LINE and not evaluation.acts(key):
            raise ConfigError(
                "unused-key",
                f"`{key}` (from {COMMAND_LINE}) has no effect: this command does not train.",
                "Remove it. Use rllm.rollout.n_val and sampling.val to configure rollouts.",
            )


def _read_plugins(directory: Path) -> list[dict[str, str]]:
    """Return kind, name, distribution and version of every plugin of a run. Empty if the file is missing or damaged."""
    try:
        used = json.loads((directory / PLUGINS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [each for each in used if isinstance(each, dict)] if isinstance(used, list) else []
