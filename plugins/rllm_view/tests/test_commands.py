"""Commands that print runs and trajectories."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from expecting import check_values, expect_error

from rllm_core.errors import ConfigError
from rllm_record.pending import PendingFile, PendingRow, write_pending
from rllm_view.commands import episode, list_runs, runs, view, why
from rllm_view.commands.choices import format_value

from .made_runs import RunShape, make_run, running
from .test_pages import FIELDS

Say = Callable[..., str]
COMMANDS = {"runs": runs, "episode": episode, "why": why}
HOSTILE = "\x1b[2Jgone\x00\u202etxt\u2028"


@pytest.fixture
def say() -> Say:
    def run(name: str, *words: object) -> str:
        result = CliRunner().invoke(COMMANDS[name], [str(word) for word in words], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


def test_runs_are_listed_with_progress_newest_first(say: Say, tmp_path: Path) -> None:
    for name, started in {"older": "2026-01-01T00:00:00+00:00", "newer": "2026-01-02T00:00:00+00:00"}.items():
        status = {"status": "running", "started": started}
        (make_run(tmp_path / name) / "status.json").write_text(json.dumps(status))
    make_run(tmp_path / "unknown")

    heading, newer, older, unknown = say("runs", "list", tmp_path).splitlines()

    assert heading.split()[:5] == ["run", "status", "started", "steps", "reward"]
    assert [row.split()[0] for row in (newer, older, unknown)] == [
        str(tmp_path / name) for name in ("newer", "older", "unknown")
    ]
    assert newer.split()[1] == "killed"
    assert unknown.split()[1:6] == ["-", "-", "3/4", "0.270", "0.250"]
    assert "tokens, 3 steps" in unknown
    assert [format_value(value) for value in (-0.0001, 0.0, -0.001)] == ["0.000", "0.000", "-0.001"]
    assert CliRunner().invoke(view, [str(tmp_path / "missing")]).exit_code == 2


def test_status_lists_pending_rollouts_longest_wait_first(say: Say, run: Path) -> None:
    waits = {"t:0": ("tool", 90.0), "t:1\x1b": ("model", 5.0)}
    rows = [
        PendingRow(rollout=uid, turn=2, waits_for=part, name="", since=time.time() - seconds, is_slow=seconds > 10)
        for uid, (part, seconds) in waits.items()
    ]
    write_pending(run, PendingFile(total=30, rows=rows))

    with running(run):
        heading, _, slow, quick, more = say("runs", "status", run).splitlines()
        as_json = json.loads(say("runs", "status", run, "--json"))
    killed = say("runs", "status", run)

    assert killed.endswith("killed, 3 of 4 steps done, 0 rollouts pending\n")
    assert heading.endswith("running, 3 of 4 steps done, 30 rollouts pending")
    assert (slow.split()[:3], slow.split()[-1]) == (["t:0", "2", "tool"], "slow")
    assert quick.split()[:3] == ["t:1\\x1b", "2", "model"]
    assert more == "28 more are not shown."
    assert [row["seconds"] >= least for row, least in zip(as_json["rollouts"], (90, 5), strict=True)] == [True, True]


def test_status_without_a_run_shows_the_newest(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with expect_error(ConfigError, "run-not-found", "rllm train guess"):
        say("runs", "status")
    for name, started in {"older": "2026-01-01T00:00:00+00:00", "newer": "2026-01-02T00:00:00+00:00"}.items():
        status = {"status": "finished", "started": started}
        (make_run(tmp_path / "runs" / name) / "status.json").write_text(json.dumps(status))

    assert say("runs", "status", "--watch") == "runs/newer: finished, 3 of 4 steps done, 0 rollouts pending\n"


def test_terminal_shows_the_whole_path_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "project" / ("a-long-name-of-an-experiment" * 3))

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    list_runs.callback((run,), as_json=False)

    heading, path, values = click.unstyle(capsys.readouterr().out).splitlines()
    assert path == str(run)
    assert max(len(heading), len(values)) <= 80


def test_run_with_unreadable_plugins_is_listed(say: Say, run: Path) -> None:
    (run / "plugins.json").write_text('[{"kind": ["backend"]}, 3]')

    assert say("runs", "list", run.parent).splitlines()[1].startswith(str(run))


@pytest.mark.parametrize("content", [None, "", "[4]", '{"total_steps": null}'])
def test_run_of_unknown_length_shows_only_its_steps(say: Say, run: Path, content: str | None) -> None:
    length = run / "length.json"
    if content is None:
        length.unlink()
    else:
        length.write_text(content)

    _, row = say("runs", "list", run.parent).splitlines()

    assert row.split()[3] == "3"


def test_an_episode_is_printed(say: Say, finished_run: Path) -> None:
    said = say("episode", finished_run, 1, "task-0:0").splitlines()

    assert said[0] == "1.0:task-0:0/0  agent, task task-0, generated in step 1"
    assert said[1] == 'task: {"question": "1 + 1?"}'
    first = said.index("── turn 0, weights 1, 4 tokens, stop ──")
    assert said[first + 1 : first + 3] == ["user: question 0", "→ answer 0"]
    assert "ended: env_done, solved" in said
    assert any(line.startswith("filter: trained in step 1; ") for line in said)


def test_why_names_the_strongest_tokens(say: Say, finished_run: Path) -> None:
    said = say("why", finished_run, 1, "task-0:0", "--top", 1)

    assert "estimator: grpo, baseline 0.25" in said
    # Place 11 is clipped: place 10 is the last that pushes, by 0.5 of 0.75 of 0.010.
    assert "  token 10, turn 1, ' w4': 0.00375, 0.00375" in said
    assert "--token 10" in said


def test_why_token_prints_every_fact_as_text(say: Say, finished_run: Path) -> None:
    prompt, kept, clipped = (say("why", finished_run, 1, "task-0:0", "--token", position) for position in (0, 10, 11))

    lines = kept.splitlines()
    titles = [line.partition(":")[0] for line in lines if line and not line.startswith((" ", "token", "The "))]
    assert len(titles) == 12
    assert "Turn: 1, sampled" in lines
    assert "    push: -clipping · (policy + KL part), epoch 1: 0.00375" in lines
    (line,) = [line for line in lines if line.startswith("    log-prob of the reference model: ")]
    assert not any(letter.isdigit() for letter in line)
    assert "the loss, epoch 0: no\n" in kept
    assert "the loss, epoch 0: yes\n" in clipped
    assert "    push: -clipping · (policy + KL part), epoch 0: 0\n" in clipped
    assert "-0\n" not in kept + clipped
    assert "hint: Use a sampled token: " in prompt


def test_episode_and_why_print_json(say: Say, finished_run: Path) -> None:
    played = json.loads(say("episode", finished_run, 1, "task-0:0", "--json"))
    why = json.loads(say("why", finished_run, 1, "task-0:0", "--top", 1, "--json"))
    prompt, kept = (
        json.loads(say("why", finished_run, 1, "task-0:0", "--token", place, "--json")) for place in (0, 10)
    )

    assert played["uid"] == why["uid"] == "1.0:task-0:0/0"
    assert played["turns"][0]["text"] == "answer 0"
    assert (played["outcome"]["outcome"], why["facts"]["Estimator"]) == ("trained", "grpo, baseline 0.25")
    (strongest,) = why["strongest_tokens"]
    assert (strongest["token"], strongest["turn"], strongest["text"]) == (10, 1, " w4")
    assert [push["value"] for push in strongest["pushes"]] == pytest.approx([0.00375, 0.00375])
    assert (prompt["is_sampled"], prompt["facts"], kept["is_sampled"], len(kept["facts"])) == (False, {}, True, 12)
    values = {(each["id"], each["epoch"]): each for each in kept["values"]}
    assert values["push", 0]["value"] == pytest.approx(0.00375)
    assert all((each["value"] is None) == (each["missing"] is not None) for each in kept["values"])


@pytest.mark.parametrize("command", ["why", "episode"])
def test_choices_as_json_have_all_rows(say: Say, finished_run: Path, command: str) -> None:
    steps = json.loads(say(command, finished_run, "--json"))
    trajectories = json.loads(say(command, finished_run, 1, "--json"))

    assert [each["step"] for each in steps] == [2, 1, 0]
    assert len(trajectories) == steps[1]["generated"]
    assert {each["step"] for each in trajectories} == {1}


@pytest.mark.parametrize("command", ["why", "episode"])
def test_commands_without_arguments_list_runs_steps_and_trajectories(
    say: Say, finished_run: Path, command: str
) -> None:
    steps, trajectories = say(command, finished_run).splitlines(), say(command, finished_run, 1).splitlines()
    assert steps[0].split()[:2] == ["step", "trajectories"]
    assert [line.split()[0] for line in steps[1:4]] == ["2", "1", "0"]
    assert steps[-1] == f"next: rllm {command} {finished_run} 2"
    assert trajectories[1].endswith("  answer 1")
    assert trajectories[1].split()[0] == trajectories[-1].split()[-1]
    assert say(command, *trajectories[-1].split()[3:])


def test_a_run_without_recorded_trajectories_is_an_error(say: Say, tmp_path: Path) -> None:
    with expect_error(ConfigError, "nothing-recorded", tmp_path / "empty"):
        say("episode", make_run(tmp_path / "empty", RunShape(groups=0, content="outcomes")))


def test_why_without_a_run_lists_latest_run_first(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with expect_error(ConfigError, "run-not-found", "rllm train guess"):
        say("why")
    for name in ("first", "second"):
        make_run(tmp_path / "runs" / name, RunShape(steps=1))
    os.utime(tmp_path / "runs" / "first" / "metrics.jsonl", (0, 0))
    lines = say("why").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["runs/second", "runs/first"]
    assert lines[-1] == "next: rllm why runs/second"
    with expect_error(ConfigError, "run-not-found", "Did you mean runs/second?"):
        say("why", "second")


@pytest.mark.parametrize(
    ("kl_part", "values"),
    [
        (0.0, ["none: ", "is 0; ", "entropy bonus", "(∂ entropy bonus / ∂ entropy from -0.01 to -0.01)"]),
        (0.02, ["is 0: ", "policy loss", "KL term", "  token 2, turn 0, ' w2': -0.01, -0.01"]),
    ],
)
def test_why_of_advantage_0_shows_other_loss_terms(say: Say, tmp_path: Path, kl_part: float, values: list[str]) -> None:
    run = make_run(tmp_path / "p" / "r", RunShape(steps=1, advantages=(0.0, 0.0), kl_part=kl_part))

    said = say("why", run, 0, "task-0:0")

    check_values(said, *values)
    assert "dropped" not in said


def test_control_characters_of_foreign_texts_do_nothing(say: Say, tmp_path: Path) -> None:
    run = make_run(tmp_path / "p" / "r", RunShape(steps=1, texts=dict.fromkeys(FIELDS, HOSTILE)))

    said = say("episode", run, 0, "task-0:0") + say("why", run, 0, "task-0:0") + say("why", run, 0, "task-1:0")
    said += say("why", run, 0, "task-0:0", "--token", 3)

    assert not {"\x1b", "\x00", "\u202e", "\u2028"} & set(said)
    assert "\\x1b[2Jgone" in said


def test_unknown_or_ambiguous_trajectory_is_rejected(say: Say, finished_run: Path) -> None:
    with expect_error(ConfigError, "ambiguous-trajectory", "matches 4 trajectories"):
        say("episode", finished_run, 1, "task-0")
    with expect_error(ConfigError, "unknown-trajectory", "'nobody'"):
        say("why", finished_run, 1, "nobody")
    with expect_error(ConfigError, "run-not-found"):
        say("why", finished_run / "checkpoints", 1, "nobody")
    with expect_error(ConfigError, "unknown-token"):
        say("why", finished_run, 1, "task-0:0", "--token", 12)


def test_exact_task_name_is_preferred(say: Say, tmp_path: Path) -> None:
    run = make_run(tmp_path / "p" / "r", RunShape(steps=1, groups=12, members=1))

    assert say("episode", run, 0, "task-1").startswith("0.0:task-1:0/0  ")
    assert say("episode", run, 0, "task-1:0").startswith("0.0:task-1:0/0  ")
