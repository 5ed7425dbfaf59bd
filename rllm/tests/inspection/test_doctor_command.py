"""``rllm plugins doctor`` as users run it."""

import pytest
from expecting import check_printed
from written_distribution import write_distribution


@pytest.mark.long
def test_doctor_exits_with_1_for_unusable_plugin(rllm, tmp_path) -> None:
    write_distribution(tmp_path, "bad-plugin", "raise RuntimeError('half installed')")

    finished = rllm("plugins", "doctor")

    assert finished.returncode == 1
    values = ("bad-plugin (bad-plugin 1.0): ", "RuntimeError: half installed", "RLLM_BLOCK_PLUGINS=bad-plugin")
    check_printed(finished.stdout, "broken-plugin", *values)
    assert "Traceback" not in finished.stdout
    assert "Traceback" in rllm("plugins", "doctor", "--debug").stdout


OF_GPUS = """
from rllm_core.contracts import Backend, BackendPlugin, Capabilities, Finding, NoParams
from rllm_core.plugins import hookimpl

def examine():
    yield Finding(code="no-gpu", severity="error", subject="GPU", problem="there is none", remedy="buy one")

@hookimpl
def rllm_backends():
    yield BackendPlugin(
        name="mine", summary="S.", load=lambda: Backend, capabilities=Capabilities(),
        examine_gpus=examine,
    )
"""


@pytest.mark.long
def test_doctor_asks_backends_about_gpus_when_told_to(rllm, tmp_path) -> None:
    write_distribution(tmp_path, "of-gpus", OF_GPUS)
    assert "no-gpu" not in rllm("plugins", "doctor").stdout

    finished = rllm("plugins", "doctor", "--gpu")

    assert finished.returncode == 1
    check_printed(finished.stdout, "no-gpu", "\nhint: buy one")
