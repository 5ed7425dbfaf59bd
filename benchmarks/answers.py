"""The reward `math` next to other graders: wrong rewards on two sets of responses, and CPU.

python benchmarks/answers.py             # all tables
python benchmarks/answers.py corpus      # cases of the package reward-doctor, which others wrote, in two halves
python benchmarks/answers.py table       # our table of 400 right answers, by the style of the response
python benchmarks/answers.py speed       # CPU of 10,000 comparisons, in one process

`corpus` installs the cases into a temporary directory, unless `--corpus DIR` has them. The half "seen" was read while
the rewards were written. The half "held back" was chosen before, by the SHA-256 of each case's id. `rllm` is our reward
`math`, `math-verify` is the library with its defaults, and the other graders are those of TRL and verl, which
`make install` installs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/tools"))
CORPUS = "reward-doctor==0.2.0"
HALVES = ("seen", "held back")
COMPARISONS = 10_000
Grader = Callable[[str, str], bool]
"""Takes a response and the right answer."""


class Case(NamedTuple):
    """A response, its right answer, the expected reward, and the part of the table that counts it."""

    said: str
    answer: str
    expected: bool
    part: str


def choose_half(case_id: str) -> str:
    """Return the half of a case: the parity of the SHA-256 of its id."""
    return HALVES[hashlib.sha256(case_id.encode()).digest()[-1] % 2]


def corpus_cases(directory: str | None) -> list[Case]:
    """Return the corpus's cases, without those that its authors call contested."""
    if directory is None:
        directory = tempfile.mkdtemp()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory, CORPUS]
        subprocess.run(command, check=True)
    sys.path.insert(0, directory)
    from reward_doctor import load

    return [Case(each.completion, each.reference, each.expect, choose_half(each.id)) for each in load()]


def table_cases(*, all_styles: bool = True) -> list[Case]:
    """Return the responses of the table of right answers."""
    from answer_table import read_rows, responses

    return [
        Case(said, row.key, expected, style)
        for number, row in enumerate(read_rows())
        for style, said, expected in responses(row, number, all_styles=all_styles)
    ]


def make_rllm() -> Grader:
    """Return our reward `math`, which compares in this process."""
    from answer_table import is_right

    from rllm.builtin.tasks.math_worker import make_equal

    equal = make_equal()
    return lambda said, answer: is_right(said, answer, equal)


def make_math_verify() -> Grader:
    """Return math-verify's comparison, as its page shows it: the right answer is marked as mathematics."""
    from math_verify import parse, verify

    def grade(said: str, answer: str) -> bool:
        return bool(
            verify(parse(f"${answer}$", parsing_timeout=None), parse(said, parsing_timeout=None), timeout_seconds=None)
        )

    return grade


def make_graders() -> dict[str, Grader]:
    """Return the graders that are installed."""
    graders: dict[str, Grader] = {"rllm": make_rllm(), "math-verify": make_math_verify()}
    trl = _load("trl/rewards/accuracy_rewards.py", "trl.rewards.accuracy_rewards")
    if trl is not None:
        accuracy = trl.accuracy_reward
        graders["TRL accuracy_reward"] = lambda said, answer: bool(accuracy([[{"content": said}]], [answer])[0])
    for name in ("gsm8k", "math_reward", "math_dapo"):
        module = _load(f"verl/utils/reward_score/{name}.py", name)
        if module is not None:
            graders[f"verl {name}"] = _make_verl(module.compute_score)
    return graders


def _make_verl(compute: Callable[[str, str], Any]) -> Grader:
    def grade(said: str, answer: str) -> bool:
        score = compute(said, answer)
        return (score["acc"] if isinstance(score, Mapping) else score) > 0

    return grade


