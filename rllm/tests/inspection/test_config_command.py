"""`rllm config`, with the plugins of this repository: see, explain, check, and schemas for editors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from expecting import check_printed, check_values

from rllm.cli.configuring import plan_and_registry, read_request
from rllm.cli.main import main
from rllm.inspection.explain import Explanation, explain_key
from rllm.planning.unused_keys import core_keys
from rllm_core.schema.run_config import RunConfig


class Finished(NamedTuple):
    code: int
    out: str
    err: str


Rllm = Callable[..., Finished]


@pytest.fixture
def rllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rllm:
    """Run `rllm WORDS` in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("RLLM_BLOCK_PLUGINS", ""), ("RLLM_DEBUG", "0"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> Finished:
        code = main(words)
        return Finished(code, *capsys.readouterr())

    return run


# show


@pytest.mark.parametrize(
    "words",
    [
        ["guess", "--estimator", "rloo", "--rejection", "episode", "rllm.rejection_sample.min_partial_solve_tasks=2"],
        ["guess", "rllm.trainer.total_batches=3", "training.lr_schedule=cosine"],
        ["sum", r"rllm.env.env_args.prompt='a: \${b}'", "--loss", "reinforce", "--seed", "3"],
    ],
)
def test_shown_config_gives_the_same_run(rllm: Rllm, words: list[str]) -> None:
    shown = rllm("config", "show", *words)
    assert (shown.code, [line for line in shown.err.splitlines() if "default" not in line]) == (0, [])
    Path("again.yaml").write_text(shown.out)
    assert rllm("config", "show", "--config", "again.yaml") == Finished(0, shown.out, "")


def test_shown_config_has_all_keys_and_separate_warnings(rllm: Rllm) -> None:
    shown = rllm("config", "show", "sum", "rllm.rollout.n=1")
    assert shown.err.startswith("warning: rllm.rollout.n=1 ")
    check_values(shown.err, "estimator grpo")
    assert "warning" not in shown.out
    tree = yaml.safe_load(shown.out)
    for key in core_keys(RunConfig()):
        node = tree
        for part in key.path:
            assert part in node, key.dotted
            node = node[part]
    assert {"model", "training", "local"} <= set(tree)


def test_origins_are_shown_next_to_all_values(rllm: Rllm) -> None:
    Path("my.yaml").write_text("rllm: {rollout: {n: 5}}\n")
    lines = rllm("config", "show", "guess", "--config", "my.yaml", "--estimator", "rloo", "--origin").out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert lines[0].split() == ["key", "value", "origin"]
    expected = {
        "rllm.rollout.n": "5 my.yaml",
        "rllm.algorithm.adv_estimator": '"rloo" command line',
        "rllm.env.env_args.prompt": '"guess" recipe guess local/tiny',
        "rllm.workflow.name": '"multi_turn_workflow" environment guess',
        "training.beta1": "0.9 backend local",
        "rllm.trainer.seed": "0 default",
    }
    assert {name: " ".join(rows[name].split()) for name in expected} == expected


# explain


def facts(finished: Finished) -> dict[str, str]:
    assert finished.code == 0, finished.err
    heading, _, table = finished.out.partition("\n\n")
    rows = (line.split("  ", 1) for line in table.splitlines())
    return {"": heading, **{name: text.strip() for name, text in rows}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["rllm.rollout.n", "guess", "rllm.rollout.n=4"],
            {
                "": "rllm.rollout.n: Rollouts per task during training.",
                "type": "whole number > 0",
                "default": "8",
                "value": "4 (from command line)",
                "read by": "stage generate",
                "in this run": "stage generate",
                "backends": "endpoint, local",
            },
        ),
        (["rllm.rollout.n", "guess"], {"value": "16 (from recipe guess local/tiny)"}),
        (["rllm.algorithm.eps_clip", "guess", "--loss", "reinforce"], {"in this run": "nothing"}),
        (["rllm.algorithm.kl_beta"], {"read by": "backend local", "backends": "local"}),
        (["rllm.agent.engine_args"], {"read by": "no installed plugin", "backends": "none"}),
        (["rllm.algorithm.lr_schedule"], {"also known as": "training.lr_schedule (local)"}),
        (["training.lr_schedule"], {"read by": "backend local", "also known as": "rllm.algorithm.lr_schedule"}),
        (["model.name", "--model", "tiny"], {"flag": "--model", "value": '"tiny" (from command line)'}),
        (
            ["rllm.algorithm.adv_estimator", "--estimator", "rloo"],
            {"flag": "--estimator", "value": '"rloo" (from command line)'},
        ),
        (["rllm.renderer"], {"options": "control_tokens, date (of renderer auto)"}),
        (
            ["rllm.renderer.date", "rllm.renderer.date=2026-12-01"],
            {"value": '"2026-12-01" (from command line)', "read by": "renderer auto"},
        ),
        (
            ["rllm.env.env_args.largest", "sum"],
            {"type": "whole number > 0", "value": "9 (from default)", "read by": "environment sum"},
        ),
        (["rllm.workflow.workflow_args.gamma", "guess"], {"read by": "workflow multi_turn_workflow"}),
        (["rllm.agent.agent_args.system_prompt"], {"read by": "agent math_agent", "default": "null"}),
    ],
)
def test_a_key_is_explained(
    rllm: Rllm, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, str]
) -> None:
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm,rllm-tinker,rllm-verl")
    found = facts(rllm("config", "explain", *words))
    assert {name: found.get(name) for name in expected} == expected


