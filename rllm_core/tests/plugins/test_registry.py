import pytest
from expecting import expect_error
from plugin_site import estimator_record

from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import API_VERSION, NoParams
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry

IMPORTS = """
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins import hookimpl

def record(cls=EstimatorPlugin, **changes):
    fields = {"name": "mine", "summary": "Mine.", "params": NoParams, "load": lambda: print}
    return cls(**{**fields, **changes})
"""
HOOK = "@hookimpl\ndef rllm_estimators():\n    "

BROKEN = {
    "raises at import": ("raise RuntimeError('no\\nluck')", "RuntimeError: no luck"),
    "exits at import": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "needs what is not installed": ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
    "offers nothing": ("", "it offers no plugins"),
    "misspells a hook": (IMPORTS + "@hookimpl\ndef rllm_estimator():\n    return []", "did you mean rllm_estimators?"),
    "invents a hook": (IMPORTS + "@hookimpl\ndef something():\n    return []", "hook something"),
    "forgets the mark": (IMPORTS + "def rllm_losses():\n    return []", "@hookimpl"),
    "forgets the mark and misspells": (IMPORTS + "def rllm_lossses():\n    return []", "is rllm_losses"),
    "is for another interface": (f"requires_api = {API_VERSION + 1}", f"version {API_VERSION + 1}"),
    "is a wrapper": (IMPORTS + "@hookimpl(wrapper=True)\ndef rllm_losses():\n    yield", "wrapper"),
    "takes an argument": (IMPORTS + "@hookimpl\ndef rllm_losses(config):\n    return []", "config"),
    "raises in its hook": (IMPORTS + HOOK + "return 1 / 0", "ZeroDivisionError"),
    "raises in its generator": (IMPORTS + HOOK + "yield record()\n    raise KeyError('late')", "KeyError: 'late'"),
    "returns None": (IMPORTS + HOOK + "pass", "None"),
    "returns a bare record": (
        IMPORTS + HOOK + "return record()",
        "EstimatorPlugin(",
    ),
    "returns something else": (IMPORTS + HOOK + "return [3]", "3 (int)"),
    "returns the wrong kind": (IMPORTS + HOOK + "return [record(LossPlugin)]", "LossPlugin 'mine'"),
    "offers a name twice": (IMPORTS + HOOK + "return [record(), record()]", "offers 'mine' twice"),
    "has an empty name": (IMPORTS + HOOK + "return [record(name='')]", "''"),
    "has a dash in a name": (IMPORTS + HOOK + "return [record(name='my-own')]", "'my-own'"),
    "has a name YAML reads as false": (IMPORTS + HOOK + "return [record(name='off')]", "YAML"),
    "has two lines of summary": (IMPORTS + HOOK + "return [record(summary='a\\nb')]", "summary"),
    "has no summary": (IMPORTS + HOOK + "return [record(summary=' ')]", "summary"),
    "has params of no model": (
        IMPORTS + HOOK + "return [record(params=dict)]",
        "params must be",
    ),
    "has a params instance": (IMPORTS + HOOK + "return [record(params=NoParams())]", "params must be"),
    "has a load that is no function": (IMPORTS + HOOK + "return [record(load='x')]", "load must be"),
    "needs a string": (IMPORTS + HOOK + "return [record(needs='values')]", "frozenset"),
    "has an unknown level": (IMPORTS + HOOK + "return [record(level='word')]", "level must be one of trajectory, step"),
}


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_plugin_is_set_aside_with_the_reason_when_it(site, capsys, code: str, reason: str) -> None:
    site.install("bad-plugin", code, version="0.3")
    site.install_estimator("good-plugin", "good")

    registry = site.load()

    (broken,) = registry.broken
    assert (broken.name, broken.distribution, broken.version) == ("bad-plugin", "bad-plugin", "0.3")
    assert reason in broken.reason
    assert "\n" not in broken.reason
    assert broken.traceback.startswith("Traceback")
    assert [entry.qualified_name for entry in registry.all("estimator") if entry.distribution != "rllm-core"] == [
        "good-plugin/good"
    ]
    shown = capsys.readouterr().err
    assert "warning: plugin bad-plugin " in shown
    assert broken.reason in shown


