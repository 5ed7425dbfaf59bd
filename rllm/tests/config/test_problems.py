"""What a user reads about a configuration that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from expecting import expect_error
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
    ("word", "message"),
    [
        (
            "rllm.algorithm.lr=1",
            "`lr` is not a key of rllm.algorithm (`rllm.algorithm.lr` from command line). "
            "Did you mean `model.lora_rank` or `training.learning_rate`?",
        ),
        (
            "rllm.trainer.total_epoch=1",
            "`total_epoch` is not a key of rllm.trainer (`rllm.trainer.total_epoch` from command line). "
            "Did you mean `rllm.trainer.total_epochs`?",
        ),
        (
            "rllm.rollout.temperature=0",
            "`temperature` is not a key of rllm.rollout (`rllm.rollout.temperature` from command line). "
            "Did you mean `sampling.train.temperature` or `sampling.val.temperature`?",
        ),
        (
            "rllm.trainer.train_batch_size=1",
            "`train_batch_size` is not a key of rllm.trainer (`rllm.trainer.train_batch_size` from command line). "
            "Did you mean `rllm.trainer.total_batches`? There is also `data.train_batch_size`.",
        ),
        (
            "rllm.workflow.max_step=1",
            "`max_step` is not a key of rllm.workflow (`rllm.workflow.max_step` from command line). "
            "Did you mean `rllm.agent.max_steps`?",
        ),
        (
            "rllm.rollout.zz={a: 1}",
            "`zz` is not a key of rllm.rollout (`rllm.rollout.zz` from command line). "
            "Keys of rllm.rollout: n, n_val, engine.",
        ),
        (
            "modle.name=x",
            "`modle` is not a section of the configuration (from command line). Did you mean `model`? "
            "Sections: rllm, data, sampling, model, training.",
        ),
        (
            "algorithm.eps_clip=0.1",
            "`algorithm` (from command line) is not a section of a run with backend local.\n"
            "hint: Did you mean `rllm.algorithm.eps_clip`?",
        ),
        (
            "training.betas.x=1",
            '`training.betas` is {"x": 1} (from command line): expected a list.',
        ),
        ("rllm.rollout.n=many", '`rllm.rollout.n` is "many" (from command line): expected a whole number.'),
        ("rllm.rollout.n='8'", '`rllm.rollout.n` is "8" (from command line): expected a whole number.'),
        ("rllm.rollout.n=true", "`rllm.rollout.n` is true (from command line): expected a whole number."),
        ("rllm.rollout.n=0", "`rllm.rollout.n` is 0 (from command line): expected more than 0."),
        ("rllm.trainer.test_freq=-2", "`rllm.trainer.test_freq` is -2 (from command line): expected at least -1."),
        ("sampling.val.top_p=1.5", "`sampling.val.top_p` is 1.5 (from command line): expected at most 1.0."),
        ("rllm.trainer.val_only=1", "`rllm.trainer.val_only` is 1 (from command line): expected true or false."),
        ("rllm.trainer.output_dir=1", "`rllm.trainer.output_dir` is 1 (from command line): expected text."),
        ("training.learning_rate=1e-4x", '`training.learning_rate` is "1e-4x" (from command line): expected a number.'),
        ("rllm.env.env_args=x", '`rllm.env.env_args` is "x" (from command line): expected a mapping.'),
        ("sampling.train=null", "`sampling.train` is null (from command line): expected a mapping."),
        ("rllm.trainer.logger=x", '`rllm.trainer.logger` is "x" (from command line): expected a list.'),
        ("rllm.trainer.logger=[x, 3]", "`rllm.trainer.logger.1` is 3 (from command line): expected text or a mapping."),
        (
            "rllm.algorithm.estimator_map={solver: 3}",
            "`rllm.algorithm.estimator_map.solver` is 3 (from command line): expected text or a mapping.",
        ),
        (
            "rllm.algorithm.on_missing_reward=ignore",
            "`rllm.algorithm.on_missing_reward` is \"ignore\" (from command line): expected 'error', 'drop' or 'zero'.",
        ),
        (
            "rllm.trainer.project_name=a/b",
            '`rllm.trainer.project_name` is "a/b" (from command line): '
            "expected text that matches the pattern ^[\\w-][\\w.-]*$.",
        ),
        (
            "rllm.trainer.experiment_name=.hidden",
            '`rllm.trainer.experiment_name` is ".hidden" (from command line): '
            "expected text that matches the pattern ^[\\w-][\\w.-]*$.",
        ),
        ("training.betas=[1, x]", '`training.betas.1` is "x" (from command line): expected a number.'),
        ("rllm.backend=needy", "`endpoint` has no value, and must have one: set it in a file or on the command line."),
    ],
)
def test_one_problem_is_one_sentence(composed: Compose, word: str, message: str) -> None:
    assert _message(composed, word) == message


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
    assert heading == "4 problems in the configuration:"
    assert [line.split("`")[1] for line in lines] == ["zzz", "rllm.rollout.n", "modle", "training.learning_rate"]


def test_long_values_are_cut_short(composed: Compose) -> None:
    message = _message(composed, "rllm.rollout.n=" + "x" * 1000)
    assert len(message) < 150
    assert "xxx…" in message


class Colour(StrEnum):
    RED = "red"


class Cosine(Params):
    kind: Literal["cosine"] = Field("cosine", description="Which.")
    end: float = Field(0, description="Last value.")


class Linear(Params):
    kind: Literal["linear"] = Field("linear", description="Which.")
    slope: float = Field(description="Slope.")


class Options(Params):
    colour: Colour = Field(Colour.RED, description="A colour.")
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
    ("values", "code", "line"),
    [
        ({"colour": "blue"}, "wrong-value", "`x.y.colour` is \"blue\" (from o): expected 'red'."),
        ({"even": 3}, "wrong-value", "`x.y.even` is 3 (from o): expected a multiple of 2."),
        ({"even": 4}, "wrong-value", "`x.y.even` is 4 (from o): Four brings bad luck."),
        ({"few": [1, 2, 3]}, "wrong-value", "`x.y.few` is [1, 2, 3] (from o): expected at most 2 items."),
        ({"limit": "some"}, "wrong-value", "`x.y.limit` is \"some\" (from o): expected a number or 'none'."),
        (
            {"schedule": {"kind": "cosine", "end": "x"}},
            "wrong-value",
            '`x.y.schedule.end` is "x" (from o): expected a number.',
        ),
        (
            {"schedule": {"kind": "linear"}},
            "missing-key",
            "`x.y.schedule.slope` has no value, and must have one: set it in a file or on the command line.",
        ),
        ({"low": 5}, "wrong-value", '`x.y` is {"low": 5} (from o): low is above high.'),
        (
            {"colours": 1},
            "unknown-key",
            "`colours` is not a key of x.y (`x.y.colours` from o). Did you mean `x.y.colour`?",
        ),
    ],
)
def test_options_of_plugins_are_explained_within_their_section(values: dict[str, Any], code: str, line: str) -> None:
    keys = [("x", "y", *key) for key in known_keys(Options)]
    with pytest.raises(ValidationError) as caught:
        parse(Options, values)
    assert describe(caught.value, values, lambda path: "o", keys, at=("x", "y")) == [(code, line)]


def test_values_are_read_strictly_but_in_the_types_yaml_has() -> None:
    options = parse(Options, {"colour": "red", "limit": 1, "few": [1]})
    assert options.colour is Colour.RED
    assert options.limit == 1.0


def test_one_problem_has_no_heading() -> None:
    this, that = ConfigLine("wrong-value", "this"), ConfigLine("unknown-key", "that")
    assert as_config_error([that]).message == "that"
    both = as_config_error([this, that])
    assert both.code == "wrong-value"
    assert both.message.splitlines() == ["2 problems in the configuration:", "this", "that"]