def test_every_key_of_the_core_can_be_explained() -> None:
    plan, registry = plan_and_registry(read_request(("guess",), None, (), {}))
    for key in core_keys(RunConfig()):
        found = explain_key(key.dotted, plan, registry)
        assert isinstance(found, Explanation)
        assert found.about.name == key.dotted
        assert {"type", "default", "value", "read by", "backends"} <= set(found.facts)
        refused = key.dotted in ("rllm.filter_token_mismatch", "rllm.stepwise_advantage.mode")
        assert not refused or found.facts["refused"]


def test_a_section_lists_its_keys(rllm: Rllm) -> None:
    listed = rllm("config", "explain", "rllm.algorithm.entropy").out.splitlines()
    names = [line.split()[0] for line in listed]
    assert names == ["key", *(f"rllm.algorithm.entropy.{name}" for name in ("coeff", "final_coeff", "decay_steps"))]
    sections = rllm("config", "explain", "rllm.algorithm").out
    assert any(line.split()[:2] == ["rllm.algorithm.entropy", "section"] for line in sections.splitlines())


def test_unknown_key_gets_the_probable_key(rllm: Rllm) -> None:
    for key, meant in (
        ("rllm.algoritm", "`rllm.algorithm`"),
        ("learning_rate", "`training.learning_rate` or `critic.learning_rate`"),
        ("rllm.env.env_args.prompt", "`prompt`"),
    ):
        finished = rllm("config", "explain", key)
        assert (finished.code, finished.out) == (2, "")
        check_printed(finished.err, "unknown-key", meant)


# schema


def test_schema_for_people_lists_every_key(rllm: Rllm) -> None:
    names = [line.split()[0] for line in rllm("config", "schema").out.splitlines()]
    assert {key.dotted for key in core_keys(RunConfig())} < set(names)
    assert "training.learning_rate" in names
    schema = json.loads(rllm("config", "schema", "--json").out)
    assert schema["additionalProperties"] is False
    assert {"rllm", "training"} <= {*schema["properties"]}


# flags


def test_unused_values_give_way_to_a_different_choice(rllm: Rllm) -> None:
    Path("again.yaml").write_text(rllm("config", "show", "guess", "--loss", "reinforce").out)
    assert "eps_clip" in Path("again.yaml").read_text()
    again = rllm("config", "show", "--config", "again.yaml", "--loss", "ppo")
    direct = rllm("config", "show", "guess", "--loss", "ppo")
    assert yaml.safe_load(again.out)["rllm"]["algorithm"] == yaml.safe_load(direct.out)["rllm"]["algorithm"]


def test_environment_values_are_shown_unresolved(rllm: Rllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "sk-7f3a")
    words = ["guess", "rllm.trainer.project_name=${oc.env:SECRET}"]
    shown = [
        rllm("config", "show", *words),
        rllm("config", "show", *words, "--origin"),
        rllm("config", "explain", "rllm.trainer.project_name", *words),
        rllm("train", *words, "--dry-run"),
    ]
    assert ["sk-7f3a" in each.out + each.err for each in shown] == [False] * 4
    assert ["${oc.env:SECRET}" in each.out for each in shown] == [True] * 4
