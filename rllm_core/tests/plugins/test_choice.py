from enum import StrEnum
from pathlib import Path

import pytest
from expecting import check_error, check_values
from hypothesis import given, strategies as st
from plugin_site import estimator_record
from pydantic import BaseModel, ConfigDict, Field

from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

WHERE = "rllm.algorithm.adv_estimator"


class Inner(Params):
    depth: int = 1


class Options(Params):
    norm_adv_by_std_in_grpo: bool = True
    epsilon: float = Field(0.1, gt=0)
    inner: Inner = Inner()


class Required(Params):
    target: str


class Dialect(StrEnum):
    VERL = "verl"


class Typed(Params):
    betas: tuple[float, float]
    directory: Path
    dialect: Dialect


class Careless(BaseModel):
    """A model that would drop unknown options by itself."""

    epsilon: float = 0.1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


MODELS = {"grpo": Options, "required": Required, "typed": Typed, "careless": Careless, "open": Open}


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for name, params in MODELS.items():
        registry.add(estimator_record(name, load_params=lambda params=params: params), distribution="dist")
    registry.add(estimator_record("old", deprecated="it diverges; choose grpo"), distribution="dist")
    return registry


def _error(registry: Registry, choice, *, starts: str = WHERE, **kwargs) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        choose(registry, "estimator", choice, WHERE, **kwargs)
    assert raised.value.message.startswith(starts)
    return raised.value


@pytest.mark.parametrize("choice", ["grpo", "dist/grpo", {"name": "grpo"}, {"name": "dist/grpo"}])
def test_every_spelling_of_a_name_chooses_the_same(registry: Registry, choice) -> None:
    chosen = choose(registry, "estimator", choice, WHERE)

    assert chosen.registered.qualified_name == "dist/grpo"
    assert chosen.plugin is chosen.registered.plugin
    assert chosen.params == Options()


def test_options_are_validated_by_the_plugins_model(registry: Registry) -> None:
    choice = {"name": "grpo", "epsilon": 1e-3, "inner": {"depth": 2}}

    assert choose(registry, "estimator", choice, WHERE).params == Options(epsilon=0.001, inner=Inner(depth=2))
    assert choice == {"name": "grpo", "epsilon": 1e-3, "inner": {"depth": 2}}, "the caller's choice stays as it was"


@pytest.mark.parametrize(
    ("choice", "code", "values"),
    [
        # A value of another type is not converted.
        *(
            ({"name": "grpo", option: value}, "wrong-value", [f"{WHERE}.{option} is {value!r}: ", expected, "'grpo'"])
            for option, value, expected in (
                ("epsilon", "1e-3", "valid number"),
                ("epsilon", True, "valid number"),
                ("norm_adv_by_std_in_grpo", 1, "valid boolean"),
                ("norm_adv_by_std_in_grpo", "true", "valid boolean"),
                ("inner", [1], "an object"),
                ("epsilon", -1, "greater than 0"),
            )
        ),
        (
            {"name": "grpo", "epsilon": -1, "inner": {"depth": "deep"}},
            "wrong-value",
            [f"{WHERE}.epsilon is -1", f"{WHERE}.inner.depth is 'deep'"],
        ),
        ("required", "wrong-value", [WHERE, "'required'", "Write {name: NAME, target: VALUE}."]),
        (
            {"name": "grpo", "norm_adv_by_std": False},
            "unknown-option",
            [WHERE, "norm_adv_by_std", "'grpo'", "'norm_adv_by_std_in_grpo'"],
        ),
        (
            {"name": "grpo", "zzz": 1},
            "unknown-option",
            ["Its options are norm_adv_by_std_in_grpo, epsilon, inner."],
        ),
        ({"name": "old", "zzz": 1}, "unknown-option", []),
        ({"name": "grpo", "inner": {"dept": 2}}, "unknown-option", [WHERE, "inner.dept", "'grpo'", "'depth'"]),
        ({"name": "careless", "epsilom": 1}, "unknown-option", [f"{WHERE}.epsilom is 1", "'careless'"]),
        ("grop", "unknown-plugin", [WHERE, "'grop'", "'grpo'"]),
        ({"epsilon": 1}, "bad-choice", []),
        ({"name": ""}, "bad-choice", []),
        ({"name": 3}, "bad-choice", []),
        *((choice, "bad-choice", [f"{choice!r} is no estimator", "Expected NAME"]) for choice in (3, "", None, True)),
        (["grpo"], "bad-choice", ["['grpo'] is no estimator"]),
        # Families.
        ("grpo:chess", "bad-choice", ["'grpo:chess'", "'grpo'", "Write grpo."]),
        ("games:", "bad-choice", ["'games:'"]),
        ("games", "wrong-value", ["games:TARGET"]),
        ({"name": "games:chess", "target": "go"}, "conflicting-keys", ["'games:chess'", "'target'"]),
    ],
)
def test_choices_that_cannot_be_used_are_refused(families: Registry, choice, code: str, values: list[str]) -> None:
    check_error(_error(families, choice), code, *values)


