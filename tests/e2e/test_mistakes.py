"""Sixty mistakes of users. Each message names the user's file, function or value, and the next step to type."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from expecting import check_printed

Rllm = Callable[..., "subprocess.CompletedProcess[str]"]
Says = tuple[str, ...]
SHORT = (
    "data.max_response_length=1 rllm.trainer.total_batches=1 rllm.rollout.n=2 data.train_batch_size=2 "
    "rllm.trainer.val_before_train=false rllm.trainer.test_freq=-1"
)
TRAIN = f"train question --data train.jsonl {SHORT}"
EXACT = f"train question --reward exact {SHORT}"
ROWS = "".join(json.dumps({"question": f"{number}+1", "answer": str(number + 1)}) + "\n" for number in range(4))
RETURN = "Return a number or {'value': NUMBER}"
PASS_OVER = "rllm.algorithm.on_missing_reward=drop"
WITHOUT = "rllm.workflow.raise_on_error=false"


@dataclass(frozen=True)
class Mistake:
    """A command with its files, the code of its error, and text of the message."""

    words: str
    code: str
    says: Says
    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 2


def reward(body: str, *says: str) -> Mistake:
    """A function ``score`` that is found to be wrong when it is called."""
    source = {"rewards.py": f"def score(rollout):\n    {body}\n"}
    return Mistake(
        f"{TRAIN} --reward rewards.py:score", "missing-reward", ("score (rewards.py, line", *says, PASS_OVER), source, 1
    )


def file(source: str, code: str, *says: str, function: str = "rewards.py:score") -> Mistake:
    """A file of rewards that is found to be wrong before the run starts."""
    return Mistake(f"{TRAIN} --reward {function}", code, says, {"rewards.py": source})


CHAT = """import json, os, urllib.request
def chat(words):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
def solve(task):
    """


def agent(body: str, *says: str) -> Mistake:
    """A function ``solve`` that is found to be wrong when it is called."""
    return Mistake(
        f"{TRAIN} --agent agent.py:solve", "rollout-failed", (*says, WITHOUT), {"agent.py": f"{CHAT}{body}\n"}, 1
    )


def agent_file(source: str, code: str, *says: str, function: str = "agent.py:solve") -> Mistake:
    return Mistake(f"{TRAIN} --agent {function} --reward exact", code, says, {"agent.py": source})


ENVIRONMENT = """from rllm_core import register_rllm_environment
from rllm_core.contracts import Environment, Outcome
from rllm_core.data.types import Task
@register_rllm_environment("box")
class Box(Environment):
    def __init__(self, params):
        pass
    @classmethod
    def tasks(cls, split, params):
        return [Task(id=str(number), data={"number": number}) for number in range(8)]
    def reset(self, task):
        return "Open the box."
    def step(self, action):
        return Outcome(done=True, reward=1.0)
