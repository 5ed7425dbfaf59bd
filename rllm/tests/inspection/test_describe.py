"""What is said of a key: its type in the words of those who write YAML, its default, its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rllm.config.keys import known_keys
from rllm.inspection.describe import Option, describe_field, list_options, type_text
from rllm_core.contracts.params import NoParams, Params
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Choice, NonNegativeInt, PositiveInt


def test_types_are_said_in_words() -> None:
    for annotation, words in (
        (int, "whole number"),
        (Path, "path"),
        (None, "null"),
        (str | None, "text or null"),
        (PositiveInt, "whole number > 0"),
        (NonNegativeInt | None, "whole number ≥ 0 or null"),
        (PositiveInt | Literal[-1], "whole number > 0 or -1"),
        (Literal["a", "b"] | None, "one of a, b or null"),
        (Choice, "plugin"),
        (list[Choice], "list of plugin"),
        (tuple[float, float], "list of number"),
        (tuple[int, str], "list of whole number and text"),
        (dict[str, Choice], "mapping to plugin"),
        (Annotated[float, Field(ge=0, lt=1)], "number ≥ 0, < 1"),
        (Any, "Any"),
    ):
        assert type_text(annotation) == words


class Inner(Params):
    depth: PositiveInt = Field(1, description="How deep.")


class Options(Params):
    target: str = Field(description="Where to.")
    share: float | None = Field(None, gt=0, le=1)
    """How
    much."""
    names: list[str] = Field(default_factory=list, description="Which.")
    text: str = Field("", description="Any words.")
    lambda_: float = Field(0.5, alias="lambda", description="A word of Python's.")
    inner: Inner = Field(default_factory=Inner, description="A section.")
    silent: bool = True


def test_options_have_defaults_meanings_and_dotted_sections() -> None:
    assert list(list_options(Options)) == [
        Option("target", "text", "required", "Where to."),
        Option("share", "number > 0, ≤ 1 or null", "null", "How much."),
        Option("names", "list of text", "[]", "Which."),
        Option("text", "text", '""', "Any words."),
        Option("lambda", "number", "0.5", "A word of Python's."),
        Option("inner.depth", "whole number > 0", "1", "How deep."),
        Option("silent", "true or false", "true", ""),
    ]
    assert list(list_options(NoParams)) == []
    assert describe_field("rllm.x", Options.model_fields["text"]) == Option("rllm.x", "text", '""', "Any words.")


def test_core_keys_have_types_without_python_terms() -> None:
    options = list(list_options(RunConfig))
    keys = [".".join(path) for path in known_keys(RunConfig)]
    assert [option.name for option in options] == [
        key for key in keys if not any(k.startswith(f"{key}.") for k in keys)
    ]
    assert [option for option in options if not option.description] == []
    pythons = ("typing", "Annotated", "Literal", "[", "NoneType", "int", "str", "dict", "Section")
    assert [option for option in options if any(word in option.type for word in pythons)] == []