def _load(path: str, name: str) -> ModuleType | None:
    """Return a module of the directory with other libraries, without importing its package."""
    file = Path(sys.prefix) / "conformance" / path
    if not file.exists():
        return None
    package = name.rpartition(".")[0]
    if package:
        # Only this function is missing for TRL's file.
        utilities = ModuleType("trl.import_utils")
        utilities.is_math_verify_available = lambda: True  # type: ignore[attr-defined]
        sys.modules |= {"trl": ModuleType("trl"), package: ModuleType(package), "trl.import_utils": utilities}
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_mistakes(graders: Mapping[str, Grader], cases: Iterable[Case], *, show: str | None = None) -> None:
    """Print the false positives and negatives of each grader, by part. `show` lists our mistakes of one part."""
    cases = list(cases)
    parts = list(dict.fromkeys(case.part for case in cases))
    print(f"{'':20} " + " ".join(f"{part:>21}" for part in parts) + "   (false positives, false negatives)")
    for name, grade in graders.items():
        cells = []
        for part in parts:
            wrong = {True: 0, False: 0}
            count = {True: 0, False: 0}
            for case in (each for each in cases if each.part == part):
                count[case.expected] += 1
                try:
                    given = grade(case.said, case.answer)
                except Exception:  # noqa: BLE001  (a grader that raises gives no reward)
                    given = False
                if given != case.expected:
                    wrong[case.expected] += 1
                    if name == "rllm" and part == show:
                        print(f"    {case.answer!r} {case.said!r} should be {case.expected}")
            cells.append(
                ", ".join(f"{wrong[each]}/{count[each]} {wrong[each] / count[each]:.1%}" for each in (False, True))
            )
        print(f"{name:20} " + " ".join(f"{cell:>21}" for cell in cells))


def print_speed(repeats: int) -> None:
    """Print the CPU of comparisons by our reward and by math-verify, on the same short answers, in alternation."""
    from rllm.builtin.tasks.math_reward import find_math, read_math
    from rllm.builtin.tasks.math_values import needs_process, read_value

    cases = table_cases(all_styles=False)
    cases = (cases * (COMPARISONS // len(cases) + 1))[:COMPARISONS]
    rllm, library = make_rllm(), make_math_verify()

    def is_decided_by_text(case: Case) -> bool:
        values = [read_value(text) for text in find_math(case.said).all_texts]
        return not any(value is not None and needs_process(value, read_math(case.answer)) for value in values)

    groups: dict[bool, list[Case]] = {True: [], False: []}
    for case in cases:
        groups[is_decided_by_text(case)].append(case)
    ratios: dict[str, list[float]] = {"all": [], "decided by text": [], "expressions": []}
    for _ in range(repeats):
        seconds = {(side, decided): 0.0 for side in (rllm, library) for decided in groups}
        for decided, group in groups.items():
            for side in (rllm, library):
                started = time.process_time()
                for case in group:
                    read_value.cache_clear()
                    try:
                        side(case.said, case.answer)
                    except Exception:  # noqa: BLE001
                        continue
                seconds[side, decided] = time.process_time() - started
        ratios["all"].append(
            sum(seconds[rllm, each] for each in groups) / sum(seconds[library, each] for each in groups)
        )
        ratios["decided by text"].append(seconds[rllm, True] / seconds[library, True])
        ratios["expressions"].append(seconds[rllm, False] / seconds[library, False])
        for (side, decided), value in seconds.items():
            name = "rllm" if side is rllm else "math-verify"
            kind = "decided by text" if decided else "expressions"
            print(f"{name}, {kind}: {1e6 * value / len(groups[decided]):,.0f} us of CPU per comparison")
    print(f"{len(cases):,} comparisons, {len(groups[True]):,} decided by text")
    for name, values in ratios.items():
        print(f"CPU of rllm / math-verify, {name}: {', '.join(f'{each:.2f}' for each in values)}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="corpus, table, speed")
    parser.add_argument("--corpus", help="directory that has the corpus")
    parser.add_argument("--show", help="list our mistakes of this part of a table")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable()
    tables = arguments.tables or ["corpus", "table", "speed"]
    if "corpus" in tables:
        print_mistakes(make_graders(), corpus_cases(arguments.corpus), show=arguments.show)
    if "table" in tables:
        print_mistakes(make_graders(), table_cases(), show=arguments.show)
    if "speed" in tables:
        print_speed(arguments.repeats)


if __name__ == "__main__":
    main()
