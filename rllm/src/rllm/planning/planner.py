"""Make a plan of a composed configuration: look up every name, validate every option, and call all checks of the plan.

To add a check, write a function in a module with `CHECKS`, and add it to them. Facts about one key (which plugins read
it, which other key disables it) are marks in the schema, which `rllm.planning.unused_keys` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rllm.config.choices import DEFAULT_OBJECTIVE, chosen_objectives
from rllm.config.compose import Composed
from rllm.config.environment_variables import hide_environment
from rllm.planning import async_training, idle_checks, plugin_checks, term_checks
from rllm.planning.async_training import with_correction
from rllm.planning.parts import resolve_parts
from rllm.planning.plan import ByRole, RunPlan
from rllm.planning.plan_losses import FALLBACK_LOSS, other_losses
from rllm.planning.problem import Problem, settle
from rllm.planning.scoring import WeightedReward
from rllm.planning.unused_keys import settle_effects
from rllm_core.contracts.chosen import FAMILY, PluginChoice, Registered
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.renderer import AUTO_RENDERER
from rllm_core.errors import ConfigError
from rllm_core.pipeline.graph import StageChoice, order_stages
from rllm_core.plugins.choice import choose
from rllm_core.plugins.discovery import CORE, indexed_summaries, read_index
from rllm_core.plugins.registry import Registry
from rllm_core.schema.algorithm_sections import AlgorithmSection
from rllm_core.schema.run_sections import NO_ENVIRONMENT
from rllm_core.schema.section import ROLE_LOSS, Choice, Names, ReadBy, Section


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that all checks and the checks of the stages find."""
    for module in (plugin_checks, term_checks, idle_checks, async_training):
        yield from module.find_problems(plan)
    yield from other_losses(plan)
    for stage in plan.stages:
        yield from stage.plugin.check_plan(plan, stage.params)


def make_plan(composed: Composed, registry: Registry) -> RunPlan:
    """Resolve all names.

    Raises:
        ConfigError: a name or option is unknown, the backend cannot do what is asked, the stages do not fit together,
            or a value that a user set would have no effect.
    """
    with hide_environment(composed.from_environment):
        return _plan(composed, registry)


def _plan(composed: Composed, registry: Registry) -> RunPlan:
    plan = with_correction(_Planner(composed, registry).plan())
    taking = [*plan.estimators, *plan.losses, plan.rejection, *plan.trackers, *plan.observers]
    settled, unused_keys = settle_effects(plan.composed, plan.registered(), taking, registry)
    # An earlier run's engine that this backend cannot host is back to null, and no part of the run.
    engine = plan.engine if settled.config.rllm.rollout.engine is not None else None
    # Drop rewards too if the run's workflow does not use them.
    rewards = plan.rewards if settled.config.rllm.reward else ()
    plan = replace(plan, composed=settled, engine=engine, rewards=rewards)
    mode = settled.config.rllm.unused_keys
    lines = [*settle(unused_keys, mode), *settle(find_problems(plan), mode)]
    return replace(plan, warnings=(*settled.warnings, *lines))


