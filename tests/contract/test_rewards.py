"""Every reward of this repository keeps the contract of rewards."""

from __future__ import annotations

from pathlib import Path

from rllm_plugin_kit import RewardContract

SCORE = Path(__file__).parents[2] / "rllm" / "tests" / "builtin" / "tasks" / "rewards.py"
LETTERS = {"question": "6 * 7? A: 41, B: 42", "answer": "B"}

globals().update(
    RewardContract.for_each(
        "rllm",
        exact={"options": ({}, {"ignore_case": False}), "right": ("42", " 42.\n"), "wrong": ("41", "It is 42", "")},
        math={"right": ("It is 42.", "$x = \\frac{84}{2}$", "\\boxed{42.0}"), "wrong": ("42 or 43", "none", "")},
        choice={"data": LETTERS, "right": ("B", "(b), not A"), "wrong": ("A", "B? No, A.", "not B", "42", "")},
        regex={"options": ({"pattern": r"is (\d+)"},), "right": ("7? It is 42",), "wrong": ("42", "is 42, is 43", "")},
        format={"options": ({"pattern": r"<a>.*</a>"},), "right": ("<a>4\n2</a>\n",), "wrong": ("<a>", "so <a></a>")},
        length={
            "options": ({"target": 4}, {"target": 4, "shorter_is_fine": True}),
            "right": ("four",),
            "wrong": ("seven",),
        },
        code={
            "options": ({"sandbox": "local"}, {"sandbox": "local", "partial": True}),
            "data": {"question": "Write double.", "test_list": ["assert double(2) == 4", "assert double(0) == 0"]},
            "right": ("```python\ndef double(x):\n    return 2 * x\n```",),
            "wrong": ("def double(x):\n    return x + 1", "```python\nraise SystemExit\n```", ""),
        },
        # No server answers at this address, so every reward is missing.
        judge={"options": ({"url": "http://127.0.0.1:9", "model": "m", "retries": 0},)},
        python={"options": ({"function": f"{SCORE}:score"},), "right": ("42",), "wrong": ("41",)},
    )
)
