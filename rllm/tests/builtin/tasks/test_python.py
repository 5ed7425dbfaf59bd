"""`python`: one file serves our signature, TRL's and verl's; whatever is wrong with it is said with file and line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_values, expect_error

from rllm.builtin.tasks.plugin import rllm_rewards
from rllm.builtin.tasks.python_reward import PythonParams
from rllm.builtin.tasks.reward_file import check_function, load_function
from rllm.planning.scoring import Scorer, WeightedReward
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.errors import ConfigError

MakeRollout = Callable[..., Rollout]
Scored = Callable[..., Score]
PYTHON = next(record for record in rllm_rewards() if record.name == "python")
WORDS = [{"role": "user", "content": "2+2?"}]


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scored:
    """What a run makes of a rollout, by the function `score` of this source, which is called in this process."""
    monkeypatch.chdir(tmp_path)

    def score(source: str, rollout: Rollout) -> Score:
        Path("rewards.py").write_text(source)
        params = PythonParams(function="rewards.py:score", processes=0)
        registered = Registered(plugin=PYTHON, distribution="rllm", version="0")
        chosen = WeightedReward(chosen=PluginChoice(registered=registered, params=params), weight=1.0)
        return asyncio.run(Scorer([chosen])(rollout))

    return score


NATIVE = """
def score(rollout):
    return float(rollout.response.content == rollout.data["answer"])
"""
AWAITED = """
import asyncio

async def score(rollout):
    await asyncio.sleep(0)
    return {"value": float(rollout.response.content == rollout.data["answer"])}
"""
WITH_A_DEFAULT = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Right:
    answer: str

def score(rollout, most: float = 1.0):
    return most * (Right(rollout.response.content) == Right(rollout.data["answer"]))
"""
TRL = """
def score(completions, answer, **kwargs):
    assert kwargs["prompts"] == ["2+2?"] and kwargs["level"] == [3]
    return [float(said == right) for said, right in zip(completions, answer)]
"""
TRL_AWAITED = TRL.replace("def", "async def")
VERL = """
def score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "gsm8k" and extra_info == {"index": 3}
    return float(solution_str == ground_truth)
"""
VERL_MAPPING = """
def score(solution_str, ground_truth, **others):
    return {"score": float(solution_str == ground_truth), "digits": 1, "note": "fine", "pred": solution_str}
"""


@pytest.mark.parametrize("source", [NATIVE, AWAITED, WITH_A_DEFAULT, TRL, TRL_AWAITED, VERL, VERL_MAPPING])
@pytest.mark.parametrize(("said", "value"), [("4", 1.0), ("5", 0.0)])
def test_each_signature_scores(source: str, said: str, value: float, scored: Scored, rollout: MakeRollout) -> None:
    data = {"data_source": "gsm8k", "extra_info": {"index": 3}, "level": 3}
    score = scored(source, rollout(said, question="2+2?", answer="4", **data))
    assert (score.value, score.feedback) == (value, "")
    digits = {"reward.python.digits": 1.0} if source == VERL_MAPPING else {}
    not_applicable = {"reward.python.not_applicable": 0.0} if source in (TRL, TRL_AWAITED) else {}
    assert score.metrics == {"reward.python": value, **digits, **not_applicable}
    assert score.extracted == (said if source == VERL_MAPPING else None)


@pytest.mark.parametrize(
    ("returned", "correct"),
    [
        ("{'score': 0.1, 'acc': False}", False),
        ("{'score': -1.0, 'acc': True}", True),
        ("{'score': 0.1, 'acc': numpy.bool_(False)}", False),
        ("{'score': 1.0, 'acc': numpy.float32(0.5)}", False),
        ("{'score': 0.1, 'acc': numpy.array(1)}", True),
        ("{'score': 0.1, 'acc': None}", None),
        ("{'score': 0.1}", None),
        ("0.1", None),
    ],
)
def test_acc_decides_if_a_task_is_solved(
    returned: str, correct: bool | None, scored: Scored, rollout: MakeRollout
) -> None:
    """As in verl's validation. Without `acc`, a reward above 0 counts as solved."""
    source = f"import numpy\ndef score(solution_str, ground_truth):\n    return {returned}\n"
    score = scored(source, rollout("5", answer="4"))
    assert (score.correct, score.feedback) == (correct, "")
    assert score.metrics.get("reward.python.acc") == (None if correct is None else eval(returned, {"numpy": np})["acc"])


def test_trl_gets_messages_where_the_prompt_is_messages(scored: Scored, rollout: MakeRollout) -> None:
    source = "def score(prompts, completions):\n    return [completions[0][0]['content'] == prompts[0][0]['role']]\n"
    assert scored(source, rollout("user", prompt=WORDS)).value == 1.0


@pytest.mark.parametrize(
    "data", [{"reward_model": {"ground_truth": "4"}, "answer": "5"}, {"ground_truth": "4"}, {"answer": "4"}]
)
def test_verl_gets_the_first_answer(data: dict[str, Any], scored: Scored, rollout: MakeRollout) -> None:
    assert scored(VERL_MAPPING, rollout("4", **data)).value == 1.0


PLACE = "score (rewards.py, line 2)"
FAILING = """
def score(rollout):
    number = helper(rollout)
    return number

def helper(rollout):
    return 1 / 0
"""