class _Planner:
    """Looks names up, with the shared options that plugins of some kinds take over from the config."""

    def __init__(self, composed: Composed, registry: Registry) -> None:
        self._composed = composed
        self._registry = registry
        self._config = composed.config.rllm

    def plan(self) -> RunPlan:
        config, data = self._config, self._composed.config.data
        estimators, losses = self._algorithms(config.algorithm)
        workflow = self._pick_in_section(
            "workflow", config.workflow.name, "rllm.workflow", config.workflow.workflow_args
        )
        rejection = config.rejection_sample
        stages = tuple(order_stages(config.pipeline, lambda choice, where: self._pick("stage", choice, where)))
        always = [entry for entry in self._registry.all("tracker") if entry.plugin.every_run]
        observers = self._registry.all("observer")
        joining = [entry for entry in observers if entry.plugin.joins and entry.plugin.joins(self._composed.config)]
        return RunPlan(
            composed=self._composed,
            backend=self._registry.get("backend", config.backend),
            engine=self._pick_if("engine", config.rollout.engine, "rllm.rollout.engine"),
            renderer=self._pick("renderer", self._renderer_name(), "rllm.renderer"),
            environment=self._environment(workflow),
            train_dataset=self._dataset(data.train_dataset, "data.train_dataset"),
            val_dataset=self._dataset(data.val_dataset, "data.val_dataset"),
            sampler=self._pick("sampler", config.sampler, "rllm.sampler"),
            teacher=self._pick_if("teacher", config.teacher, "rllm.teacher"),
            sandbox=self._pick_if("sandbox", config.sandbox, "rllm.sandbox"),
            rewards=tuple(self._reward(choice, f"rllm.reward[{index}]") for index, choice in enumerate(config.reward)),
            agent=self._agent(workflow),
            workflow=workflow,
            grouping=self._pick("grouping", config.transform.grouping, "rllm.transform.grouping"),
            rejection=self._pick(
                "rejection", rejection.mode if rejection.enable else "none", "rllm.rejection_sample.mode"
            ),
            estimators=estimators,
            losses=losses,
            trackers=self._pick_and_join("tracker", config.trainer.logger, "rllm.trainer.logger", always),
            observers=self._pick_and_join("observer", config.trainer.observers, "rllm.trainer.observers", joining),
            stages=stages,
            objectives=self._objectives(stages),
        )

    def _objectives(self, stages: Sequence[StageChoice]) -> tuple[Registered[ObjectivePlugin], ...]:
        """Return the objectives that have a stage, in the order of the stages.

        Raises:
            ConfigError: an objective in the config has a stage that the pipeline does not have.
        """
        names = [stage.registered.qualified_name for stage in stages]
        for chosen in chosen_objectives(self._registry, self._config.objective):
            if chosen.stage is not None and chosen.stage not in names:
                raise ConfigError(
                    "objective-without-stage",
                    f"Objective {chosen.name!r} needs stage {chosen.stage!r}, and rllm.pipeline removes it.",
                    "Change rllm.pipeline, or choose a different objective.",
                )
        by_stage = {entry.plugin.stage: entry for entry in self._registry.all("objective")}
        found = tuple(by_stage[name] for name in names if name in by_stage)
        return found or (self._registry.get("objective", DEFAULT_OBJECTIVE),)

    def _renderer_name(self) -> Choice:
        """Return the renderer in the config. Without a name: `AUTO_RENDERER` if installed, or the chat template."""
        chosen = self._config.renderer
        if isinstance(chosen, str) or (chosen is not None and "name" in chosen):
            return chosen
        is_installed = any(entry.qualified_name == AUTO_RENDERER for entry in self._registry.all("renderer"))
        # The library's renderers remove earlier reasoning, as the models' templates do.
        name = AUTO_RENDERER if is_installed and not self._config.accumulate_reasoning else f"{CORE}/template"
        return name if chosen is None else {"name": name, **chosen}

    def _pick(self, kind: str, choice: Choice, where: str) -> PluginChoice[Any]:
        if isinstance(choice, str):
            choice = self._qualify_default(kind, choice, where)
        chosen = choose(self._registry, kind, choice, where, shared_options(self._composed.config, kind))
        return resolve_parts(chosen, self._pick, where) if kind == "estimator" else chosen

    def _pick_if(self, kind: str, choice: Choice | None, where: str) -> PluginChoice[Any] | None:
        return self._pick(kind, choice, where) if choice is not None else None

    def _dataset(self, choice: Choice | None, where: str) -> PluginChoice[Any] | None:
        if isinstance(choice, str):
            choice = dataset_of_file(self._registry, choice, where)
        return self._pick_if("dataset", choice, where)

    def _qualify_default(self, kind: str, name: str, where: str) -> str:
        """Return the name as a user wrote it. A default name always means the core's plugin of that name.

        `where` is a place such as ``rllm.trainer.logger[0]``.
        """
        key, own = where.partition("[")[0], f"{CORE}/{name.partition(FAMILY)[0]}"
        in_core = any(entry.qualified_name == own for entry in self._registry.all(kind))
        return f"{CORE}/{name}" if in_core and not self._composed.is_by_user(key) else name

    def _pick_all(self, kind: str, choices: list[Choice], where: str) -> tuple[PluginChoice[Any], ...]:
        return tuple(self._pick(kind, choice, f"{where}[{index}]") for index, choice in enumerate(choices))

    def _reward(self, choice: Choice, where: str) -> WeightedReward:
        """Return a reward with its weight. The core reads ``weight``. All other options belong to the plugin."""
        options = {} if isinstance(choice, str) else dict(choice)
        weight = options.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError("bad-reward-weight", f"{where}.weight is {weight!r}.", "Give a number, such as 0.5.")
        return WeightedReward(chosen=self._pick("reward", options or choice, where), weight=float(weight))

    def _pick_and_join(
        self, kind: str, choices: list[Choice], where: str, joining: Iterable[Registered[Any]]
    ) -> tuple[PluginChoice[Any], ...]:
        """Return the chosen plugins, and the plugins that join this run without being chosen."""
        chosen = self._pick_all(kind, choices, where)
        names = {entry.registered.qualified_name for entry in chosen}
        others = [entry.qualified_name for entry in joining if entry.qualified_name not in names]
        shared, where = shared_options(self._composed.config, kind), f"a {kind} of every such run"
        return (*chosen, *(choose(self._registry, kind, name, where, shared) for name in others))

    def _pick_in_section(self, kind: str, name: str, section: str, options: Mapping[str, Any]) -> PluginChoice[Any]:
        """Return a plugin whose name and options are separate keys of a section."""
        options_key = f"{section}.{section.rpartition('.')[2]}_args"
        return self._pick_apart(kind, name, f"{section}.name", options, options_key)

    def _pick_apart(
        self, kind: str, name: str, name_key: str, options: Mapping[str, Any], options_key: str
    ) -> PluginChoice[Any]:
        if "name" in options:
            raise ConfigError(
                "unknown-option",
                f"{options_key}.name is set to {options['name']!r}, and `name` is not an option.",
                f"Set {name_key}.",
            )
        name = self._qualify_default(kind, name, name_key)
        return choose(self._registry, kind, {"name": name, **options}, name_key, options_at=options_key)

    def _environment(self, workflow: PluginChoice[Any]) -> PluginChoice[EnvironmentPlugin[Any]] | None:
        env = self._config.env
        if (own := self._of_workflow(workflow, "environment", "env", env)) is not None:
            return own
        return (
            self._pick_in_section("environment", env.name, "rllm.env", env.env_args)
            if env.name != NO_ENVIRONMENT
            else None
        )

    def _agent(self, workflow: PluginChoice[Any]) -> PluginChoice[Any]:
        agent = self._config.agent
        own = self._of_workflow(workflow, "agent", "agent", agent)
        return own or self._pick_in_section("agent", agent.name, "rllm.agent", agent.agent_args)

    def _of_workflow(
        self, workflow: PluginChoice[Any], kind: str, section: str, settings: Section
    ) -> PluginChoice[Any] | None:
        """Return the agent or environment from the workflow's options. Then ``rllm.<section>`` must not choose one."""
        fields, args = type(workflow.params).model_fields, "rllm.workflow.workflow_args"
        marks = ((name, mark) for name, field in fields.items() for mark in field.metadata if isinstance(mark, Names))
        for named, options_key in ((name, mark.options) for name, mark in marks if mark.kind == kind):
            name = getattr(workflow.params, named)
            options = getattr(workflow.params, options_key) if options_key else {}
            if name is None and not options:
                continue
            if name is None:
                raise ConfigError(
                    "bad-choice",
                    f"{args}.{options_key} is set and {args}.{named} is not.",
                    f"Name the {kind} there, or use rllm.{section}.name and rllm.{section}.{section}_args.",
                )
            for other in ("name", f"{section}_args"):
                if getattr(settings, other) != getattr(type(settings)(), other):
                    raise ConfigError(
                        "conflicting-keys",
                        f"{args}.{named} and rllm.{section}.{other} are both set.",
                        f"Remove {args}.{named} or rllm.{section}.{other}.",
                    )
            return self._pick_apart(kind, name, f"{args}.{named}", options, f"{args}.{options_key}")
        return None

    def _algorithms(self, algorithm: AlgorithmSection) -> tuple[ByRole[PluginChoice[Any]], ByRole[PluginChoice[Any]]]:
        """Return estimators and losses. A role has its own loss, or `loss_fn`, or its estimator's default."""
        at = "rllm.algorithm"
        pick = self._pick
        roles = {role: _split_loss(choice) for role, choice in algorithm.estimator_map.items()}
        estimators: ByRole[PluginChoice[EstimatorPlugin[Any]]] = ByRole(
            pick("estimator", algorithm.adv_estimator, f"{at}.adv_estimator"),
            {
                role: self._pick("estimator", choice, f"{at}.estimator_map.{role}")
                for role, (choice, _) in roles.items()
            },
        )
        chosen_losses = {role: (loss, f"{at}.loss_map.{role}") for role, loss in algorithm.loss_map.items()}
        for role, (_, loss) in roles.items():
            if loss is None:
                continue
            if role in chosen_losses and chosen_losses[role][0] != loss:
                other = chosen_losses[role][0]
                raise ConfigError(
                    "conflicting-keys",
                    f"{at}.estimator_map.{role}.{ROLE_LOSS} is {loss!r}, and {at}.loss_map.{role} is {other!r}.",
                    f"Remove {at}.loss_map.{role}.",
                )
            chosen_losses[role] = (loss, f"{at}.estimator_map.{role}.{ROLE_LOSS}")

        def pick_loss(estimator: PluginChoice[EstimatorPlugin[Any]]) -> PluginChoice[LossPlugin[Any]]:
            if algorithm.loss_fn is not None or estimator.plugin.default_loss is None:
                chosen = FALLBACK_LOSS if algorithm.loss_fn is None else algorithm.loss_fn
                return pick("loss", chosen, f"{at}.loss_fn")
            where = f"default_loss of estimator {estimator.plugin.name}"
            return pick("loss", estimator.plugin.default_loss, where)

        by_role = {role: pick_loss(estimator) for role, estimator in estimators.by_role.items()}
        by_role |= {role: pick("loss", choice, where) for role, (choice, where) in chosen_losses.items()}
        return estimators, ByRole(pick_loss(estimators.default), by_role)


