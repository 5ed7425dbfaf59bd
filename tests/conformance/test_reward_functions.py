"""Reward functions that TRL and verl ship: through the reward `python` they give what they give their own trainer."""

from __future__ import annotations

import ast
import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peers
import pytest

from rllm.builtin.tasks.function_file import run_file
from rllm.builtin.tasks.plugin import rllm_rewards
from rllm.builtin.tasks.python_reward import PythonParams
from rllm.planning.scoring import Scorer, WeightedReward
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response

PYTHON = next(record for record in rllm_rewards() if record.name == "python")
TRL = peers.directory_of("trl") / "rewards"
VERL = peers.directory_of("verl") / "utils/reward_score"

COMPLETIONS = (
    r"My answer is \boxed{\frac{1}{3}}",
    r"<think>\boxed{2}</think> It is $\frac{1}{3}$.",
    r"<think>a</think><think>b</think>\boxed{1/3}",
    r"<think>never ends \boxed{\frac{1}{3}}",
    "The answer is 1/3.",
    "So 1 of 3.\n#### 1/3",
    "#### 42",
    "#### 42.",
    "Answer: 42",
    r"\boxed{42}",
    "<answer>42</answer>",
    "<think>x</think>\n<answer>The 42!</answer>",
    "",
    "ünïcödé 🎲 " * 50,
    "42 " * 400,
)
SOLUTIONS = (r"\frac{1}{3}", "42", "", "no number")

TRL_FUNCTIONS = {
    "accuracy_rewards.py": (
        "accuracy_reward",
        "reasoning_accuracy_reward",
        "get_cosine_scaled_reward(max_len=100)",
    ),
    "format_rewards.py": ("think_format_reward",),
    "other_rewards.py": (
        "get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0)",
        "get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=60)",
    ),
}
VERL_SCORERS = ("gsm8k", "math_reward", "math_dapo", "search_r1_like_qa_em")


def score(function: str, completions: Sequence[str], data: Mapping[str, Any], processes: int) -> list[Score]:
    """Return the scores of a run in which these are the completions of one task."""
    params = PythonParams(function=function, processes=processes)
    choice = PluginChoice(registered=Registered(plugin=PYTHON, distribution="rllm", version="0"), params=params)

    async def run() -> list[Score]:
        scorer = Scorer([WeightedReward(chosen=choice, weight=1.0)])
        rollouts = [
            Rollout(
                data=data,
                messages=[*data["prompt"], {"role": "assistant", "content": text}],
                response=Response(text=text, content=text),
                response_tokens=len(text),
                response_ids=tuple(map(ord, text)),
            )
            for text in completions
        ]
        return await scorer.score_all(rollouts)

    return asyncio.run(run())


def trl_file(directory: Path, file: str, function: str) -> Path:
    """Write a file with TRL's source, in which `score` is the function. Its only import of TRL is a check."""
    check = "from ..import_utils import is_math_verify_available"
    text = (TRL / file).read_text().replace(check, "is_math_verify_available = lambda: True")
    path = directory / "rewards.py"
    path.write_text(f"{text}\nscore = {function}\n")
    return path


def call_as_trainer(function: Callable[..., Any], data: Mapping[str, Any]) -> list[float]:
    """Return TRL's rewards, as `GRPOTrainer._calculate_rewards` computes them. NaN is a reward that does not apply."""
    count = len(COMPLETIONS)
    found = function(
        prompts=[data["prompt"]] * count,
        completions=[[{"role": "assistant", "content": text}] for text in COMPLETIONS],
        completion_ids=[[*map(ord, text)] for text in COMPLETIONS],
        trainer_state=SimpleNamespace(global_step=0),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: None,
        **{name: [value] * count for name, value in data.items() if name != "prompt"},
    )
    assert len(found) == count
    return [math.nan if value is None else float(value) for value in found]


def test_all_functions_of_trl_are_compared() -> None:
    (shipped,) = re.findall(r"_import_structure = (\{.*?\n\})", (TRL / "__init__.py").read_text(), re.DOTALL)
    compared = {file: {each.partition("(")[0] for each in names} for file, names in TRL_FUNCTIONS.items()}
    assert {f"{file}.py": {*names} for file, names in ast.literal_eval(shipped).items()} == compared


@pytest.mark.parametrize("solution", SOLUTIONS)
@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in TRL_FUNCTIONS.items() for name in names])
def test_functions_of_trl_give_trls_rewards(file: str, name: str, solution: str, tmp_path: Path) -> None:
    data = {"prompt": [{"role": "user", "content": "?"}], "solution": solution}
    path = trl_file(tmp_path, file, name)
    theirs = call_as_trainer(run_file(path).score, data)
    scores = score(f"{path}:score", COMPLETIONS, data, processes=1)
    ours = [math.nan if each.value is None else each.value for each in scores]
    np.testing.assert_array_equal(ours, theirs)
    skipped = [each.metrics["reward.python.not_applicable"] for each in scores]
    assert skipped == np.isnan(theirs).astype(float).tolist()


@pytest.mark.parametrize("truth", ["42", "1/3"])
@pytest.mark.parametrize("name", VERL_SCORERS)
def test_scorers_of_verl_give_verls_scores(name: str, truth: str) -> None:
    ground_truth: Any = {"target": [truth]} if name.startswith("search") else truth
    data = {
        "prompt": [{"role": "user", "content": "?"}],
        "data_source": name,
        "reward_model": {"ground_truth": ground_truth},
        "extra_info": {"index": 1},
    }
    file = VERL / f"{name}.py"
    compute = run_file(file).compute_score
    for text, ours in zip(COMPLETIONS, score(f"{file}:compute_score", COMPLETIONS, data, processes=0), strict=True):
        theirs = compute(solution_str=text, ground_truth=ground_truth)
        fields = theirs if isinstance(theirs, dict) else {"score": theirs}
        assert ours.value == fields["score"], (text, ours)
        assert ours.correct == fields.get("acc")
