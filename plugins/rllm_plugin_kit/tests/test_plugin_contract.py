"""What is wrong with records of any kind, and what the contracts tell their authors; and the kit as pytest runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from written_distribution import write_distribution

import rllm_plugin_kit as kit
from rllm_core.contracts import AdvantageInput, Advantages, EstimatorPlugin, NoParams, Params
from rllm_plugin_kit import EstimatorContract

PLUGIN = """
{imports}
from rllm_core.contracts import Advantages, EstimatorPlugin, Params
from rllm_core.plugins import hookimpl

requires_api = {requires_api}

class MineParams(Params):
    scale: float = 1.0

def raw(inputs, params):
    return Advantages(values=params.scale * inputs.rewards)

@hookimpl
def rllm_estimators():
    plugin = EstimatorPlugin(
        name="mine", summary="Mine.", load_params=lambda: MineParams, load=lambda: raw, scope="trajectory"
    )
    return [plugin]
"""


class Loose(BaseModel):
    scale: float = 1.0


class Thawed(BaseModel, extra="forbid"):
    scale: float = 1.0


class BadDefault(Params):
    scale: float = Field(-1.0, gt=0)


class Tupled(Params):
    scales: Any = (1.0, 2.0)


def local_params() -> type[BaseModel]:
    class Hidden(Params):
        scale: float = 1.0

    return Hidden


def raw(inputs: AdvantageInput, params: Any) -> Advantages:
    return Advantages(values=inputs.rewards)


def broken_load() -> Any:
    raise ModuleNotFoundError("No module named 'a_dependency'")


def record(params: type[BaseModel] = NoParams, **fields: Any) -> EstimatorPlugin[Any]:
    given = {
        "name": "mine",
        "summary": "Mine.",
        "load_params": lambda: params,
        "load": lambda: raw,
        "scope": "trajectory",
    }
    return EstimatorPlugin(**given | fields)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs the distribution `rllm-mine`, as far as entry points go."""

    def run(imports: str = "", requires_api: int = 1) -> None:
        write_distribution(tmp_path, "rllm-mine", PLUGIN.format(imports=imports, requires_api=requires_api))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "rllm_mine", raising=False)

    return run


@pytest.mark.parametrize(
    ("contract", "attributes"),
    [
        (kit.AgentContract, {}),
        (kit.DatasetContract, {}),
        (kit.ObserverContract, {}),
        (kit.RendererContract, {}),
        (kit.RewardContract, {"right": ("It is 42.",), "wrong": ("7",)}),
        (kit.SamplerContract, {}),
        (kit.TeacherContract, {}),
        pytest.param(kit.TrackerContract, {}, marks=pytest.mark.long),
    ],
)
def test_hook_examples_keep_the_contract(
    contract: Any, attributes: dict[str, Any], complaints: Any, example: Any, tmp_path: Path
) -> None:
    given = {"tmp_path": tmp_path}
    assert complaints(contract, example(contract.kind), given=given, **attributes) == {}


class Installed(EstimatorContract):
    name = "rllm-mine/mine"


@pytest.mark.parametrize(
    ("fields", "test", "told"),
    [
        ({"load_params": lambda: Loose}, "options_are_validated", "rllm_core"),
        ({"load_params": lambda: Thawed}, "options_are_validated", "has options that"),
        ({"load_params": lambda: BadDefault}, "options_survive_a_json_round_trip", "Input should be"),
        ({"load_params": lambda: Tupled}, "options_survive_a_json_round_trip", "has options that"),
        ({"load_params": local_params}, "options_can_be_pickled", "Define its params"),
        ({"name": "My-Estimator"}, "plugin_spec_is_valid", "a name is"),
        ({"load_params": lambda: dict}, "plugin_spec_is_valid", "load_params must return a pydantic model"),
        ({"summary": "Two\nlines."}, "plugin_spec_is_valid", "summary must be"),
        ({"scope": "world"}, "plugin_spec_is_valid", "scope must be"),
        ({"load": broken_load}, "plugin_loads", "ModuleNotFoundError"),
        ({"load": lambda: None}, "plugin_loads", "`load`"),
    ],
)
def test_bad_plugin_specs_are_reported(complaint: Any, fields: dict[str, Any], test: str, told: str) -> None:
    assert told in complaint(EstimatorContract, record(**fields), test)


def test_a_plugin_spec_is_found_among_installed_plugins(install: Callable[..., None]) -> None:
    install()
    assert Installed().record().name == "mine"


def test_heavy_imports_are_reported(install: Callable[..., None]) -> None:
    install("import safetensors, numpy")
    with pytest.raises(AssertionError, match="imports numpy, safetensors"):
        Installed().test_listing_imports_no_heavy_packages()


def test_a_different_api_version_is_reported(install: Callable[..., None]) -> None:
    install(requires_api=2)
    with pytest.raises(AssertionError, match=r"rllm-mine .*version 2"):
        Installed().test_plugin_spec_is_valid()


def test_a_missing_name_is_reported() -> None:
    class TestNothing(EstimatorContract):
        pass

    with pytest.raises(AssertionError, match=r"TestNothing .*`name`"):
        TestNothing().test_plugin_spec_is_valid()


def test_classes_for_all_plugins_of_a_distribution() -> None:
    made = EstimatorContract.for_each("rllm-core", grpo={"centres": False})
    assert {"TestGrpo", "TestReinforcePlusPlusBaseline"} <= made.keys()
    assert made["TestGrpo"].name == "rllm-core/grpo"
    assert not made["TestGrpo"].centres
    assert made["TestRloo"].centres
    with pytest.raises(ValueError, match=r"rllm-core.*estimator.* gropo"):
        EstimatorContract.for_each("rllm-core", gropo={})


def test_importing_the_kit_imports_no_torch(rllm_from_inside: Any) -> None:
    script = "import sys; from rllm_plugin_kit import EstimatorContract, stage_context; print('torch' in sys.modules)"
    assert rllm_from_inside(script).stdout.strip() == "False"


@pytest.mark.smoke
def test_pytest_runs_each_test_for_each_mapping(install: Callable[..., None], tmp_path: Path) -> None:
    install()
    tests = tmp_path / "test_mine.py"
    tests.write_text(
        "from rllm_plugin_kit import EstimatorContract\n\n"
        "class TestMine(EstimatorContract):\n"
        "    name = 'mine'\n"
        "    options = ({}, {'scale': 2.0}, {'scal': 2.0})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-k", "options or loads"]
    done = subprocess.run(
        [*command, str(tests)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    for said in ("test_mine.py::TestMine::test_options_are_validated[scal=2.0]", "TestMine.options.scal"):
        assert said in done.stdout
    for said in ("7 passed, ", "3 errors in"):
        assert said in done.stdout
