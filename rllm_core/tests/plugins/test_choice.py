from enum import StrEnum
from pathlib import Path

import pytest
from expecting import check_error, check_values
from hypothesis import given, strategies as st
from plugin_site import estimator_record
from pydantic import BaseModel, ConfigDict, Field

from rllm_core.contracts.plugin import Params
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
        registry.add(estimator_record(name, params=params), distribution="dist")
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
    ("option", "value", "expected"),
    [
        ("epsilon", "1e-3", "valid number"),
        ("epsilon", True, "valid number"),
        ("norm_adv_by_std_in_grpo", 1, "valid boolean"),
        ("norm_adv_by_std_in_grpo", "true", "valid boolean"),
        ("inner", [1], "an object"),
    ],
)
def test_a_value_of_another_type_is_not_converted(registry: Registry, option: str, value, expected: str) -> None:
    error = _error(registry, {"name": "grpo", option: value})

    check_error(error, "wrong-value", f"{WHERE}.{option} is {value!r}: ", expected, "'grpo'")


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


def test_an_option_takes_the_shared_value_unless_the_choice_gives_one(registry: Registry) -> None:
    shared = {"epsilon": 0.5, "norm_adv_by_std_in_grpo": False, "of_no_interest": 3}

    params = choose(registry, "estimator", {"name": "grpo", "epsilon": 0.2}, WHERE, shared).params

    assert (params.epsilon, params.norm_adv_by_std_in_grpo) == (0.2, False)


def test_an_unknown_option_gets_the_closest_one(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "norm_adv_by_std": False})

    check_error(error, "unknown-option", WHERE, "norm_adv_by_std", "'grpo'", "'norm_adv_by_std_in_grpo'")


def test_an_option_unlike_any_other_gets_all_options(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "zzz": 1})

    assert error.hint == "Its options are norm_adv_by_std_in_grpo, epsilon, inner."
    check_error(_error(registry, {"name": "old", "zzz": 1}), "unknown-option")


def test_an_unknown_option_inside_another_gets_the_closest_one(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "inner": {"dept": 2}})

    check_error(error, "unknown-option", WHERE, "inner.dept", "'grpo'", "'depth'")


def test_no_plugin_can_drop_an_option_silently(registry: Registry) -> None:
    error = _error(registry, {"name": "careless", "epsilom": 1})

    check_error(error, "unknown-option", f"{WHERE}.epsilom is 1", "'careless'")


def test_a_plugin_that_takes_any_option_gets_them_all(registry: Registry) -> None:
    params = choose(registry, "estimator", {"name": "open", "anything": 1}, WHERE).params

    assert params.model_extra == {"anything": 1}


def test_a_bad_value_is_named_with_what_is_expected(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "epsilon": -1})

    check_error(error, "wrong-value", WHERE, "'grpo'")


def test_a_bad_shared_value_says_that_it_is_shared(registry: Registry) -> None:
    error = _error(registry, "grpo", shared={"epsilon": "much"})

    check_error(error, "wrong-value", WHERE, "'epsilon'", "'much'", "'grpo'")


def test_everything_wrong_with_a_choice_is_said_at_once(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "epsilon": -1, "inner": {"depth": "deep"}})

    assert f"{WHERE}.epsilon is -1" in error.message
    assert f"{WHERE}.inner.depth is 'deep'" in error.message


def test_a_missing_option_is_named(registry: Registry) -> None:
    error = _error(registry, "required")

    check_error(error, "wrong-value", WHERE, "'required'", "Write {name: NAME, target: VALUE}.")


def test_an_unknown_name_carries_the_config_path(registry: Registry) -> None:
    error = _error(registry, "grop")

    check_error(error, "unknown-plugin", WHERE, "'grop'", "'grpo'")


def test_a_name_of_two_plugins_carries_the_config_path(registry: Registry) -> None:
    registry.add(estimator_record("grpo"), distribution="other")

    error = _error(registry, {"name": "grpo"})

    assert "offered by dist 0 and other 0" in error.message
    assert choose(registry, "estimator", "other/grpo", WHERE).registered.distribution == "other"


@pytest.mark.parametrize("choice", [{"epsilon": 1}, {"name": ""}, {"name": 3}])
def test_options_without_a_name_are_refused(registry: Registry, choice) -> None:
    check_error(_error(registry, choice), "bad-choice")


@pytest.mark.parametrize("choice", [3, "", None, ["grpo"], True])
def test_a_choice_of_another_type_is_refused(registry: Registry, choice) -> None:
    error = _error(registry, choice)

    assert f"{choice!r} is no estimator" in error.message
    assert "Expected NAME" in error.hint


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
options = st.dictionaries(
    st.sampled_from(["epsilon", "inner", "target", "betas", "directory", ""]), json_like, max_size=3
)


@given(name=st.sampled_from([*MODELS, None, 3]), options=options)
def test_any_choice_is_a_plugin_with_options_or_a_config_error(registry: Registry, name, options) -> None:
    try:
        chosen = choose(registry, "estimator", {"name": name, **options}, WHERE)
    except ConfigError as error:
        assert error.message.startswith(WHERE)
    else:
        assert isinstance(chosen.params, MODELS[name])


@pytest.fixture
def families(registry: Registry) -> Registry:
    """A registry with ``required``, whose option `target` is its family."""
    registry.add(estimator_record("games", params=Required, family_option="target"), distribution="dist")
    return registry


@pytest.mark.parametrize("choice", ["games:chess", "dist/games:chess", {"name": "games:chess"}])
def test_a_word_behind_the_name_chooses_a_family(families: Registry, choice) -> None:
    chosen = choose(families, "estimator", choice, WHERE)
    assert (chosen.qualified_name, chosen.params) == ("dist/games", Required(target="chess"))
    assert chosen.own == {"target"}


def test_family_may_contain_colons_and_slashes(families: Registry) -> None:
    assert choose(families, "estimator", "games:./a/b.py:f", WHERE).params.target == "./a/b.py:f"


def test_a_family_of_a_plugin_without_any_is_refused(registry: Registry) -> None:
    error = _error(registry, "grpo:chess")
    check_error(error, "bad-choice", WHERE, "'grpo:chess'", "'grpo'", "Write grpo.")


def test_an_empty_family_is_refused(families: Registry) -> None:
    check_error(_error(families, "games:"), "bad-choice", WHERE, "'games:'")


def test_a_family_that_is_missing_is_asked_for_behind_the_name(families: Registry) -> None:
    check_error(_error(families, "games"), "wrong-value", "games:TARGET")


def test_a_family_is_chosen_once(families: Registry) -> None:
    error = _error(families, {"name": "games:chess", "target": "go"})
    check_error(error, "conflicting-keys", WHERE, "'games:chess'", "'target'")


def test_choosing_a_deprecated_plugin_warns_once(registry: Registry, capsys) -> None:
    for _ in range(2):
        choose(registry, "estimator", "old", WHERE)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    check_values(line, WHERE, "estimator dist/old", "it diverges; choose grpo")