"""
BOX = f"train box 'rllm.plugins.import_modules=[box]' {SHORT}"


def environment(old: str, new: str, code: str, *says: str, exit_code: int = 1) -> Mistake:
    """An environment with a change."""
    assert old in ENVIRONMENT
    says = (*says, WITHOUT) if code == "rollout-failed" else says
    return Mistake(BOX, code, says, {"box.py": ENVIRONMENT.replace(old, new)}, exit_code)


VERL = "def score(data_source, solution_str, ground_truth, extra_info):\n    return {'acc': 1.0}\n"
REWARDS = {
    "other key": reward("return {'score': 1.0}", "line 1", "{'score': 1.0} without 'value'", RETURN),
    "text": reward("return '1.0'", "returned '1.0'", RETURN),
    "no return": reward("value = 1.0", "returned None", RETURN),
    "nan": reward("return float('nan')", "returned nan", "finite"),
    "list": reward("return [1.0]", "returned [1.0]", RETURN),
    "correct as text": reward("return {'value': 1, 'correct': 'yes'}", "'yes' as 'correct'", "True, False or None"),
    "unknown key": reward("return {'value': 1, 'accuracy': 1}", "'accuracy'", "components"),
    "key of the data": reward("return float(rollout.data['anwser'])", "line 2", "KeyError: 'anwser'"),
    "attribute": reward("return rollout.completion", "line 2", "no attribute 'completion'"),
    "verl without score": Mistake(
        f"{TRAIN} --reward rewards.py:score",
        "missing-reward",
        ("score (rewards.py, line 1) returned {'acc': 1.0} without 'score'", "{'score': NUMBER}"),
        {"rewards.py": VERL},
        1,
    ),
    "syntax": file("def score(rollout)\n    return 1\n", "syntax-error", "rewards.py, line 1", "python -m py_compile"),
    "name of the function": file(
        "def score(rollout):\n    return 1\n",
        "unknown-function",
        "rewards.py has no function 'scroe'",
        "'score'?",
        function="rewards.py:scroe",
    ),
    "no function": file(
        "def score(rollout):\n    return 1\n", "bad-function-name", "rewards.py:score", function="rewards.py"
    ),
    "parameters": file(
        "def score(text, answer):\n    return 1\n",
        "bad-reward-signature",
        "rewards.py, line 1: score(text, answer)",
        "def score(rollout)",
    ),
    "missing package": file(
        "import no_such_package\ndef score(rollout):\n    return 1\n",
        "module-not-found",
        "rewards.py, line 1",
        "'no_such_package'",
        "Install it",
    ),
}
AGENTS = {
    "list": agent("return [chat(task['question'])]", "solve (agent.py, line 10) returned [", "Return a number, text"),
    "other key": agent("chat('hi'); return {'score': 1.0}", "solve (agent.py, line 10)", "'score'", "reward, answer"),
    "correct as text": agent("chat('hi'); return {'correct': 'yes'}", "solve (agent.py, line 10)", "'yes'", "true or"),
    "key of the task": agent("chat('hi'); return task['solution']", 'agent.py", line 11', "KeyError: 'solution'"),
    "parameters": agent_file(
        "def solve():\n    pass\n", "bad-agent-signature", "solve (agent.py, line 1)", "def solve(task)"
    ),
    "name of the function": agent_file(
        "def solve(task):\n    pass\n", "unknown-function", "agent.py", "'solve'?", function="agent.py:slove"
    ),
    "no function": agent_file(
        "def solve(task):\n    pass\n", "bad-function-name", "agent.py:solve", function="agent.py"
    ),
    "syntax": agent_file("def solve(task)\n    pass\n", "syntax-error", "agent.py, line 1", "python -m py_compile"),
}
OUTCOME = "Outcome(done=True, reward=1.0)"
ENVIRONMENTS = {
    "reset without return": environment(
        'return "Open the box."', "pass", "rollout-failed", "Box.reset (box.py, line 11)", "None", "Return text"
    ),
    "step of gymnasium": environment(
        OUTCOME, "'', 1.0, True, {}", "rollout-failed", "Box.step (box.py, line 13) returned ('', 1.0", OUTCOME[:8]
    ),
    "reward as text": environment(
        "reward=1.0", "reward='good'", "rollout-failed", "Box.step (box.py, line 13)", "'good'", "Return a number"
    ),
    "step that raises": environment(
        "return Outcome", "return undefined + Outcome", "rollout-failed", "(box.py, line 14)", "Correct that line"
    ),
    "reward nan": environment(
        "reward=1.0", "reward=float('nan')", "missing-reward", "Box.step (box.py, line 13)", "nan", PASS_OVER
    ),
    "tasks as mappings": environment(
        'Task(id=str(number), data={"number": number})',
        "{'number': number}",
        "bad-task",
        "Box.tasks (box.py, line 8) returned {'number': 0}",
        "Task(id=",
        exit_code=2,
    ),
    "constructor without options": environment(
        "self, params", "self", "bad-plugin-spec", "Box.__init__ (box.py, line 6)", "def __init__(self, p", exit_code=2
    ),
    "no step": environment("def step(", "def setp(", "bad-plugin-spec", "Box", "def step(self, action)", exit_code=2),
}
DATA = {
    "name of the file": Mistake(f"{EXACT} --data trian.jsonl", "file-unreadable", ("'train.jsonl'?", "--data FILE")),
    "empty file": Mistake(f"{EXACT} --data d.jsonl", "no-rows", ("d.jsonl", "one JSON object"), {"d.jsonl": ""}),
    "incomplete line": Mistake(
        f"{EXACT} --data d.jsonl",
        "not-json",
        ("d.jsonl, line 1", "column 15", "one JSON object"),
        {"d.jsonl": '{"question": 1 \n'},
    ),
    "list in lines": Mistake(
        f"{EXACT} --data d.jsonl", "not-json", ("d.jsonl, line 1", ".json."), {"d.jsonl": "[\n{}\n]"}
    ),
    "column of the answer": Mistake(
        f"{EXACT} --data d.jsonl",
        "missing-column",
        ("'answer'", "question, solution", "'1' of d.jsonl", "{name: exact, column: COLUMN}"),
        {"d.jsonl": '{"question": "1+1", "solution": "2"}\n'},
    ),
    "empty answer": Mistake(
        f"{EXACT} --data d.jsonl",
        "missing-column",
        ("'answer' contains None", "'1' of d.jsonl", "Fill it in", PASS_OVER),
        {"d.jsonl": '{"question": "1+1", "answer": null}\n'},
    ),
    "role of a message": Mistake(
        f"{EXACT} --data d.jsonl",
        "bad-row",
        ("question[0].role is 'human'", "'1' of d.jsonl", "Rename it to 'user'"),
        {"d.jsonl": '{"question": [{"role": "human", "content": "1"}], "answer": "2"}\n'},
    ),
    "columns of other tools": Mistake(
        "sft --data d.jsonl",
        "bad-row",
        ("d.jsonl, row '1'", "'instruction', 'output'", "rename 'output' to 'completion'"),
        {"d.jsonl": '{"instruction": "hi", "output": "2"}\n'},
    ),
}
CONFIG = {
    "key": Mistake("train guess rllm.rolout.n=4", "unknown-key", ("`rolout`", "Write `rllm.rollout`")),
    "value": Mistake(
        "train guess rllm.rollout.n=four", "wrong-value", ('"four"', "rllm config explain rllm.rollout.n")
    ),
    "dashes": Mistake("train guess --rllm.rollout.n=4", "usage-error", ("'--rllm.rollout.n'", "Write rllm.rollout.n=")),
    "spaces": Mistake("train guess rllm.rollout.n = 4", "bad-override", ("`rllm.rollout.n`", "rllm.rollout.n=4")),
    "command": Mistake("trian guess", "usage-error", ("'trian'", "'train'?", "rllm --help")),
    "indentation": Mistake(
        "train guess --config run.yaml",
        "yaml-error",
        ("run.yaml, line 2", "Correct that line"),
        {"run.yaml": "rllm:\n\tseed: 4\n"},
    ),
    "run to resume": Mistake(
        "train guess --resume rllm.trainer.experiment_name=mine",
        "run-not-found",
        ("rllm-training/mine", "Remove --resume"),
    ),
    "run as an environment": Mistake(
        "train --resume guess-9", "unknown-plugin", ("rllm.trainer.experiment_name=NAME",)
    ),
}
PLUGINS = {
    "estimator": Mistake("train guess --estimator grop", "unknown-plugin", ("'grop'", "'grpo'?")),
    "kind": Mistake("plugins list estimators", "unknown-plugin-kind", ("'estimators'", "'estimator'?")),
    "option": Mistake(
        "train guess 'rllm.algorithm.adv_estimator={name: grpo, nrom: true}'",
        "unknown-option",
        ("rllm.algorithm.adv_estimator.nrom", "norm_adv_by_std_in_grpo"),
    ),
    "name of the module": Mistake(
        "train guess 'rllm.plugins.import_modules=[no_such_module]'",
        "module-not-found",
        ("'no_such_module'", "current directory"),
    ),
    "module that fails": Mistake(
        "train guess 'rllm.plugins.import_modules=[mine]'",
        "plugin-failed",
        ("KeyError: 'NOT_SET' (mine.py, line 2)", "python -c 'import mine'"),
        {"mine.py": "import os\nvalue = os.environ['NOT_SET']\n"},
    ),
}
PLANNED = {
    f"{kind}: {name}": mistake
    for kind, table in (("reward", REWARDS), ("agent", AGENTS), ("data", DATA), ("config", CONFIG), ("plugin", PLUGINS))
    for name, mistake in table.items()
    if mistake.exit_code == 2
}
STARTED = {
    f"{kind}: {name}": mistake
    for kind, table in (("reward", REWARDS), ("agent", AGENTS), ("environment", ENVIRONMENTS))
    for name, mistake in table.items()
    if f"{kind}: {name}" not in PLANNED
}


def check_mistake(mistake: Mistake, rllm: Rllm, directory: Path) -> None:
    (directory / "train.jsonl").write_text(ROWS)
    for name, content in mistake.files.items():
        (directory / name).write_text(content)
    done = rllm(*shlex.split(mistake.words))
    check_printed(done.stderr, mistake.code, *mistake.says)
    assert "\nhint: " in done.stderr
    assert done.returncode == mistake.exit_code


@pytest.mark.parametrize("name", PLANNED)
def test_mistake_stops_before_the_start(name: str, rllm_here: Rllm, tmp_path: Path) -> None:
    check_mistake(PLANNED[name], rllm_here, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", STARTED)
def test_mistake_of_a_function_is_explained(name: str, forked_rllm: Rllm, tmp_path: Path) -> None:
    check_mistake(STARTED[name], forked_rllm, tmp_path)


POINTER = "version https://git-lfs.github.com/spec/v1\n"
MODELS: dict[str, tuple[Callable[[Path], object], Says]] = {
    "name": (lambda model: model.rename(model.parent / "modle"), ("does not exist", "'modle'?")),
    "no config": (lambda model: (model / "config.json").unlink(), ("no config.json", "`tiny`")),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), ("no tokenizer", "Copy tokenizer.json")),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), ("no weights", "model.safetensors")),
    "truncated": (
        lambda model: (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-9]),
        ("model.safetensors has ", "Download or save model.safetensors again"),
    ),
    "pointer": (lambda model: (model / "model.safetensors").write_text(POINTER), ("Git LFS", "git -C model lfs pull")),
    "damaged tokenizer": (lambda model: (model / "tokenizer.json").write_text("{"), ("tokenizer.json is not", "again")),
    "unknown type": (
        lambda model: (model / "config.json").write_text('{"model_type": "lama"}'),
        ("'./model'", "`lama`", "transformers"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_mistake_in_a_model_is_explained(name: str, thinking_model: Path, rllm_here: Rllm, tmp_path: Path) -> None:
    change, says = MODELS[name]
    shutil.copytree(thinking_model, tmp_path / "model")
    change(tmp_path / "model")
    mistake = Mistake(f"{EXACT} --data train.jsonl --model ./model", "model-not-loadable", says)
    check_mistake(mistake, rllm_here, tmp_path)


def test_sixty_mistakes_are_checked() -> None:
    assert len({**PLANNED, **STARTED}) + len(MODELS) == 60
