"""``rllm plugins info``: what is said of one plugin."""

from written_distribution import write_distribution

PLUGIN = """
from pydantic import Field
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.plugins import hookimpl

class ScaleParams(Params):
    scale: float = Field(1.5, gt=0, description="Multiplies every advantage.")
    target: str

def raw(inputs, params):
    return Advantages(values=inputs.rewards)

@hookimpl
def rllm_estimators():
    return [
        EstimatorPlugin(
            name="scaled",
            summary="The reward itself, times a constant, which is as simple as an estimator can be.",
            params=ScaleParams,
            load=lambda: raw,
            level="token",
            needs=frozenset({"values"}),
            deprecated="choose grpo",
        )
    ]
"""


def test_info_shows_facts_and_options(rllm, tmp_path) -> None:
    write_distribution(tmp_path, "third-party", PLUGIN)

    printed = rllm("plugins", "info", "estimator", "scaled").stdout

    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[0].startswith("estimator scaled: The reward itself")
    assert "DEPRECATED: choose grpo" in lines
    assert "comes from third-party 1.0" in lines
    assert "qualified name third-party/scaled" in lines
    assert "level token" in lines
    assert "scope group" in lines
    assert "needs values" in lines
    assert "scale number > 0 1.5 Multiplies every advantage." in lines
    assert "target text required" in lines


def test_info_lays_out_what_is_a_list(rllm) -> None:
    """Not in the cells of one table, where it was a paragraph of thousands of letters."""
    printed = rllm("plugins", "info", "backend", "verl", RLLM_BLOCK_PLUGINS="").stdout
    assert max(map(len, printed.splitlines())) < 200
    rows = [line.split() for line in printed.splitlines()]
    for heading, row in (
        ("Config keys:", ["rllm.renderer"]),
        ("Shared keys:", ["trainer.save_freq", "rllm.trainer.save_freq"]),
        ("Unused keys:", ["trainer.resume_mode", "Set"]),
        ("Unused keys by profile:", ["cpu", "actor_rollout_ref.rollout.enforce_eager", "Only"]),
    ):
        after = rows[rows.index(heading.split()) + 1 :]
        section = after[: after.index([])] if [] in after else after
        assert row in [each[: len(row)] for each in section]


def test_info_on_an_unknown_name_gets_the_nearest_one(rllm) -> None:
    finished = rllm("plugins", "info", "estimator", "grop")

    assert finished.returncode == 2
    assert "Did you mean 'grpo'?" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_its_help_has_examples(rllm) -> None:
    finished = rllm("plugins", "info", "--help")

    assert finished.returncode == 0
    assert finished.stdout.count("rllm plugins info") >= 3
