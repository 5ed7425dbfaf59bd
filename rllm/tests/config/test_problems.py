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
from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

Compose = Callable[..., Composed]


def _message(composed: Compose, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        composed(*layers_from_overrides(words))
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("rllm.algorithm.lr=1", ["`lr`", "`rllm.algorithm.lr`", "`model.lora_rank=1`", "`training.learning_rate=1`"]),
        ("rllm.trainer.total_epoch=1", ["`rllm.trainer.total_epoch`", "`rllm.trainer.total_epochs=1`"]),
        (
            "rllm.rollout.temperature=0",
            ["`sampling.train.temperature=0`", "`sampling.val.temperature=0`"],
        ),
        ("rllm.trainer.train_batch_size=1", ["`data.train_batch_size=1`"]),
        ("rllm.workflow.max_step=1", ["`max_step`", "`rllm.workflow.max_step`", "`rllm.agent.max_steps=1`"]),
        ("rllm.rollout.zz={a: 1}", ["`zz`", "`rllm config explain rllm.rollout`"]),
        ("modle.name=x", ["`modle`", "`model`"]),
        ("algorithm.eps_clip=0.1", ["`algorithm`", "backend local", "`rllm.algorithm.eps_clip=0.1`"]),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_keys(composed: Compose, word: str, values: list[str]) -> None:
    with expect_error(ConfigError, "unknown-key", *values, "from command line"):
        composed(*layers_from_overrides([word]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "key", "value", "expected"),
    [
        ("training.betas.x=1", "training.betas", '{"x": 1}', "list"),
        ("rllm.rollout.n=many", "rllm.rollout.n", '"many"', "number"),
        ("rllm.rollout.n='8'", "rllm.rollout.n", '"8"', "number"),
        ("rllm.rollout.n=true", "rllm.rollout.n", "true", "number"),
        ("rllm.rollout.n=0", "rllm.rollout.n", "0", "0"),
        ("rllm.trainer.test_freq=-2", "rllm.trainer.test_freq", "-2", "-1"),
        ("sampling.val.top_p=1.5", "sampling.val.top_p", "1.5", "1.0"),
        ("rllm.trainer.val_only=1", "rllm.trainer.val_only", "1", "true or false"),
        ("rllm.trainer.output_dir=1", "rllm.trainer.output_dir", "1", "text"),
        ("training.learning_rate=1e-4x", "training.learning_rate", '"1e-4x"', "number"),
        ("rllm.env.env_args=x", "rllm.env.env_args", '"x"', "mapping"),
        ("sampling.train=null", "sampling.train", "null", "mapping"),
        ("rllm.trainer.logger=x", "rllm.trainer.logger", '"x"', "list"),
        ("rllm.trainer.logger=[x, 3]", "rllm.trainer.logger.1", "3", "text or a mapping"),
        ("rllm.algorithm.estimator_map={solver: 3}", "rllm.algorithm.estimator_map.solver", "3", "text or a mapping"),
        (
            "rllm.algorithm.on_missing_reward=ignore",
            "rllm.algorithm.on_missing_reward",
            '"ignore"',
            "'error', 'drop' or 'zero'",
        ),
        ("rllm.trainer.project_name=a/b", "rllm.trainer.project_name", '"a/b"', "^[\\w-][\\w.-]*$"),
        ("rllm.trainer.experiment_name=.hidden", "rllm.trainer.experiment_name", '".hidden"', "^[\\w-][\\w.-]*$"),
        ("training.betas=[1, x]", "training.betas.1", '"x"', "number"),
    ],
)
def test_a_wrong_value_is_shown_with_the_expected_type(
    composed: Compose, word: str, key: str, value: str, expected: str
) -> None:
    with expect_error(ConfigError, "wrong-value", f"`{key}` is {value} (from command line)") as caught:
        composed(*layers_from_overrides([word]))
    assert expected in str(caught.value).partition("(from command line)")[2]


def test_a_value_that_is_missing_is_named(composed: Compose) -> None:
    with expect_error(ConfigError, "missing-key", "`endpoint`"):
        composed(*layers_from_overrides(["rllm.backend=needy"]))


def test_a_dotted_key_in_a_file_is_told_to_be_nested(composed: Compose) -> None:
    with expect_error(ConfigError, "unknown-key", "`rllm.rollout.n`", "nested mappings"):
        composed({"rllm.rollout.n": 3})


def test_the_origin_is_the_layer_that_set_the_value(composed: Compose) -> None:
    with expect_error(ConfigError, "wrong-value", "`rllm.rollout.n`", "(from my.yaml)"):
        composed({"rllm": {"rollout": {"n": "x"}}}, *layers_from_overrides(["rllm.rollout.n_val=2"]))


def test_an_unknown_mapping_names_everyone_who_wrote_into_it(composed: Compose) -> None:
    with expect_error(ConfigError, "unknown-key", "`modle`", "(from my.yaml, command line)"):
        composed({"modle": {"name": "x"}}, *layers_from_overrides(["modle.depth=2"]))


def test_several_problems_are_reported_together_one_per_line(composed: Compose) -> None:
    words = ["rllm.rollout.n=0", "rllm.trainer.zzz=1", "modle.name=x", "training.learning_rate=-1"]
    heading, *lines = _message(composed, *words).splitlines()
    assert heading.startswith("4 problems")
    assert [line.split("`")[1] for line in lines] == ["zzz", "rllm.rollout.n", "modle", "training.learning_rate"]


def test_long_values_are_cut_short(composed: Compose) -> None:
    message = _message(composed, "rllm.rollout.n=" + "x" * 1000)
    assert len(message) < 200
    assert "xxx…" in message


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
    even: int = Field(2, multiple_of=2, description="An even number.")
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
        ({"color": "blue"}, "wrong-value", ["`x.y.color`", '"blue" (from o)', "'red'"]),
        ({"even": 3}, "wrong-value", ["`x.y.even`", "3 (from o)", "multiple of 2"]),
        ({"even": 4}, "wrong-value", ["`x.y.even`", "4 (from o)", "Four brings bad luck"]),
        ({"few": [1, 2, 3]}, "wrong-value", ["`x.y.few`", "[1, 2, 3] (from o)", "2 items"]),
        ({"limit": "some"}, "wrong-value", ["`x.y.limit`", '"some" (from o)', "number or 'none'"]),
        ({"schedule": {"kind": "cosine", "end": "x"}}, "wrong-value", ["`x.y.schedule.end`", '"x" (from o)', "number"]),
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


def test_values_are_read_strictly_but_in_the_types_yaml_has() -> None:
    options = parse(Options, {"color": "red", "limit": 1, "few": [1]})
    assert options.color is Color.RED
    assert options.limit == 1.0


def test_one_problem_has_no_heading() -> None:
    this, that = ConfigLine("wrong-value", "this"), ConfigLine("unknown-key", "that")
    assert as_config_error([that]).message == "that"
    both = as_config_error([this, that])
    assert both.code == "wrong-value"
    heading, *lines = both.message.splitlines()
    assert (heading[:10], lines) == ("2 problems", ["this", "that"])
