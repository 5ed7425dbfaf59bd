import pytest
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


class Careless(BaseModel):
    """A model that would drop unknown options by itself."""

    epsilon: float = 0.1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.fixture
def registry(estimator) -> Registry:
    registry = Registry()
    for name, params in {"grpo": Options, "required": Required, "careless": Careless, "open": Open}.items():
        registry.add(estimator(name, params=params), distribution="dist")
    registry.add(estimator("old", deprecated="it diverges; choose grpo"), distribution="dist")
    return registry


def _error(registry: Registry, choice, **kwargs) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        choose(registry, "estimator", choice, WHERE, **kwargs)
    assert raised.value.message.startswith(f"{WHERE}: ")
    return raised.value


@pytest.mark.parametrize("choice", ["grpo", "dist/grpo", {"name": "grpo"}, {"name": "dist/grpo"}])
def test_every_spelling_of_a_name_chooses_the_same(registry: Registry, choice) -> None:
    chosen = choose(registry, "estimator", choice, WHERE)

    assert chosen.registered.qualified_name == "dist/grpo"
    assert chosen.plugin is chosen.registered.plugin
    assert chosen.params == Options()


def test_options_are_validated_by_the_plugins_model(registry: Registry) -> None:
    choice = {"name": "grpo", "epsilon": "1e-3", "inner": {"depth": 2}}

    assert choose(registry, "estimator", choice, WHERE).params == Options(epsilon=0.001, inner=Inner(depth=2))
    assert choice == {"name": "grpo", "epsilon": "1e-3", "inner": {"depth": 2}}, "the caller's choice stays as it was"


def test_an_option_takes_the_shared_value_unless_the_choice_gives_one(registry: Registry) -> None:
    shared = {"epsilon": 0.5, "norm_adv_by_std_in_grpo": False, "of_no_interest": 3}

    params = choose(registry, "estimator", {"name": "grpo", "epsilon": 0.2}, WHERE, shared).params

    assert (params.epsilon, params.norm_adv_by_std_in_grpo) == (0.2, False)


def test_an_unknown_option_gets_the_closest_one(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "norm_adv_by_std": False})

    assert error.message == f"{WHERE}: estimator 'grpo' has no option 'norm_adv_by_std' (= False)."
    assert error.hint == "Did you mean 'norm_adv_by_std_in_grpo'?"


def test_an_option_unlike_any_other_gets_all_options(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "zzz": 1})

    assert error.hint == "Its options are norm_adv_by_std_in_grpo, epsilon, inner."
    assert _error(registry, {"name": "old", "zzz": 1}).hint == "It has no options."


def test_an_unknown_option_inside_another_gets_the_closest_one(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "inner": {"dept": 2}})

    assert "has no option 'inner.dept' (= 2)" in error.message
    assert error.hint == "Did you mean 'depth'?"


def test_no_plugin_can_drop_an_option_silently(registry: Registry) -> None:
    assert "has no option 'epsilom'" in _error(registry, {"name": "careless", "epsilom": 1}).message


def test_a_plugin_that_takes_any_option_gets_them_all(registry: Registry) -> None:
    params = choose(registry, "estimator", {"name": "open", "anything": 1}, WHERE).params

    assert params.model_extra == {"anything": 1}


def test_a_bad_value_is_named_with_what_is_expected(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "epsilon": -1})

    assert error.message == f"{WHERE}: option 'epsilon' of estimator 'grpo' is -1: input should be greater than 0."


def test_a_bad_shared_value_says_that_it_is_shared(registry: Registry) -> None:
    error = _error(registry, "grpo", shared={"epsilon": "much"})

    assert "is 'much' (from the shared config key 'epsilon'): input should be a valid number" in error.message


def test_everything_wrong_with_a_choice_is_said_at_once(registry: Registry) -> None:
    error = _error(registry, {"name": "grpo", "epsilon": -1, "inner": {"depth": "deep"}})

    assert "'epsilon'" in error.message
    assert "'inner.depth' of estimator 'grpo' is 'deep'" in error.message


def test_a_missing_option_is_named(registry: Registry) -> None:
    assert "estimator 'required' needs option 'target'" in _error(registry, "required").message


def test_an_unknown_name_carries_the_config_path(registry: Registry) -> None:
    error = _error(registry, "grop")

    assert error.message == f"{WHERE}: There is no estimator named 'grop'."
    assert error.hint.startswith("Did you mean 'grpo'?")


def test_a_name_of_two_plugins_carries_the_config_path(registry: Registry, estimator) -> None:
    registry.add(estimator("grpo"), distribution="other")

    error = _error(registry, {"name": "grpo"})

    assert "offered by dist 0 and other 0" in error.message
    assert choose(registry, "estimator", "other/grpo", WHERE).registered.distribution == "other"


@pytest.mark.parametrize("choice", [{"epsilon": 1}, {"name": ""}, {"name": 3}])
def test_options_without_a_name_are_refused(registry: Registry, choice) -> None:
    assert "does not say which estimator" in _error(registry, choice).message


@pytest.mark.parametrize("choice", [3, "", None, ["grpo"], True])
def test_a_choice_of_another_type_is_refused(registry: Registry, choice) -> None:
    error = _error(registry, choice)

    assert f"{choice!r} is no estimator" in error.message
    assert "Expected NAME" in error.hint


def test_choosing_a_deprecated_plugin_warns_once(registry: Registry, capsys) -> None:
    for _ in range(2):
        choose(registry, "estimator", "old", WHERE)

    assert capsys.readouterr().err == (
        f"warning: {WHERE}: estimator dist/old is deprecated: it diverges; choose grpo\n"
    )
