"""The contract of objectives."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.errors import RllmError
from rllm_core.pipeline import order_stages
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.schema.algorithm_sections import PipelineSection
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit.plugin import PluginContract

PIPELINE = "rllm.pipeline."


class ObjectiveContract(PluginContract[ObjectivePlugin]):
    """Contract of every objective. Its stages must be installed."""

    kind = "objective"

    def test_plugin_loads(self) -> None:
        with self.explain_errors("cannot be loaded", "Correct the import or call in `load`."):
            made: Any = self.plugin.load()
        if made is not None and not callable(made):
            raise self.failure(f"loads {made!r:.80}", "Return a subclass of RowObjective, or None.")

    def test_default_stages_fit_together(self) -> None:
        registry = Registry.load()

        def choose_stage(choice: Any, where: str) -> PluginChoice[Any]:
            return choose(registry, "stage", choice, where)

        given = {key.removeprefix(PIPELINE): value for key, value in self.plugin.defaults.items() if PIPELINE in key}
        try:
            stages = order_stages(PipelineSection(**given), choose_stage)
        except RllmError as error:
            raise self.failure(f"has stages that cannot run: {error.message}", error.hint) from error
        names = [stage.registered.qualified_name for stage in stages]
        if self.plugin.stage is not None and self.plugin.stage not in names:
            raise self.failure(
                f"has the stage {self.plugin.stage!r}, and its pipeline has {', '.join(names)}",
                "Set `stage` to the qualified name of a stage that its `defaults` add.",
            )

    def test_default_keys_exist(self) -> None:
        for key in self.plugin.defaults:
            section, *path = key.split(".")
            if section in RunConfig.model_fields and not _has_key(RunConfig, [section, *path]):
                raise self.failure(f"sets the key {key!r}, which does not exist", "Correct the key in `defaults`.")


def _has_key(schema: Any, path: list[str]) -> bool:
    """Return True if a section has the key. A mapping has every key."""
    field = schema.model_fields.get(path[0])
    if field is None or len(path) == 1:
        return field is not None
    is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    return _has_key(field.annotation, path[1:]) if is_section else True
