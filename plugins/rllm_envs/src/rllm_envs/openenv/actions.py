"""Turn the server's observations into text, and responses into its actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

METADATA = "metadata"
"""A field that all actions and observations of OpenEnv have."""
_NUMBERS = ("integer", "number")


@dataclass(frozen=True, kw_only=True)
class ActionForm:
    """The form of the server's actions."""

    schema: Mapping[str, Any]
    """JSON schema of an action, without the field `METADATA`."""
    field: str | None
    """Field that gets the response. None: the response contains a JSON object with all fields."""

    @property
    def request(self) -> str:
        """The sentence that asks the model for an action."""
        if self.field is None:
            return f"Reply with a JSON object that fits this schema: {json.dumps(self.schema, ensure_ascii=False)}"
        described = self.schema["properties"][self.field].get("description")
        kind = "a number" if self._is_number else "text"
        return f"Reply with {kind} for {self.field!r}{f': {described}' if described else ''}."

    def read(self, response: str) -> dict[str, Any] | None:
        """Return the action of a response, or None if it contains no valid action."""
        action = _read_object(response) if self.field is None else {self.field: self._read_field(response)}
        valid = action is not None and Draft202012Validator(self.schema).is_valid(action)
        return action if valid else None

    def _read_field(self, response: str) -> Any:
        if not self._is_number:
            return response.strip()
        numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
        if not numbers:
            return None
        return float(numbers[-1]) if "." in numbers[-1] else int(numbers[-1])

    @property
    def _is_number(self) -> bool:
        assert self.field is not None
        return self.schema["properties"][self.field].get("type") in _NUMBERS


def read_form(schema: Mapping[str, Any], field: str | None) -> ActionForm:
    """Return the form of an action schema. `field` is the user's choice of the field for the response."""
    properties = {name: each for name, each in schema.get("properties", {}).items() if name != METADATA}
    if field is None and len(properties) == 1:
        (name,) = properties
        field = name if properties[name].get("type") in ("string", *_NUMBERS) else None
    return ActionForm(schema={**schema, "properties": properties}, field=field)


def write_observation(observation: Mapping[str, Any], field: str | None) -> str:
    """Return the text of an observation: the field, or all fields as JSON. A single text field needs no JSON."""
    fields = {name: value for name, value in observation.items() if name != METADATA}
    value = fields[field] if field else next(iter(fields.values())) if len(fields) == 1 else fields
    return value if isinstance(value, str) else json.dumps(fields if field is None else value, ensure_ascii=False)


def _read_object(response: str) -> dict[str, Any] | None:
    """Return the last JSON object in a response."""
    decoder, found, start = json.JSONDecoder(), None, response.find("{")
    while start >= 0:
        try:
            found, start = decoder.raw_decode(response, start)
        except json.JSONDecodeError:
            start += 1
        start = response.find("{", start)
    return found
