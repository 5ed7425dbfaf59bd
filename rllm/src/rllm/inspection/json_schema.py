"""A JSON schema of configuration files, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rllm_core.schema.run_config import RunConfig

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def editor_schema(backend: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of the core's keys and a backend's keys. No key is required, because files may omit any.

    For an editor, interpolations (``${…}``) are text. It marks them as errors if a key has another type.
    """
    models, definitions = models_json_schema(
        [(RunConfig, "validation"), (backend, "validation")], title="rllm configuration"
    )
    definitions = definitions["$defs"]
    parts = [definitions[reference["$ref"].rpartition("/")[2]] for reference in models.values()]
    properties: dict[str, Any] = {}
    for part in parts:
        for name, value in part.get("properties", {}).items():
            properties[name] = _both(properties[name], value, definitions) if name in properties else value
    for definition in definitions.values():
        definition.pop("required", None)
    return {
        "$schema": _DIALECT,
        "title": "rllm configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {name: value for name, value in definitions.items() if value not in parts},
    }


def _both(core: dict[str, Any], backend: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section with keys of both the core and the backend."""
    sections = [definitions[each["$ref"].rpartition("/")[2]] for each in (core, backend) if "$ref" in each]
    merged = {name: value for section in sections for name, value in section.get("properties", {}).items()}
    description = core.get("description") or sections[0].get("description", "")
    return {"type": "object", "description": description, "properties": merged, "additionalProperties": False}