def _split_loss(choice: Choice) -> tuple[Choice, Choice | None]:
    """Split an entry of ``estimator_map`` into the entry without its loss, and the loss."""
    if isinstance(choice, str) or ROLE_LOSS not in choice:
        return choice, None
    return {key: value for key, value in choice.items() if key != ROLE_LOSS}, choice[ROLE_LOSS]


def shared_options(config: BaseModel, kind: str) -> dict[str, Any]:
    """Return the values of a config section that plugins of a kind use as options (`ReadBy.options_of`), by name.

    A null is missing: the plugin's own default applies.
    """
    options: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        if any(isinstance(mark, ReadBy) and kind in mark.options_of for mark in field.metadata):
            if (value := getattr(config, name)) is not None:
                options[name] = value
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            options |= shared_options(getattr(config, name), kind)
    return options


def dataset_of_file(registry: Registry, choice: str, where: str) -> str | dict[str, Any]:
    """Return the dataset that reads the file `choice`, with the file as its option ``path``. Return a name unchanged.

    Raises:
        ConfigError: `choice` is a path, and no installed dataset reads it, or several do. `where` is the config key.
    """
    installed = registry.all("dataset")
    names = {name for entry in installed for name in (entry.name, entry.qualified_name)}
    suffix = Path(choice).suffix.lower()
    if FAMILY in choice or choice in names or not (suffix or Path(choice).expanduser().exists()):
        return choice
    reading = [entry.qualified_name for entry in installed if suffix in entry.plugin.suffixes]
    if len(reading) == 1:
        return {"name": reading[0], "path": choice}
    elsewhere = (name for name, entry in read_index().items() if suffix in entry.endings)
    home = None if reading else next(elsewhere, None)
    if home is not None:
        raise ConfigError(
            "plugin-not-installed",
            f"{where} is {choice!r}: {home} reads files with the suffix {suffix}.",
            f"pip install {home}",
        )
    known = ", ".join(sorted({each for entry in installed for each in entry.plugin.suffixes}))
    # If the user chooses one that is not installed, the error names the package.
    known_names = sorted({*(entry.name for entry in installed), *indexed_summaries("dataset")})
    raise ConfigError(
        "unknown-file-type",
        f"{where} is {choice!r}: {' and '.join(reading) or 'no installed dataset'} would read it by its suffix.",
        f"Files with the suffix {known} need no name. Write others as {{name: NAME, path: {choice}}}. "
        f"Names are {', '.join(known_names)}.",
    )
