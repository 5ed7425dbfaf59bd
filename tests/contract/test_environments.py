"""Every environment of ours is held to the contract of environments."""

from __future__ import annotations

from rllm_plugin_kit import EnvironmentContract

ROWS = ({"question": "2+2?", "answer": "4"}, {"messages": [{"role": "user", "content": "2+3?"}], "answer": "5"})

globals().update(
    EnvironmentContract.for_each(
        "rllm",
        "rllm-envs",
        "rllm",
        "rllm-envs",
        guess={"options": ({}, {"prompt": "guess"}), "actions": ("8", "4", "2", "1", "0"), "max_steps": 5},
        question={"dataset": ROWS, "options": ({}, {"system_prompt": "Think."}), "actions": ("4",), "max_steps": 1},
        reasoning_gym={
            "options": (
                {"generator": "chain_sum", "config": {"max_terms": 3}, "train_size": 20},
                {"generator": "pool_matrix", "level": 1, "answer": "tags", "system_prompt": "simple"},
                {"generator": "prime_factorization"},
            ),
            "actions": ("<answer>7</answer>",),
            "max_steps": 1,
        },
        textarena={
            "options": (
                {"game": "GuessTheNumber-v0", "train_size": 20},
                {"game": "Mastermind-v0", "options": {"max_turns": 5}, "system_prompt": "Play."},
            ),
            "actions": ("[5]", "[1 2 3 4]"),
        },
        mixed={
            "options": ({"environments": {"guess": 1.0, "sum": {"ratio": 2.0, "largest": 2}}},),
            "actions": ("8", "4", "2", "1", "0"),
            "max_steps": 5,
        },
        sum={"options": ({}, {"largest": 2}), "actions": ("0",), "max_steps": 1},
    )
)