@pytest.mark.parametrize(
    ("source", "values"),
    [
        (FAILING, ["score (rewards.py, line 7)", "ZeroDivisionError: division by zero"]),
        (FAILING.replace("def score", "async def score"), ["rewards.py, line 7", "ZeroDivisionError"]),
        ("def score(rollout):\n    import json\n    json.loads('{')\n", ["rewards.py, line 3", "JSONDecodeError"]),
        ("\ndef score(rollout):\n    pass\n", [PLACE, "None", "{'value': NUMBER}"]),
        ("\ndef score(rollout):\n    return float('nan')\n", [PLACE, "nan", "finite"]),
        ("\ndef score(rollout):\n    return [1.0]\n", [PLACE, "[1.0]", "{'value': NUMBER}"]),
        ("\ndef score(rollout):\n    return '1.0'\n", [PLACE, "'1.0'"]),
        ("\ndef score(rollout):\n    return {'score': 1.0}\n", [PLACE, "{'score': 1.0}", "'value'"]),
        ("\ndef score(rollout):\n    return {'value': 1, 'acc': 1}\n", [PLACE, "'acc'", "components"]),
        ("\ndef score(rollout):\n    return {'value': 1, 'correct': 'yes'}\n", [PLACE, "'yes'", "'correct'"]),
        ("def score(completions):\n    return 1.0\n", ["1.0 for 1 completions", "list"]),
        ("def score(completions):\n    return [1.0, 2.0]\n", ["[1.0, 2.0]", "list"]),
        ("def score(completions):\n    return [None]\n", ["no reward applies", "python"]),
        ("def score(completions, answer):\n    return [1.0]\n", ["score (rewards.py, line 1)", "answer", "level"]),
        ("def score(solution_str):\n    return {'reward': 1}\n", ["{'reward': 1}", "'score'"]),
        ("def score(solution_str):\n    return {'score': 1, 'acc': 'yes'}\n", ["'yes'", "'acc'"]),
        (VERL_MAPPING, ["reward_model.ground_truth"]),
    ],
)
def test_errors_are_missing_rewards(source: str, values: list[str], scored: Scored, rollout: MakeRollout) -> None:
    data = {} if source == VERL_MAPPING else {"ground_truth": 4}
    score = scored(source, rollout("4", level=4, **data))
    assert score.value is None
    check_values(str(score.feedback), *values)
    assert "\n" not in score.feedback


UNUSABLE = [
    (None, "rewards.py cannot be read: No such file or directory"),
    ("def score(rollout):\n    return (\n", r"rewards.py, line 2: syntax error: '\(' was never closed"),
    ("def scores(rollout):\n    return 1\n", "(?s)'score'.*'scores'"),
    ("x = 1\n", "(?s)'score'.*functions: none"),
    (
        "import os\n\ndef score(response, answer):\n    return 1\n",
        r"rewards.py, line 3: score\(response, answer\) is not a reward function",
    ),
    ("def score(rollout, scale):\n    return 1\n", r"score\(rollout, scale\) is not a reward function"),
    ("def score(solution_str, scale):\n    return 1\n", r"score\(solution_str, scale\) is not a reward function"),
]


@pytest.mark.parametrize("look", [check_function, load_function])
@pytest.mark.parametrize(("source", "said"), UNUSABLE)
def test_unusable_functions_are_refused(look: Any, source: Any, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        Path("rewards.py").write_text(source)
    with pytest.raises(ConfigError, match=said):
        look("rewards.py:score")


@pytest.mark.parametrize(
    "source",
    [
        "score = lambda rollout: 1.0\n",
        "if True:\n    def score(rollout):\n        return 1.0\n",
        "from functools import lru_cache\n\n@lru_cache\ndef score(rollout):\n    return 1.0\n",
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\ndef score(rollout):\n    return 1.0\n",
        "import os.path, json\nfrom collections.abc import Mapping\n\ndef score(rollout):\n    return 1.0\n",
        "class Score:\n    def __call__(self, rollout):\n        return 1.0\n\nscore: object = Score()\n",
    ],
)
def test_check_accepts_unusual_functions(source: str, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(source)
    check_function(f"{file}:score")
    assert load_function(f"{file}:score")[1].style == "native"


@pytest.mark.parametrize("line", ["import no_such_module", "from no_such_module.inner import thing"])
def test_missing_imports_are_refused_before_the_run(line: str, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(f"import os\n{line}\n\ndef score(rollout):\n    return 1.0\n")
    with expect_error(ConfigError, "module-not-found", "rewards.py", "'no_such_module'"):
        check_function(f"{file}:score")
    file.write_text("import rllm.builtin.tasks.no_such_module\n\ndef score(rollout):\n    return 1.0\n")
    check_function(f"{file}:score")
    with expect_error(ConfigError, "plugin-failed", "rewards.py", "ModuleNotFoundError"):
        load_function(f"{file}:score")


def test_file_is_read_again_without_leaving_other_files(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    for value in (1.0, 2.0):
        file.write_text(f"def score(rollout):\n    return {value}\n")
        assert load_function(f"{file}:score")[0](None) == value
    assert list(tmp_path.iterdir()) == [file]
