"""The order of stages: the built-in order, edits from the config, and a check that each stage's inputs are written
before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.stage import StagePlugin
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.schema.algorithm_sections import PipelineSection
from rllm_core.schema.section import Choice

BUILT_IN = (
    "generate",
    "impute_names",
    "greedy_baseline",
    "compact_filter",
    "group",
    "check_rewards",
    "reject",
    "build_batch",
    "process",
    "advantages",
    "update",
    "log",
)
GIVEN = frozenset({"tasks"})
"""The fields of a step that are set before its first stage."""

StageChoice = PluginChoice[StagePlugin[Any]]
ChooseStage = Callable[[Choice, str], StageChoice]
"""Resolves a stage's name or mapping. The second argument is the config path for error messages."""


@dataclass(frozen=True)
class _Entry:
    choice: Choice
    where: str

    @property
    def name(self) -> str:
        name = str(self.choice.get("name", "")) if isinstance(self.choice, dict) else str(self.choice)
        return name.rpartition("/")[2]


def order_stages(settings: PipelineSection, choose: ChooseStage) -> list[StageChoice]:
    """Return the checked stages of a run in order.

    Raises:
        ConfigError: an edit names a stage that is not in the pipeline, or a stage lacks an input.
    """
    listed = BUILT_IN if settings.stages is None else settings.stages
    entries = [_Entry(choice, f"rllm.pipeline.stages[{index}]") for index, choice in enumerate(listed)]
    for name in settings.remove:
        del entries[_position(entries, name, "rllm.pipeline.remove")]
    for name, choice in settings.replace.items():
        where = f"rllm.pipeline.replace.{name}"
        entries[_position(entries, name, where)] = _Entry(choice, where)
    for index, edit in enumerate(settings.insert):
        _insert(entries, edit, f"rllm.pipeline.insert[{index}]")
    for index, edit in enumerate(settings.move):
        _move(entries, edit, f"rllm.pipeline.move[{index}]")
    for name, options in settings.options.items():
        where = f"rllm.pipeline.options.{name}"
        position = _position(entries, name, where)
        choice = entries[position].choice
        entries[position] = _Entry({**({"name": choice} if isinstance(choice, str) else choice), **options}, where)
    stages = [choose(entry.choice, entry.where) for entry in entries]
    check(stages)
    return stages


def count_rollout_stages(stages: Sequence[StageChoice]) -> int:
    """Return the number of stages before the first stage that is not a rollout stage."""
    return next((at for at, stage in enumerate(stages) if not stage.plugin.is_rollout_stage), len(stages))


def check(stages: Sequence[StageChoice]) -> None:
    """Check that every stage reads only keys that earlier stages wrote and that are up to date.

    A key is out of date if one of its sources changed after it was written.

    Raises:
        ConfigError: a stage reads a missing or outdated key, or a rollout stage cannot run ahead of an earlier step's
            update.
    """
    written = set(GIVEN)
    made: dict[str, _Origin] = {}
    for position, stage in enumerate(stages):
        plugin = stage.plugin
        for key in sorted(plugin.reads - written):
            later_stages = (later.plugin for later in stages[position + 1 :])
            writers = [other.name for other in later_stages if key in other.writes - other.reads]
            hint = (
                f"{writers[0]!r} writes it, but comes later: move it before {plugin.name!r}."
                if writers
                else "Put a stage that writes it before; `rllm plugins list --kind stage` shows what there is."
            )
            raise ConfigError(
                "stage-input-missing", f"Stage {plugin.name!r} reads {key!r}, which no stage before it writes.", hint
            )
        for key in (*sorted(plugin.reads | plugin.writes), *sorted(written)) if plugin.is_rollout_stage else ():
            if key.partition(".")[0] in ("batch", "weights"):
                raise ConfigError(
                    "stage-order",
                    f"Stage {plugin.name!r} generates rollouts, and must come before {key!r} is read or written.",
                    "Move it, or remove `is_rollout_stage=True` from its plugin spec.",
                )
        for key in sorted(plugin.reads & made.keys()):
            if made[key].changed_by:
                raise ConfigError(
                    "stage-order",
                    f"Stage {plugin.name!r} reads {key!r}, which {made[key].by!r} made before {made[key].changed_by!r} "
                    f"changed what it was made from.",
                    f"Move {made[key].changed_by!r} before {made[key].by!r}.",
                )
        for key in plugin.writes & written:
            _mark_stale(made, key, plugin.name)
        written |= plugin.writes
        # A key that a stage changes in place keeps its earlier sources.
        fresh = plugin.writes - (plugin.reads & made.keys())
        made |= {key: _Origin(by=plugin.name, sources=plugin.reads - plugin.writes) for key in fresh}


@dataclass
class _Origin:
    """The origin of a key's value."""

    by: str
    sources: frozenset[str]
    """Keys that the stage read and did not change. If a stage writes two keys together, each is a source of the
    other."""
    changed_by: str = ""
    """A later stage that changed one of the sources. Empty if there is none."""


def _mark_stale(made: dict[str, _Origin], key: str, by: str) -> None:
    """Mark every value that is derived from `key` as stale."""
    for name, entry in made.items():
        if key in entry.sources and not entry.changed_by:
            entry.changed_by = by
            _mark_stale(made, name, by)


def _insert(entries: list[_Entry], edit: dict[str, Any], where: str) -> None:
    entries.insert(_place(entries, edit, where), _Entry(edit["stage"], where))


def _move(entries: list[_Entry], edit: dict[str, str], where: str) -> None:
    if edit.get("stage") in (edit.get("after"), edit.get("before")):
        raise ConfigError(
            "bad-stage-edit",
            f"{where} moves stage {edit.get('stage')!r} next to itself.",
            "Name a different stage in `after` or `before`.",
        )
    _place(entries, edit, where)
    moved = entries.pop(_position(entries, edit["stage"], where))
    entries.insert(_place(entries, edit, where), moved)


def _place(entries: list[_Entry], edit: Mapping[str, Any], where: str) -> int:
    """Return the position that an edit specifies."""
    anchors = [side for side in ("before", "after") if side in edit]
    if "stage" not in edit or len(anchors) != 1 or len(edit) != 2:
        raise ConfigError(
            "bad-stage-edit",
            f"{where} is {edit!r}.",
            "Write {stage: NAME, after: NAME} or {stage: NAME, before: NAME}.",
        )
    return _position(entries, str(edit[anchors[0]]), where) + (anchors[0] == "after")


def _position(entries: list[_Entry], name: str, where: str) -> int:
    names = [entry.name for entry in entries]
    if name not in names:
        raise ConfigError(
            "unknown-stage",
            f"{where} names stage {name!r}, which is not in the pipeline: {', '.join(names)}.",
            did_you_mean(name, names),
        )
    return names.index(name)