def test_a_broken_plugin_is_named_once_per_process(site, capsys) -> None:
    site.install("bad-plugin", "raise RuntimeError('broken')")

    site.load()
    site.load()

    assert capsys.readouterr().err.count("bad-plugin is broken") == 1


def test_two_distributions_cannot_offer_one_module(site) -> None:
    site.install_estimator("first", "shared")
    site.install("second", (site.directory / "first.py").read_text(), module="first")

    registry = site.load()

    assert registry.get("estimator", "shared").distribution == "first"
    assert "already registered as first:first" in registry.broken[0].reason


def test_two_entry_points_of_one_distribution_cannot_offer_one_name(site) -> None:
    site.install_estimator("doubled", "twin")
    (site.directory / "doubled_again.py").write_text((site.directory / "doubled.py").read_text())
    site.modules.append("doubled_again")
    points = site.directory / "doubled-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "doubled-again = doubled_again\n")

    registry = site.load()

    assert registry.get("estimator", "twin").qualified_name == "doubled/twin"
    assert [broken.name for broken in registry.broken] == ["doubled-again"]


def test_a_plugin_that_states_the_present_interface_is_used(site) -> None:
    site.install_estimator("versioned", "versioned")
    module = site.directory / "versioned.py"
    module.write_text(f"requires_api = '{API_VERSION}.7'\n" + module.read_text())

    assert site.load().get("estimator", "versioned").distribution == "versioned"


def test_the_cores_plugins_come_first(site) -> None:
    site.install_estimator("aaa", "early")

    assert next(entry.distribution for entry in site.load().all("estimator")) == "rllm-core"


def test_a_plugin_is_found_by_name_and_by_qualified_name_in_any_spelling(site) -> None:
    site.install_estimator("My_Plugin", "mine", version="4.5")
    registry = site.load()

    for name in ("mine", "My_Plugin/mine", "my-plugin/mine"):
        registered = registry.get("estimator", name)
        assert (registered.qualified_name, registered.version) == ("My_Plugin/mine", "4.5")


def test_a_clash_of_names_is_an_error_only_when_the_name_is_chosen(site, capsys) -> None:
    site.install_estimator("one", "same")
    site.install_estimator("two", "same", version="2.0")

    registry = site.load()
    assert registry.broken == []
    assert capsys.readouterr().err == ""
    with expect_error(PluginError, "ambiguous-plugin", "'same'", "1.0", "2.0", "one/same", "two/same"):
        registry.get("estimator", "same")

    assert registry.get("estimator", "two/same").distribution == "two"
    assert [[entry.distribution for entry in clash] for clash in registry.conflicts()] == [["one", "two"]]


def test_nobody_can_silently_replace_what_the_core_offers(site) -> None:
    site.install_estimator("impostor", "grpo")
    registry = site.load()

    with pytest.raises(PluginError, match=r"rllm-core .* and impostor 1\.0"):
        registry.get("estimator", "grpo")
    assert registry.get("estimator", "rllm-core/grpo").distribution == "rllm-core"


def test_one_name_in_two_kinds_is_no_clash() -> None:
    registry = Registry()
    registry.add(estimator_record("same"))
    registry.add(
        LossPlugin(name="same", summary="A loss.", params=NoParams, load=lambda: lambda inputs, params: inputs)
    )

    assert registry.conflicts() == []
    assert registry.get("loss", "same").kind == "loss"


def test_an_unknown_name_gets_the_closest_and_all_names() -> None:
    registry = Registry()
    for name in ("alpha", "beta"):
        registry.add(estimator_record(name))

    with expect_error(PluginError, "unknown-plugin", "'alpa'", "'alpha'"):
        registry.get("estimator", "alpa")


def test_a_name_from_another_program_says_so() -> None:
    registry = Registry()
    added = registry.add(estimator_record("mine"))
    assert registry.get("estimator", added.qualified_name) is added

    with expect_error(PluginError, "plugin-of-other-program", "'in-process/mine'", "rllm.plugins.import_modules"):
        Registry().get("estimator", added.qualified_name)


def test_an_unknown_kind_gets_the_closest_kind() -> None:
    with expect_error(PluginError, "unknown-plugin-kind", "'estimators'", "'estimator'?"):
        Registry().get("estimators", "grpo")