def test_options_may_have_types_that_json_lacks(registry: Registry) -> None:
    choice = {"name": "typed", "betas": [0.5, 1], "directory": "here", "dialect": "verl"}

    params = choose(registry, "estimator", choice, WHERE).params

    assert (params.betas, params.directory, params.dialect) == ((0.5, 1.0), Path("here"), Dialect.VERL)


def test_options_may_lie_elsewhere_than_the_name(registry: Registry) -> None:
    place = "rllm.env.env_args"

    unknown = _error(registry, {"name": "grpo", "epsilom": 1}, options_at=place, starts=place)
    wrong = _error(registry, {"name": "grpo", "epsilon": 0}, options_at=place, starts=place)
    missing = _error(registry, "required", options_at=place, starts=place)

    check_error(unknown, "unknown-option", f"{place}.epsilom is 1", "'grpo'")
    check_error(wrong, "wrong-value", f"{place}.epsilon is 0", "greater than 0")
    assert missing.hint == f"Set {place}.target=VALUE."
    check_error(_error(registry, "grop", options_at=place), "unknown-plugin", f"{WHERE}: ")


def test_choice_overrides_the_shared_value_of_an_option(registry: Registry) -> None:
    shared = {"epsilon": 0.5, "norm_adv_by_std_in_grpo": False, "of_no_interest": 3}

    params = choose(registry, "estimator", {"name": "grpo", "epsilon": 0.2}, WHERE, shared).params

    assert (params.epsilon, params.norm_adv_by_std_in_grpo) == (0.2, False)


def test_plugin_with_free_options_gets_them_all(registry: Registry) -> None:
    params = choose(registry, "estimator", {"name": "open", "anything": 1}, WHERE).params

    assert params.model_extra == {"anything": 1}


def test_error_of_shared_value_names_the_key(registry: Registry) -> None:
    error = _error(registry, "grpo", shared={"epsilon": "much"})

    check_error(error, "wrong-value", WHERE, "'epsilon'", "'much'", "'grpo'")


def test_error_of_ambiguous_name_has_config_path(registry: Registry) -> None:
    registry.add(estimator_record("grpo"), distribution="other")

    error = _error(registry, {"name": "grpo"})

    assert "offered by dist 0 and other 0" in error.message
    assert choose(registry, "estimator", "other/grpo", WHERE).registered.distribution == "other"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
options = st.dictionaries(
    st.sampled_from(["epsilon", "inner", "target", "betas", "directory", ""]), json_like, max_size=3
)


@given(name=st.sampled_from([*MODELS, None, 3]), options=options)
def test_any_choice_is_valid_or_a_config_error(registry: Registry, name, options) -> None:
    try:
        chosen = choose(registry, "estimator", {"name": name, **options}, WHERE)
    except ConfigError as error:
        assert error.message.startswith(WHERE)
    else:
        assert isinstance(chosen.params, MODELS[name])


@pytest.fixture
def families(registry: Registry) -> Registry:
    """A registry with ``required``, whose option `target` is its family."""
    registry.add(estimator_record("games", load_params=lambda: Required, family_option="target"), distribution="dist")
    return registry


@pytest.mark.parametrize(
    ("choice", "target"),
    [
        ("games:chess", "chess"),
        ("dist/games:chess", "chess"),
        ({"name": "games:chess"}, "chess"),
        ("games:./a/b.py:f", "./a/b.py:f"),
    ],
)
def test_text_after_the_name_chooses_a_family(families: Registry, choice, target: str) -> None:
    chosen = choose(families, "estimator", choice, WHERE)
    assert (chosen.qualified_name, chosen.params) == ("dist/games", Required(target=target))
    assert chosen.own == {"target"}


def test_choosing_a_deprecated_plugin_warns_once(registry: Registry, capsys) -> None:
    for _ in range(2):
        choose(registry, "estimator", "old", WHERE)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    check_values(line, WHERE, "estimator dist/old", "it diverges; choose grpo")
