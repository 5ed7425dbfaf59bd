from pathlib import Path
from typing import Any

import pytest
from expecting import check_values
from plugin_site import ESTIMATOR, estimator_record

from rllm.inspection.doctor import examine, examine_gpus
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, Finding
from rllm_core.errors import PluginError
from rllm_core.plugins.discovery import discover
from rllm_core.plugins.registry import Registry


def _only(registry: Registry) -> Finding:
    (finding,) = examine(registry)
    return finding


def test_broken_plugin_is_an_error_with_traceback(site) -> None:
    site.install("bad-plugin", "raise RuntimeError('half installed')")
    broken = site.load().broken

    finding = _only(Registry(broken=broken))

    assert (finding.code, finding.severity) == ("broken-plugin", "error")
    assert finding.subject == "bad-plugin (bad-plugin 1.0)"
    assert "RLLM_BLOCK_PLUGINS=bad-plugin" in finding.remedy
    assert "raise RuntimeError" in finding.traceback


@pytest.mark.parametrize(
    ("error", "code", "severity", "value"),
    [
        (ImportError("scipy"), "plugin-not-loadable", "error", "ImportError"),
        (None, "plugin-not-loadable", "error", "cannot be called"),
        (PluginError("made-up", "No shiny.", "pip install shiny"), "made-up", "note", "pip install shiny"),
    ],
)
def test_plugin_that_cannot_be_loaded_is_found(error: Any, code: str, severity: str, value: str) -> None:
    def load() -> None:
        if error:
            raise error

    registry = Registry()
    registry.add(estimator_record("x", load=load), distribution="needy-plugin")
    finding = _only(registry)
    assert (finding.code, finding.severity, finding.subject) == (code, severity, "estimator needy-plugin/x")
    check_values(f"{finding.problem} {finding.remedy}", value)


def test_options_that_cannot_be_loaded_are_found(site) -> None:
    site.install("needy-plugin", ESTIMATOR.replace("{name}", "x").replace("load=", "load_params=lambda: gone, load="))
    finding = {each.subject: each for each in examine(site.load())}["estimator needy-plugin/x"]
    assert (finding.code, finding.severity) == ("plugin-not-loadable", "error")
    check_values(finding.problem, "options", "NameError", "'gone'")


def test_backend_file_must_be_where_hydra_searches(tmp_path: Path) -> None:
    file = tmp_path / "rllm" / "backend" / "bare.yaml"
    registry, misplaced = Registry(), Registry()
    registry.add(_backend("bare", None, config_yaml=lambda: file))
    misplaced.add(_backend("bare", None, config_yaml=lambda: tmp_path / "bare.yaml"))
    (tmp_path / "bare.yaml").touch()
    assert _only(registry).code == _only(misplaced).code == "plugin-not-loadable"
    check_values(_only(misplaced).problem, "rllm/backend/bare.yaml")
    file.parent.mkdir(parents=True)
    file.touch()
    assert examine(registry) == []


def test_name_clash_warns_with_both_qualified_names() -> None:
    registry = Registry()
    for distribution in ("one", "two"):
        registry.add(estimator_record("same"), distribution=distribution)

    finding = _only(registry)

    assert (finding.severity, finding.subject) == ("warning", "estimator same")
    assert finding.code == "ambiguous-plugin"
    assert "one/same or two/same" in finding.remedy


@pytest.mark.parametrize("name", ["proper-name", "Proper_Name", "proper-name-rewards"])
def test_entry_points_can_name_package_and_feature(site, name) -> None:
    site.install("proper-name", "", entry_point=name)

    findings = examine(Registry(discovery=discover(allow=["proper-name"], environ={})))

    assert "bad-entry-point-name" not in {each.code for each in findings}


def test_other_entry_point_names_are_warnings(site) -> None:
    site.install("proper-name", "", entry_point="nickname")
    discovery = discover(allow=["proper-name"], environ={})

    (finding,) = [each for each in examine(Registry(discovery=discovery)) if each.severity == "warning"]

    assert finding.code == "bad-entry-point-name"
    assert "'nickname'" in finding.problem


def test_names_that_block_or_allow_nothing_are_warnings(site) -> None:
    discovery = discover(allow=["absent"], environ={"RLLM_BLOCK_PLUGINS": "gone,rllm-core"})

    warnings = [finding for finding in examine(Registry(discovery=discovery)) if finding.severity == "warning"]

    assert {finding.code for finding in warnings} == {"unknown-plugin"}
    assert [(finding.subject, finding.problem.split("'")[1]) for finding in warnings] == [
        ("RLLM_BLOCK_PLUGINS", "gone"),
        ("RLLM_BLOCK_PLUGINS", "rllm-core"),
        ("rllm.plugins.allow", "absent"),
    ]


def test_deprecated_and_blocked_plugins_are_notes(site) -> None:
    site.install_estimator("third-party", "third")
    registry = Registry(discovery=discover(environ={"RLLM_BLOCK_PLUGINS": "*"}))
    registry.add(estimator_record("old", deprecated="choose grpo"))

    findings = examine(registry)

    assert {finding.severity for finding in findings} == {"note"}
    subjects = [finding.subject for finding in findings]
    assert "estimator in-process/old" in subjects
    assert "third-party 1.0" in subjects


def test_the_worst_findings_come_first(site) -> None:
    registry = Registry()
    registry.add(estimator_record("old", deprecated="choose grpo"))
    registry.add(estimator_record("empty", load=lambda: None), distribution="one")
    registry.add(estimator_record("empty"), distribution="two")

    assert [finding.severity for finding in examine(registry)] == ["error", "warning", "note"]


def test_equal_gpu_findings_are_reported_once() -> None:
    driver, flash = (
        Finding(code="made-up", severity="note", subject=each, problem="fine", remedy="nothing")
        for each in ("GPU", "flash")
    )

    def broken() -> list[Finding]:
        raise OSError("libcuda.so is damaged")

    registry = Registry()
    registry.add(_backend("one", lambda: [driver]))
    registry.add(_backend("two", lambda: [driver, flash]))
    registry.add(_backend("silent", None))
    registry.add(_backend("broken", broken))
    first, second, of_broken = examine_gpus(registry)
    assert (first, second) == (driver, flash)
    assert of_broken.severity == "error"
    check_values(of_broken.problem, "OSError: libcuda.so is damaged")


def _backend(name: str, examine: Any, **fields: Any) -> BackendPlugin[Any]:
    fields |= {"load": lambda: Backend, "capabilities": Capabilities(), "examine_gpus": examine}
    return BackendPlugin(name=name, summary="S.", **fields)
