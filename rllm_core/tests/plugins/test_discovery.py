from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import rllm_core
from rllm_core.plugins.discovery import PROGRAM, discover, read_entry_points
from rllm_core.plugins.registry import Registry


def _names(candidates):
    return [candidate.distribution for candidate in candidates if candidate.distribution != PROGRAM]


def _only(candidates):
    (found,) = (candidate for candidate in candidates if candidate.distribution != PROGRAM)
    return found


def test_entry_points_equal_those_of_importlib(site, tmp_path_factory, monkeypatch) -> None:
    site.install_estimator("found-twice", "first")
    lines = ("# none", "", "[ group ]", "[group]", "x = json : JSONDecoder.decode [extra]", " y=json")
    (site.install_package("commented", "1.0") / "entry_points.txt").write_text("\n".join(lines))
    second = tmp_path_factory.mktemp("second")
    monkeypatch.syspath_prepend(second)
    (second / "found_twice-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(second / "missing")

    found = list(read_entry_points())

    groups = {each.group for each in found}
    expected = [entry for group in groups for entry in entry_points(group=group)]
    assert sorted(each[1:] for each in found) == sorted((each.group, each.name, each.value) for each in expected)
    assert "found-twice" not in {each.name for each in found}, "the first package on the path hides it"
    for mine in found:
        if mine.group == "group":
            assert mine.load() is EntryPoint(mine.name, mine.value, mine.group).load()


def test_an_installed_plugin_is_found_without_an_import(site) -> None:
    site.install("found-plugin", "raise RuntimeError('imported')", version="2.3")

    candidate = _only(discover(allow=["found-plugin"], environ={}).candidates)

    assert (candidate.entry_point, candidate.distribution, candidate.version) == ("found-plugin", "found-plugin", "2.3")
    assert candidate.blocked_by == ""


def test_plugins_come_in_alphabetical_order(site) -> None:
    for name in ("zebra", "Apple", "mango"):
        site.install_estimator(name, name.lower())

    assert _names(discover(allow=["zebra", "Apple", "mango"], environ={}).candidates) == ["Apple", "mango", "zebra"]


def test_a_blocked_plugin_is_never_imported(site, tmp_path: Path) -> None:
    trace = tmp_path / "imported"
    site.install("tracing", f"open({str(trace)!r}, 'w').close()")

    for registry in (site.load(block="tracing"), Registry.load(allow=["some-other"], environ={})):
        assert "tracing" in _names(registry.discovery.blocked)
        assert registry.broken == []
        assert not trace.exists()

    site.load()
    assert trace.exists(), "the same plugin leaves its trace when it is not blocked"


def test_block_list_accepts_entry_points_and_any_spelling(site) -> None:
    site.install("My_Plugin", "", entry_point="nickname")

    for block in ("my-plugin", "MY.PLUGIN", " nickname , other"):
        assert "My_Plugin" in _names(discover(environ={"RLLM_BLOCK_PLUGINS": block}).blocked), block


def test_star_blocks_all_but_core_and_program(site) -> None:
    site.install_estimator("third-party", "third")

    registry = Registry.load(environ={"RLLM_BLOCK_PLUGINS": "*"})

    assert _names(registry.discovery.candidates) == []
    assert {entry.distribution for entry in registry.all("estimator")} == {"rllm-core", "rllm"}


def test_entry_point_name_does_not_allow_a_plugin(site) -> None:
    site.install("stranger", "", entry_point="trusted")

    assert "stranger" in _names(discover(allow=["trusted"], environ={}).blocked)


def test_unknown_names_in_lists_are_reported_as_written(site) -> None:
    site.install_estimator("present", "present")

    discovery = discover(allow=["present", "Absent"], environ={"RLLM_BLOCK_PLUGINS": "present,Gone,rllm-core"})

    assert discovery.unknown_allows == (("rllm.plugins.allow", "Absent"),)
    assert discovery.unknown_blocks == ("Gone", "rllm-core")


def test_no_other_distribution_can_pass_for_the_core(site) -> None:
    site.install("rllm-core", "raise RuntimeError('imported')", module="impostor", version="99")

    registry = Registry.load(allow=["rllm-core"], environ={"RLLM_BLOCK_PLUGINS": "rllm-core"})

    assert registry.broken == []
    assert registry.get("estimator", "rllm-core/grpo").version == rllm_core.__version__


def test_damaged_metadata_uses_the_entry_point_name(site) -> None:
    site.install_estimator("damaged", "damaged")
    (site.directory / "damaged-1.0.dist-info" / "METADATA").write_text("")

    candidate = _only(discover(allow=["damaged"], environ={}).candidates)

    assert (candidate.distribution, candidate.version) == ("damaged", "unknown")


def test_allow_list_of_environment_limits_the_key(site) -> None:
    for name in ("first", "second", "third"):
        site.install(name, "")
    environ = {"RLLM_ALLOW_PLUGINS": "First, second,,absent"}

    discovery = discover(allow=["second", "third"], environ=environ)

    assert _names(discovery.candidates) == ["second"]
    reasons = {each.distribution: each.blocked_by for each in discovery.blocked}
    assert reasons["first"] == "rllm.plugins.allow, which does not list it"
    assert reasons["third"] == "RLLM_ALLOW_PLUGINS, which does not list it"
    assert discovery.unknown_allows == (("RLLM_ALLOW_PLUGINS", "absent"),)
    assert len(_names(discover(environ={"RLLM_ALLOW_PLUGINS": ""}).candidates)) >= 3, "an empty list allows all"
