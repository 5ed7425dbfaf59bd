import pytest
from expecting import expect_error
from plugin_site import ESTIMATOR, estimator_record

from rllm_core.contracts import API_VERSION, LossPlugin
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins import resolve
from rllm_core.plugins.registry import Registry

IMPORTS = """
from rllm_core.contracts import EstimatorPlugin, LossPlugin, NoParams
from rllm_core.plugins import hookimpl

def record(cls=EstimatorPlugin, **changes):
    fields = {"name": "mine", "summary": "Mine.", "load_params": lambda: NoParams, "load": lambda: print}
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
    **{
        body: (IMPORTS + HOOK + body, reason)
        for body, reason in (
            ("return 1 / 0", "ZeroDivisionError"),
            ("yield record()\n    raise KeyError('late')", "KeyError: 'late'"),
            ("pass", "None"),
            ("return record()", "EstimatorPlugin("),
            ("return [3]", "3 (int)"),
            ("return [record(LossPlugin)]", "LossPlugin 'mine'"),
            ("return [record(), record()]", "offers 'mine' twice"),
            ("return [record(name='')]", "''"),
            ("return [record(name='my-own')]", "'my-own'"),
            ("return [record(name='off')]", "YAML"),
            ("return [record(summary='a\\nb')]", "summary"),
            ("return [record(summary=' ')]", "summary"),
            ("return [record(load_params=NoParams)]", "load_params must be"),
            ("return [record(load_params=NoParams())]", "load_params must be"),
            ("return [record(load='x')]", "load must be"),
            ("return [record(needs='values')]", "frozenset"),
            ("return [record(level='word')]", "level must be one of trajectory, step"),
        )
    },
}


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_plugin_is_kept_apart_with_its_reason(site, capsys, code: str, reason: str) -> None:
    site.install("bad-plugin", code, version="0.3")
    site.install_estimator("good-plugin", "good")

    registry = site.load()
    site.load()

    (broken,) = registry.broken
    assert (broken.name, broken.distribution, broken.version) == ("bad-plugin", "bad-plugin", "0.3")
    assert reason in broken.reason
    assert "\n" not in broken.reason
    assert broken.traceback.startswith("Traceback")
    assert registry.get("estimator", "good").qualified_name == "good-plugin/good"
    shown = capsys.readouterr().err
    assert shown.count("warning: plugin bad-plugin ") == 1
    assert broken.reason in shown


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ("load_params=lambda: gone", "plugin-not-loadable", "NameError: name 'gone'"),
        ("load_params=lambda: dict", "bad-plugin-spec", "a pydantic model class, not <class 'dict'>"),
        ("load_params=lambda: NoParams()", "bad-plugin-spec", "a pydantic model class, not NoParams()"),
        ("family_option='path'", "bad-plugin-spec", "'path', which params does not have"),
    ],
)
def test_bad_options_are_an_error_when_read(site, changes: str, code: str, reason: str) -> None:
    site.install("bad-options", f"{IMPORTS}{HOOK}return [record({changes})]")

    registry = site.load()

    assert registry.broken == []
    with expect_error(PluginError, code, "EstimatorPlugin 'mine'", reason):
        _ = registry.get("estimator", "mine").plugin.params


def test_two_distributions_cannot_offer_one_module(site) -> None:
    site.install_estimator("first", "shared")
    site.install("second", (site.directory / "first.py").read_text(), module="first")

    registry = site.load()

    assert registry.get("estimator", "shared").distribution == "first"
    assert "already registered as first:first" in registry.broken[0].reason


def test_two_entry_points_cannot_offer_one_name(site) -> None:
    site.install_estimator("doubled", "twin")
    (site.directory / "doubled_again.py").write_text((site.directory / "doubled.py").read_text())
    site.modules.append("doubled_again")
    points = site.directory / "doubled-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "doubled-again = doubled_again\n")

    registry = site.load()

    assert registry.get("estimator", "twin").qualified_name == "doubled/twin"
    assert [broken.name for broken in registry.broken] == ["doubled-again"]


def test_plugin_for_the_present_interface_is_used(site) -> None:
    site.install("versioned", f"requires_api = '{API_VERSION}.7'\n" + ESTIMATOR.replace("{name}", "versioned"))

    assert site.load().get("estimator", "versioned").distribution == "versioned"


def test_the_cores_plugins_come_first(site) -> None:
    site.install_estimator("aaa", "early")

    assert next(entry.distribution for entry in site.load().all("estimator")) == "rllm-core"


def test_plugin_is_found_by_any_spelling(site) -> None:
    site.install_estimator("My_Plugin", "mine", version="4.5")
    registry = site.load()

    for name in ("mine", "My_Plugin/mine", "my-plugin/mine"):
        registered = registry.get("estimator", name)
        assert (registered.qualified_name, registered.version) == ("My_Plugin/mine", "4.5")


def test_ambiguous_name_is_an_error_when_chosen(site, capsys) -> None:
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
    registry.add(LossPlugin(name="same", summary="A loss.", load=lambda: lambda inputs, params: inputs))

    assert registry.conflicts() == []
    assert registry.get("loss", "same").kind == "loss"


@pytest.mark.parametrize(
    ("kind", "name", "code", "values"),
    [
        ("estimator", "alpa", "unknown-plugin", ["'alpa'", "'alpha'"]),
        ("estimators", "alpha", "unknown-plugin-kind", ["'estimators'", "'estimator'?"]),
        ("estimator", "wrong/alpha", "unknown-plugin", ["'alpha'", "in-process/alpha"]),
        ("estimator", "in-process/beta", "plugin-of-other-program", ["'in-process/beta'", "import_modules"]),
        ("backend", "tinkr", "unknown-plugin", ["Did you mean 'tinker'"]),
    ],
)
def test_an_unknown_name_gets_the_closest_name(kind: str, name: str, code: str, values: list[str]) -> None:
    registry = Registry()
    registry.add(estimator_record("alpha"))

    with expect_error(PluginError, code, *values):
        registry.get(kind, name)


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
def test_plugin_not_installed_has_a_pip_command(kind: str, name: str, home: str) -> None:
    bare = name.partition(":")[0].rpartition("/")[2]

    with pytest.raises(PluginError) as raised:
        Registry().get(kind, name)

    assert raised.value.message == f"{kind} {bare!r} is in {home}: pip install {home}"


def test_name_of_broken_plugin_reports_the_reason(site) -> None:
    site.install("rllm-estimators", "raise RuntimeError('half installed')", module="broken_estimators")
    registry = site.load()

    for name in ("opo", "rllm-estimators/opo", "rllm-estimators/unheard_of"):
        with expect_error(PluginError, "broken-plugin", "RuntimeError"):
            registry.get("estimator", name)
    with expect_error(PluginError, "unknown-plugin"):
        registry.get("estimator", "unheard_of")


def test_name_of_blocked_plugin_reports_the_block(site) -> None:
    site.install_estimator("third-party", "third")

    block = "'third-party' in RLLM_BLOCK_PLUGINS"

    with expect_error(PluginError, "blocked-plugin", block):
        site.load(block="third-party").get("estimator", "third-party/third")
    with expect_error(PluginError, "unknown-plugin", "third-party", block):
        site.load(block="third-party").get("estimator", "third")


def test_a_name_can_be_added_once_per_distribution() -> None:
    registry = Registry()

    def raw() -> None:
        raise NotImplementedError

    added = registry.add(estimator_record("mine", load=lambda: raw))

    assert registry.all("estimator") == [added]
    assert registry.get("estimator", "mine") is registry.get("estimator", "in-process/mine") is added
    assert added.load() is raw
    for record, code, value in (
        (estimator_record("mine"), "duplicate-plugin", "'mine'"),
        (estimator_record("No Name"), "bad-plugin-spec", ""),
        (3, "bad-plugin-spec", "3"),
    ):
        with expect_error(PluginError, code, value):
            registry.add(record)
    registry.add(estimator_record("mine"), distribution="elsewhere")
    with expect_error(PluginError, "ambiguous-plugin", "0"):
        registry.get("estimator", "mine")


def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [ImportError("No module named 'torch'"), ZeroDivisionError("by zero")])
def test_plugin_that_cannot_load_is_named_with_kind(error: Exception) -> None:
    added = Registry().add(estimator_record("mine", load=lambda: _fail(error)), distribution="my-plugin")
    reason = f"{type(error).__name__}: {error}"
    with expect_error(PluginError, "plugin-not-loadable", "my-plugin/mine", reason, "`rllm plugins doctor`") as raised:
        added.load()

    assert raised.value.__cause__ is error


def test_rllm_error_while_loading_is_raised_unchanged() -> None:
    error = ConfigError("made-up", "No key.", "Set one.")
    with pytest.raises(ConfigError) as raised:
        Registry().add(estimator_record("mine", load=lambda: _fail(error))).load()
    assert raised.value is error


def test_qualified_names_are_resolved_in_other_processes() -> None:
    found = resolve("loss", "rllm-core/ppo")
    assert (found.qualified_name, found.kind) == ("rllm-core/ppo", "loss")
    with expect_error(PluginError, "plugin-of-other-program", "'in-process/mine'", "--kind"):
        resolve("loss", "in-process/mine")
    with expect_error(PluginError, "unknown-plugin", "nobody/mine"):
        resolve("loss", "nobody/mine")
