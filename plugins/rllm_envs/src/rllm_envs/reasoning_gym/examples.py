"""Solved entries that are shown before the question (few-shot prompting)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from rllm_core.errors import RolloutError
from rllm_envs.reasoning_gym.options import EXAMPLES_FROM, ReasoningGymParams
from rllm_envs.reasoning_gym.processes import ask


def solved(params: ReasoningGymParams, config: dict[str, Any], seconds: float) -> tuple[tuple[str, str], ...]:
    """``params.examples`` pairs of a question and its answer; of a seed that neither split has.

    Raises:
        RolloutError: the generator keeps no answer to its entries.
        TooLongError: one takes longer than `seconds` to generate.
    """
    if not params.examples:
        return ()
    return _solved(params.generator, json.dumps(config), params.seed + EXAMPLES_FROM, params.examples, seconds)


@lru_cache(16)
def _solved(generator: str, config: str, seed: int, count: int, seconds: float) -> tuple[tuple[str, str], ...]:
    source = {"generator": generator, "config": json.loads(config), "seed": seed, "size": count}
    made = []
    for index in range(count):
        asked = {"source": source | {"index": index}, "seconds": seconds}
        question, answer = (ask({"ask": what, **asked}) for what in ("question", "answer"))
        if answer is None:
            raise RolloutError(
                "no-example-answers",
                f"{generator} keeps no answer to its entries, so none can be shown as an example.",
                "Leave rllm.env.env_args.examples out.",
            )
        made.append((question, str(answer)))
    return tuple(made)
