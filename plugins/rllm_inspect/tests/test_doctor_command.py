"""``rllm plugins doctor`` as users run it."""

from written_distribution import write_distribution

NAME = "raw"


def test_doctor_exits_with_1_when_something_cannot_be_used(rllm, tmp_path) -> None:
    write_distribution(tmp_path, "bad-plugin", "raise RuntimeError('half installed')")

    finished = rllm("plugins", "doctor")

    assert finished.returncode == 1
    assert "error: bad-plugin (bad-plugin 1.0): broken: RuntimeError: half installed" in finished.stdout
    assert "RLLM_BLOCK_PLUGINS=bad-plugin" in finished.stdout
    assert "Traceback" not in finished.stdout
    assert "Traceback" in rllm("plugins", "doctor", "--debug").stdout


def test_doctor_counts_what_it_could_not_load(rllm, tmp_path) -> None:
    write_distribution(tmp_path, "unloadable", _with_load("1 / 0"))

    finished = rllm("plugins", "doctor")

    assert finished.returncode == 1
    assert f"error: estimator unloadable/{NAME}: it cannot be loaded: ZeroDivisionError" in finished.stdout


def test_its_help_has_examples(rllm) -> None:
    finished = rllm("plugins", "doctor", "--help")

    assert finished.returncode == 0
    assert finished.stdout.count("rllm plugins doctor") >= 3


def _with_load(expression: str) -> str:
    return f"""
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins import hookimpl

@hookimpl
def rllm_estimators():
    return [EstimatorPlugin(name={NAME!r}, summary="S.", params=NoParams, load=lambda: {expression})]
"""
