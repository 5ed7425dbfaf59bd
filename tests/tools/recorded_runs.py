"""Real runs with a record, each made once per test session and read by the tests of all test processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import CommandServer

AGENT = """
from openai import OpenAI

def solve(task):
    prompt = [{"role": "user", "content": task["question"]}]
    answer = OpenAI().chat.completions.create(model="any", messages=prompt).choices[0].message.content
    return 1.0 if len(answer) % 2 else 0.0
"""
QUESTIONS = [{"question": f"{number} plus 1 is", "answer": str(number + 1)} for number in range(4)]
SUMS = [
    {
        "messages": [
            {"role": "user", "content": f"{number} plus 1 is"},
            {"role": "assistant", "content": str(number + 1)},
        ]
    }
    for number in range(8)
]
PAIRS = [
    {
        "prompt": each["messages"][:1],
        "chosen": each["messages"][1:],
        "rejected": [{"role": "assistant", "content": "?"}],
    }
    for each in SUMS
]
FILES = {
    "questions.jsonl": "\n".join(map(json.dumps, QUESTIONS)),
    "sums.jsonl": "\n".join(map(json.dumps, SUMS)),
    "pairs.jsonl": "\n".join(map(json.dumps, PAIRS)),
    "agent.py": AGENT,
}
SHORT = ("rllm.record=tokens", "rllm.trainer.total_batches=2", "rllm.trainer.test_freq=-1")
ROLLOUTS = (*SHORT, "rllm.trainer.val_before_train=false", "rllm.rollout.n=4", "data.train_batch_size=4")
TWO_EPOCHS = ("training.num_epochs=2", "training.num_minibatches=2", "training.learning_rate=0.003")
ROLES = "rllm.algorithm.estimator_map={solver: grpo, judge: {name: reinforce, loss_fn: ppo}}"
AHEAD = (
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=1",
    "rllm.async_training.partial_rollout=true",
)
RUNS: dict[str, Sequence[str]] = {
    "synchronous": ("train", "guess", *ROLLOUTS, *TWO_EPOCHS, "rllm.episode_logging.log_episodes=true"),
    "asynchronous": ("train", "guess", *ROLLOUTS, *TWO_EPOCHS, *AHEAD),
    "agent": (
        *("train", "question", "--agent", "agent.py:solve", "data.train_dataset=questions.jsonl"),
        *(*ROLLOUTS, "rllm.rollout.n=2", "data.max_response_length=4"),
    ),
    "sft": ("sft", "--data", "sums.jsonl", *SHORT, "data.train_batch_size=4", "training.learning_rate=0.01"),
    "prefer": ("prefer", "--data", "pairs.jsonl", *SHORT, "data.train_batch_size=4", "training.learning_rate=0.003"),
    "solver_judge": (
        *("train", "sum", "rllm.workflow.name=solver_judge", ROLES, *ROLLOUTS, "data.max_response_length=4"),
        "rllm.workflow.workflow_args={n_solvers: 2, judge_prompt: '{task} {answers}'}",
    ),
    "tree": ("train", "guess", "rllm.workflow.name=tree", "--estimator", "tree", *ROLLOUTS, *TWO_EPOCHS),
}
"""Arguments of `rllm`. Each run has two steps and the record of its tokens."""


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of a test session, in a directory that its test processes share."""

    directory: Path
    server: Callable[[], CommandServer]

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> RecordedRuns:
        """Return the session's runs, for a session-scoped fixture."""
        base: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
        # Each process of pytest-xdist has its own directory in a common one.
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        return cls(shared / "recorded_runs", lambda: request.getfixturevalue("command_server"))

    def path(self, name: str) -> Path:
        """Return the directory of a run, which tests only read. The first call makes the run."""
        directory = self.directory / name
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / "finished").exists():
                # A process that was killed may have left a part of the run.
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                for file, text in FILES.items():
                    (directory / file).write_text(text)
                self.run(directory, *RUNS[name])
                (directory / "finished").touch()
        (run,) = directory.glob("runs/*/*")
        return run

    def copy(self, name: str, destination: Path) -> Path:
        """Copy a run that a test changes. Its checkpoints are hard links, so their files may only be replaced."""
        return Path(shutil.copytree(self.path(name), destination, symlinks=True, copy_function=_copy_or_link))

    def run(self, directory: Path, *words: str) -> Path:
        """Run `rllm WORDS` in a directory that has no runs, and return the directory of its run."""
        # The report takes more time than the run.
        environ = os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view", "RLLM_DEBUG": "0"}
        process = self.server().start("rllm.cli.main", words, directory, environ)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        (made,) = directory.glob("runs/*/*")
        return made


def _copy_or_link(source: str, destination: str) -> None:
    if "/checkpoints/" in source:
        os.link(source, destination)
    else:
        shutil.copy2(source, destination)
