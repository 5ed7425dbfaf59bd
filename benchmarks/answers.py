"""Rewards of answers on a corpus that others wrote, and their speed next to math-verify.

python benchmarks/answers.py            # both tables
python benchmarks/answers.py cases      # the corpus of reward-doctor, in two halves
python benchmarks/answers.py speed      # CPU of 10,000 comparisons

`cases` installs the corpus into a temporary directory, unless `--corpus DIR` has it. The half "seen" was read while the
rewards were written. The half "held back" was chosen before, by the SHA-256 of each case's id, and was read only by this
script.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rllm.builtin.tasks import plugin
from rllm_core.contracts.reward import Rollout
from rllm_core.data.messages import Response

CORPUS = "reward-doctor==0.2.0"
HALVES = ("seen", "held back")


def choose_half(case_id: str) -> str:
    """Return the half of a case: the parity of the SHA-256 of its id."""
    return HALVES[hashlib.sha256(case_id.encode()).digest()[-1] % 2]


def load_cases(directory: str | None) -> list[Any]:
    """Return the corpus's cases, without those that its authors call contested."""
    if directory is None:
        directory = tempfile.mkdtemp()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory, CORPUS]
        subprocess.run(command, check=True)
    sys.path.insert(0, str(Path(directory)))
    from reward_doctor import load

    return list(load())


def make_reward(name: str, **options: Any) -> Callable[[str, str], float | None]:
    """Return a function of a response and a right answer, which returns the reward."""
    spec = next(each for each in plugin.rllm_rewards() if each.name == name)
    reward: Any = spec.load()(spec.params(**options))

    def score(said: str, answer: str) -> float | None:
        response = Response(text=said, content=said)
        return reward(Rollout(data={"answer": answer}, messages=[], response=response, response_tokens=1)).value

    return score


def print_cases(cases: list[Any], show: bool) -> None:
    """Print the false positives and negatives of each reward, by half."""
    for name in ("math", "exact"):
        score = make_reward(name)
        for half in HALVES:
            of_half = [case for case in cases if choose_half(case.id) == half]
            mistakes = [case for case in of_half if bool(score(case.completion, case.reference)) != case.expect]
            counts = {
                kind: (sum(case.expect is expect for case in mistakes), sum(case.expect is expect for case in of_half))
                for kind, expect in (("false positives", False), ("false negatives", True))
            }
            text = ", ".join(f"{kind} {wrong} of {all_} ({wrong / all_:.0%})" for kind, (wrong, all_) in counts.items())
            print(f"{name:6} {half:10} {text}")
            if show and half == HALVES[0]:
                for case in mistakes:
                    print(f"    {case.reference!r} {case.completion!r} should be {case.expect}: {case.why}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["cases"], choices=["cases"])
    parser.add_argument("--corpus", help="directory that has the corpus")
    parser.add_argument("--show", action="store_true", help="list the mistakes of the half that was seen")
    arguments = parser.parse_args()
    if "cases" in arguments.tables:
        print_cases(load_cases(arguments.corpus), arguments.show)


if __name__ == "__main__":
    main()
