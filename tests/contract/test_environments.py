"""Every environment of this repository keeps the contract of environments."""

from __future__ import annotations

from pathlib import Path

from rllm_plugin_kit import EnvironmentContract

ROWS = ({"question": "2+2?", "answer": "4"}, {"messages": [{"role": "user", "content": "2+3?"}], "answer": "5"})
TRL = Path(__file__).with_name("environment_for_trl.py")
"""A class for TRL's `environment_factory`."""
TASK = Path(__file__).with_name("task_directory")

tests = EnvironmentContract.for_each(
    "rllm",
    "rllm-envs",
    "rllm",
    "rllm-envs",
    gymnasium={
        "options": (
            {"id": "FrozenLake-v1", "options": {"is_slippery": False}, "train_size": 20},
            {"id": "CartPole-v1", "actions": ["left", "right"], "template": "Pole: {observation}."},
        ),
        "actions": ("right", "left"),
        "max_steps": None,  # Responses that are no actions change nothing. rllm.agent.max_steps ends it.
    },
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
    tasks={"options": ({"directory": str(TASK)},), "actions": ("any",), "max_steps": 1},
    trl={"dataset": ROWS, "options": ({"factory": f"{TRL}:Sums"},), "actions": ("4",), "max_steps": 1},
    sum={"options": ({}, {"largest": 2}), "actions": ("0",), "max_steps": 1},
)
# Their workflows roll out their episodes, and have their own tests.
del tests["TestOpenSpiel"]
# `nemo_gym` needs a running server: `make test-envs` tests it.
del tests["TestNemoGym"]
# verifiers is not installed here: `make test-envs` tests it.
del tests["TestVerifiers"]
# openenv and inspect-ai are not installed either: `make test-envs` tests all three.
del tests["TestOpenenv"], tests["TestInspect"]
globals().update(tests)
