"""What a user reads about a configuration that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from expecting import check_values, expect_error
from pydantic import Field, ValidationError, field_validator, model_validator

from rllm.config.compose import Composed
from rllm.config.keys import known_keys
from rllm.config.layers import layers_from_overrides
from rllm.config.problems import ConfigLine, as_config_error, describe, parse
from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError

Compose = Callable[..., Composed]
N_VAL, DEPTH = layers_from_overrides(["rllm.rollout.n_val=2"]), layers_from_overrides(["modle.depth=2"])


def test_problem_has_the_key_and_the_origins(composed: Compose) -> None:
    for layers, code, values in (
        (layers_from_overrides(["rllm.backend=needy"]), "missing-key", ["`endpoint`"]),
        ([{"rllm.rollout.n": 3}], "unknown-key", ["`rllm.rollout.n`", "nested mappings"]),
        ([{"rllm": {"rollout": {"n": "x"}}}, *N_VAL], "wrong-value", ["`rllm.rollout.n`", "(from my.yaml)"]),
        ([{"modle": {"name": "x"}}, *DEPTH], "unknown-key", ["`modle`", "(from my.yaml, command line)"]),
    ):
        with expect_error(ConfigError, code, *values):
            composed(*layers)


def test_long_values_are_cut_short(composed: Compose) -> None:
    with expect_error(ConfigError, "wrong-value", "xxx…") as caught:
        composed(*layers_from_overrides(["rllm.rollout.n=" + "x" * 1000]))
    assert len(str(caught.value)) < 200


class Color(StrEnum):
    RED = "red"


class Cosine(Params):
    kind: Literal["cosine"] = Field("cosine", description="Which.")
    end: float = Field(0, description="Last value.")


class Linear(Params):
    kind: Literal["linear"] = Field("linear", description="Which.")
    slope: float = Field(description="Slope.")


class Options(Params):
    color: Color = Field(Color.RED, description="A color.")
    even: int = Field(2, description="An even number.")
    few: list[int] = Field(default_factory=list, max_length=2, description="A short list.")
    limit: float | Literal["none"] = Field("none", description="A number or a word.")
    schedule: Annotated[Cosine | Linear, Field(discriminator="kind")] = Field(
        Cosine(), description="A union of models."
    )
    low: int = Field(0, description="Not above `high`.")
    high: int = Field(1, description="Not below `low`.")

    @field_validator("even")
    @classmethod
    def _not_four(cls, value: int) -> int:
        if value == 4:
            raise ValueError("Four brings bad luck.")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Options:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


@pytest.mark.parametrize(
    ("values", "code", "parts"),
    [
        ({"even": 4}, "wrong-value", ["`x.y.even`", "4 (from o)", "Four brings bad luck"]),
        ({"few": [1, 2, 3]}, "wrong-value", ["`x.y.few`", "[1, 2, 3] (from o)", "2 items"]),
        ({"limit": "some"}, "wrong-value", ["`x.y.limit`", '"some" (from o)', "number or 'none'"]),
        ({"schedule": {"kind": "linear"}}, "missing-key", ["`x.y.schedule.slope`"]),
        ({"low": 5}, "wrong-value", ["`x.y`", '{"low": 5} (from o)', "low is above high"]),
        ({"colors": 1}, "unknown-key", ["`colors`", "`x.y.colors` from o", "`x.y.color`"]),
    ],
)
def test_options_of_plugins_are_explained_within_their_section(
    values: dict[str, Any], code: str, parts: list[str]
) -> None:
    keys = [("x", "y", *key) for key in known_keys(Options)]
    with pytest.raises(ValidationError) as caught:
        parse(Options, values)
    (line,) = describe(caught.value, values, lambda path: "o", keys, at=("x", "y"))
    assert line.code == code
    check_values(f"{line.text} {line.hint}", *parts)


def test_one_problem_has_no_heading() -> None:
    this, that = ConfigLine("wrong-value", "this"), ConfigLine("unknown-key", "that")
    assert as_config_error([that]).message == "that"
    both = as_config_error([this, that])
    assert both.code == "wrong-value"
    heading, *lines = both.message.splitlines()
    assert (heading[:10], lines) == ("2 problems", ["this", "that"])