@pytest.mark.parametrize(
    ("kind", "name", "home"),
    [
        ("backend", "verl", "rllm-verl"),
        ("engine", "vllm", "rllm-vllm"),
        ("loss", "gmpo", "rllm-estimators"),
        ("environment", "textarena", "rllm-envs"),
        ("estimator", "opo", "rllm-estimators"),
        ("estimator", "rllm-estimators/opo", "rllm-estimators"),
        ("dataset", "hf:openai/gsm8k", "rllm-data"),
        ("dataset", "rllm-data/hf:openai/gsm8k", "rllm-data"),
    ],
)
def test_what_is_not_installed_says_how_to_install_it(kind: str, name: str, home: str) -> None:
    bare = name.partition(":")[0].rpartition("/")[2]

    with pytest.raises(PluginError) as raised:
        Registry().get(kind, name)

    assert raised.value.message == f"{kind} {bare!r} is in {home}: pip install {home}"


def test_a_typo_of_a_name_that_is_not_installed_is_recognized() -> None:
    with pytest.raises(PluginError, match=r"Did you mean 'tinker'"):
        Registry().get("backend", "tinkr")


def test_a_name_looked_for_in_the_wrong_distribution_says_where_it_is() -> None:
    registry = Registry()
    registry.add(estimator_record("mine"), distribution="right")

    with expect_error(PluginError, "unknown-plugin", "'mine'", "right/mine"):
        registry.get("estimator", "wrong/mine")


def test_a_name_of_a_broken_plugin_says_that_the_plugin_is_broken(site) -> None:
    site.install("rllm-estimators", "raise RuntimeError('half installed')", module="broken_estimators")
    registry = site.load()

    for name in ("opo", "rllm-estimators/opo", "rllm-estimators/unheard_of"):
        with expect_error(PluginError, "broken-plugin", "RuntimeError"):
            registry.get("estimator", name)
    with expect_error(PluginError, "unknown-plugin"):
        registry.get("estimator", "unheard_of")


def test_a_name_of_a_blocked_plugin_says_that_the_plugin_is_blocked(site) -> None:
    site.install_estimator("third-party", "third")

    with expect_error(PluginError, "blocked-plugin", "'third-party' in RLLM_BLOCK_PLUGINS"):
        site.load(block="third-party").get("estimator", "third-party/third")


def test_a_record_added_in_process_is_found_like_an_installed_one() -> None:
    registry = Registry()

    added = registry.add(estimator_record("mine"))

    assert registry.get("estimator", "mine") is added
    assert added.qualified_name == "in-process/mine"
    assert registry.all("estimator") == [added]


def test_adding_a_name_twice_is_an_error_within_one_distribution_only() -> None:
    registry = Registry()
    registry.add(estimator_record("mine"))

    with expect_error(PluginError, "duplicate-plugin", "'mine'"):
        registry.add(estimator_record("mine"))
    registry.add(estimator_record("mine"), distribution="elsewhere")
    with expect_error(PluginError, "ambiguous-plugin", "0"):
        registry.get("estimator", "mine")


def test_only_valid_records_can_be_added() -> None:
    with expect_error(PluginError, "bad-plugin-spec"):
        Registry().add(estimator_record("No Name"))
    with expect_error(PluginError, "bad-plugin-spec", "3"):
        Registry().add(3)


def test_a_plugin_is_loaded_through_its_record() -> None:
    def raw() -> None:
        raise NotImplementedError

    assert Registry().add(estimator_record("mine", load=lambda: raw)).load() is raw


@pytest.mark.parametrize("error", [ImportError("No module named 'torch'"), ZeroDivisionError("by zero")])
def test_a_plugin_that_cannot_be_loaded_is_named_with_its_kind(error: Exception) -> None:
    def fail() -> None:
        raise error

    added = Registry().add(estimator_record("mine", load=fail), distribution="my-plugin")
    reason = f"{type(error).__name__}: {error}"
    with expect_error(PluginError, "plugin-not-loadable", "my-plugin/mine", reason, "`rllm plugins doctor`") as raised:
        added.load()

    assert raised.value.__cause__ is error


def test_an_error_on_purpose_while_loading_is_passed_on() -> None:
    error = ConfigError("made-up", "No key.", "Set one.")

    def fail() -> None:
        raise error

    with pytest.raises(ConfigError) as raised:
        Registry().add(estimator_record("mine", load=fail)).load()
    assert raised.value is error
