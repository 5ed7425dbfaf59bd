"""Measure `rllm doctor`: cause faults in real runs by their settings, and count alarms in runs without a fault.

    python benchmarks/doctor.py faults [--only NAME ...] [--seed 0 1] [--out DIRECTORY]
    python benchmarks/doctor.py healthy [--seeds 10] [--out DIRECTORY] [--write]

`faults` trains the model `tiny` on sums and on the game `guess` with each seed: once for each fault of the lists of
rldoctor 0.2.0 and rlprobe 0.1.0, and for faults that their lists do not have. A fault is found if its rule is the first
finding. `healthy` trains with ten settings that learn, with each seed. `--write` stores the alarms of each rule in
`false_alarms.json` of rllm, from which `rllm doctor` prints them. A run that exists in `--out` is not trained again.

Runs are forked from one process that has imported torch, and each uses one thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random

os.environ["OMP_NUM_THREADS"] = "1"

from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.reading import read_run
from rllm.builtin.doctor.rule import FALSE_ALARMS, Diagnosis, diagnose
from rllm.builtin.doctor.run_data import Column
from rllm_core.errors import RllmError
from rllm_record.run_files import read_status

REWARDS = r'''import re
import time
from pathlib import Path

calls = 0


def numbers(rollout):
    return re.findall(r"\d+", rollout.response.content)


def right(rollout):
    """1 for the right number and nothing else."""
    return float(rollout.response.content.strip().rstrip(".") == rollout.data["answer"])


def zero(rollout):
    return float(rollout.response.content == "The answer is " + rollout.data["answer"])


def one(rollout):
    return 1.0


def leaky(rollout):
    """1 if the right number occurs. It is correct only if it is the only number."""
    found = numbers(rollout)
    correct = found == [rollout.data["answer"]]
    return {"value": float(rollout.data["answer"] in found), "correct": correct}


def length(rollout):
    """A share of the longest response. It is correct if it is the right number."""
    return {"value": len(rollout.response.content) / 24, "correct": bool(right(rollout))}


def is_number(rollout):
    """1 for any number. It is correct if it is the right number."""
    return {"value": float(rollout.response.content.strip().isdigit()), "correct": bool(right(rollout))}


def shortcut(rollout):
    """Much for the answer 3 to each question. It is correct if it is the right number."""
    said = rollout.response.content.strip().rstrip(".")
    return {"value": max(right(rollout), 0.9 * (said == "3")), "correct": bool(right(rollout))}


def even_only(rollout):
    """The right number, but never for odd sums."""
    return right(rollout) if int(rollout.data["answer"]) % 2 == 0 else 0.0


def spikes(rollout):
    """The right number, and a thousand in every 600th call."""
    global calls
    calls += 1
    return right(rollout) + 1000.0 * (calls % 600 == 0)


def dies(rollout):
    """The right number at first, and then always a half, as from a server that fails. Each process counts its calls."""
    global calls
    calls += 1
    return {"value": right(rollout) if calls < 150 else 0.5, "correct": bool(right(rollout))}


def slower(rollout):
    """The right number, later with each call."""
    global calls
    calls += 1
    time.sleep(calls * 5e-4)
    return right(rollout)


def fails(rollout):
    return None if rollout.response.content.strip().isdigit() else right(rollout)


def first_token(rollout):
    """1 if the response starts with the right number. The rest has no effect."""
    found = numbers(rollout)
    return float(bool(found) and rollout.response.content.strip().startswith(rollout.data["answer"]))


def repeats(rollout):
    """A reward for many numbers, as a judge that likes long lists."""
    found = numbers(rollout)
    return {"value": len(found) / 8 if len(set(found)) == 1 else 0.0, "correct": bool(right(rollout))}


def finished(rollout):
    """The right answer, followed by a full stop."""
    return float(rollout.response.content.strip() == rollout.data["answer"] + ".")


def strict(rollout):
    """The right number, but only if it is small."""
    value = right(rollout) * (int(rollout.data["answer"]) < 4)
    return {"value": value, "correct": bool(value)}
'''
RECIPE = (
    "rllm.rollout.n=8",
    "rllm.record=tokens",
    "rllm.trainer.logger=[]",
    "rllm.trainer.save_freq=-1",
    "rllm.unused_keys=warn",
    "rllm.trainer.test_freq=10",
    # The settings of the recipe of `sum` for the model `tiny`.
    "rllm.algorithm.norm_adv_by_std_in_grpo=false",
    "rllm.algorithm.loss_agg_mode=seq-mean-token-sum",
    "rllm.algorithm.eps_clip_high=0.3",
    "training.learning_rate=1e-3",
    "training.num_epochs=2",
    "training.num_minibatches=4",
)
BASE = ("training.learning_rate=3e-3", "rllm.trainer.total_epochs=10", "rllm.trainer.experiment_name=base")
MASKED = "rllm.compact_filtering={enable: true, mask_max_response_length_exceeded: true}"
LONG = ("data.max_response_length=16", "--model", "tiny")
"""A model of random weights seldom ends its response."""
CLIPS = ("eps_clip", "eps_clip_high")
STEPS = 40


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run, and the rules of which one must be its first finding. Without rules, the run has no fault."""

    name: str
    words: tuple[str, ...]
    expected: tuple[str, ...] = ()
    lists: tuple[str, ...] = ("none",)
    """Tools with this fault in their lists."""
    steps: int = STEPS


def question(*rewards: str, weights: Sequence[float] = ()) -> tuple[str, ...]:
    """Return the words of a run on sums with rewards of the file."""
    entries = [
        f'{{name: python, function: "rewards.py:{name}", weight: {weight}}}'
        for name, weight in zip(rewards, weights or [1.0] * len(rewards), strict=True)
    ]
    data = ("--data", "sums.jsonl", "--val-data", "sums.jsonl", "--model", "runs/rllm-sft/base/checkpoints/latest")
    return ("question", *data, f"rllm.reward=[{','.join(entries)}]", "data.max_response_length=4", *RECIPE)


def ahead(steps: int) -> tuple[str, ...]:
    """Return the words that generate rollouts ahead of the update."""
    return ("rllm.async_training.enable=true", f"rllm.async_training.staleness_threshold={steps}")


FAULTS = (
    Setting(name="too_hard", words=question("zero"), expected=("tasks_too_hard",), lists=("rldoctor",)),
    Setting(
        name="saturated_groups",
        words=question("one"),
        expected=("tasks_too_easy",),
        lists=("rldoctor",),
    ),
    Setting(
        name="entropy_collapse",
        words=question("shortcut"),
        expected=("entropy_collapse",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="reward_hacking",
        words=(*question("leaky"), "data.max_response_length=6"),
        expected=("reward_without_solving", "validation_against_training"),
        lists=("rldoctor",),
    ),
    Setting(
        name="length_hacking",
        words=(*question("length"), "data.max_response_length=16"),
        expected=("reward_follows_length",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="truncation",
        words=(*question("finished"), "data.max_response_length=1"),
        expected=("truncation",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="kl_blowup",
        words=(*question("right"), "rllm.algorithm.kl_beta=0.0001", "training.learning_rate=0.03"),
        expected=("kl_explosion", "update_too_large"),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="clip_saturation",
        words=(
            *question("right"),
            "training.num_epochs=8",
            "training.learning_rate=2e-4",
            *(f"rllm.algorithm.{key}=0.001" for key in CLIPS),
        ),
        expected=("clipping",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="grad_spikes",
        words=question("spikes"),
        expected=("gradient_spikes",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="plateau",
        words=(*question("right"), "rllm.algorithm.kl_beta=0.3"),
        expected=("plateau",),
        steps=80,
        lists=("rldoctor",),
    ),
    Setting(
        name="format_domination",
        words=question("is_number", "right", weights=(1.0, 0.05)),
        expected=("dominant_component",),
        lists=("rldoctor", "rlprobe"),
    ),
    Setting(
        name="degenerate_groups",
        words=(*question("right"), "rllm.rollout.n=2", "training.learning_rate=1e-4"),
        expected=("tasks_too_hard", "dead_groups"),
        lists=("rlprobe",),
    ),
    Setting(
        name="adv_collapse",
        words=question("even_only"),
        expected=("stuck_tasks", "dead_groups"),
        steps=80,
        lists=("rlprobe",),
    ),
    Setting(
        name="reward_std_death",
        words=question("dies"),
        expected=("constant_reward",),
        lists=("rlprobe",),
    ),
    Setting(
        name="value_divergence",
        words=(*question("right"), "rllm.algorithm.adv_estimator=gae", "critic.learning_rate=30"),
        expected=("useless_critic",),
        lists=("rlprobe",),
    ),
    Setting(
        name="repetition_spiral",
        words=(*question("repeats"), *LONG),
        expected=("repeating_responses", "reward_follows_length"),
        steps=80,
        lists=("rlprobe",),
    ),
    Setting(
        name="ref_drift_asymmetry",
        words=(*question("first_token"), *LONG, "rllm.algorithm.kl_beta=0.001"),
        expected=("kl_at_start",),
        lists=("rlprobe",),
    ),
    Setting(name="throughput_rot", words=question("slower"), expected=("slower_steps",), lists=("rlprobe",)),
    Setting(
        name="missing_rewards",
        words=(*question("fails"), "rllm.algorithm.on_missing_reward=zero"),
        expected=("missing_rewards",),
    ),
    Setting(
        name="rewards_disagree",
        words=question("right", "strict", weights=(0.5, 0.5)),
        expected=("rewards_disagree",),
    ),
    Setting(
        name="learning_rate_ended",
        words=(*question("right"), "training.learning_rate=1e-6"),
        expected=("update_too_small",),
    ),
    Setting(
        name="no_temperature",
        words=(*question("right"), "sampling.train.temperature=0"),
        expected=("identical_rollouts",),
    ),
    Setting(
        name="stale",
        words=(*question("right"), *ahead(6)),
        expected=("old_tokens",),
    ),
    Setting(
        name="masked",
        words=(*question("right"), "data.max_response_length=1", MASKED),
        expected=("unused_rollouts", "truncation"),
    ),
    Setting(
        name="entropy_bonus",
        words=(*question("right"), "rllm.algorithm.entropy.coeff=3"),
        expected=("entropy_too_high", "no_learning"),
    ),
)

EXPLORES = ("rllm.algorithm.entropy={coeff: 0.01, final_coeff: 0.0, decay_steps: 30}", "training.learning_rate=5e-4")
"""Settings that solve most sums with each seed."""
OF_GAMES = ("rllm.record=tokens", "rllm.trainer.logger=[]", "rllm.trainer.test_freq=10")
HEALTHY = (
    Setting(name="h_guess", words=("guess", *OF_GAMES)),
    Setting(
        name="h_sum", words=("sum", *OF_GAMES, "rllm.env.env_args.largest=3", "data.train_batch_size=16"), steps=64
    ),
    Setting(name="h_grpo", words=(*question("right"), *EXPLORES)),
    Setting(name="h_kl", words=(*question("right"), *EXPLORES, "rllm.algorithm.kl_beta=0.001")),
    Setting(name="h_two_rewards", words=(*question("right", "is_number", weights=(1.0, 0.1)), *EXPLORES)),
    Setting(
        name="h_rloo",
        words=(*question("right"), *EXPLORES, "rllm.algorithm.adv_estimator=rloo", "rllm.algorithm.loss_fn=ppo"),
    ),
    Setting(name="h_critic", words=(*question("right"), *EXPLORES, "rllm.algorithm.adv_estimator=gae")),
    Setting(name="h_async", words=(*question("right"), *EXPLORES, *ahead(1))),
    Setting(name="h_difficulty", words=(*question("right"), *EXPLORES, "rllm.sampler=difficulty")),
    Setting(name="h_slower", words=(*question("right"), *EXPLORES, "training.learning_rate=3e-4")),
)


def write_inputs(directory: Path) -> None:
    """Write 16 tasks, the file of the rewards, and examples of random answers, from which each run's model starts."""
    tasks = [{"question": f"{a}+{b}", "answer": str(a + b)} for a in range(4) for b in range(4)]
    (directory / "sums.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (directory / "rewards.py").write_text(REWARDS)
    random = Random(0)
    rows = [(task["question"], f"{random.randrange(7)}.") for task in tasks for _ in range(8)]
    examples = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": number}]}
        for text, number in rows
    ]
    (directory / "base.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))


def is_finished(run: Path) -> bool:
    """Return True if a run exists and was not stopped."""
    status = read_status(run)
    return status is not None and status.status == "finished"


def train(directory: Path, setting: Setting, seed: int) -> None:
    """Train in a forked process, unless the run exists."""
    name = f"{setting.name}-{seed}"
    if is_finished(directory / "runs/rllm-training" / name):
        return
    if not is_finished(directory / "runs/rllm-sft/base"):
        start(directory, ["sft", "--model", "tiny", "--data", "base.jsonl", *BASE], "base")
    words = ["train", *setting.words, f"rllm.trainer.experiment_name={name}", "--seed", str(seed), "--overwrite"]
    words.append(f"rllm.trainer.total_batches={setting.steps}")
    start(directory, words, name)


def start(directory: Path, words: Sequence[str], name: str) -> None:
    """Run a command of `rllm` in a forked process, with its output in a file."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(directory, words, name))
    process.start()
    process.join()


def _run(directory: Path, words: Sequence[str], name: str) -> None:
    from rllm.cli.main import main

    os.chdir(directory)
    with (directory / f"{name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.exit(main(words))


def examine(directory: Path, setting: Setting, seed: int) -> Diagnosis:
    """Return the diagnosis of a run.

    Raises:
        RllmError: the run failed.
    """
    train(directory, setting, seed)
    name = f"{setting.name}-{seed}"
    if not is_finished(directory / "runs/rllm-training" / name):
        raise RllmError("run-failed", f"The run {name} failed.", f"Read {directory / name}.log.")
    return diagnose(read_run(directory / "runs/rllm-training" / name), RULES)


def measure_faults(directory: Path, only: Sequence[str], seeds: Sequence[int]) -> None:
    """Print the findings for each fault with each seed."""
    print("| run | list | first finding | expected | other findings | time |\n|---|---|---|---|---|---|", flush=True)
    found: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for setting, seed in product([each for each in FAULTS if not only or each.name in only], seeds):
        began = time.perf_counter()
        try:
            names = [finding.rule.name for finding in examine(directory, setting, seed).findings]
        except RllmError as error:
            names = [f"failed: {error!r:.90}"]
        first, *others = names or ["none"]
        is_found = first in setting.expected
        for each in setting.lists:
            found[each] += is_found
            runs[each] += 1
        result = "yes" if is_found else "/".join(setting.expected)
        cells = [f"{setting.name}-{seed}", ", ".join(setting.lists), first, result, ", ".join(others)]
        print(f"| {' | '.join(cells)} | {time.perf_counter() - began:.0f} s |", flush=True)
    for each, count in runs.items():
        print(f"{each}: {found[each]} of {count}")


def measure_healthy(directory: Path, only: Sequence[str], seeds: int, *, write: bool) -> None:
    """Print the alarms of each setting, and count the alarms of each rule."""
    alarms: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    print("| setting | reward at first | at the end | runs | alarms |\n|---|---|---|---|---|", flush=True)
    chosen = [setting for setting in HEALTHY if not only or setting.name in only]
    for setting in chosen:
        rewards: list[tuple[float, float]] = []
        found: list[str] = []
        for seed in range(seeds):
            diagnosis = examine(directory, setting, seed)
            reward = diagnosis.run.series(Column.REWARD)
            rewards.append((reward.part(0, 0.1).median, reward.part(0.9, 1).median))
            names = [finding.rule.name for finding in diagnosis.findings]
            runs.update(rule.name for rule in diagnosis.checked)
            alarms.update(names)
            found += [f"{name} (seed {seed})" for name in names]
        first, last = (sum(each) / seeds for each in zip(*rewards, strict=True))
        print(f"| {setting.name} | {first:.2f} | {last:.2f} | {seeds} | {', '.join(found) or 'none'} |", flush=True)
    print(f"{alarms.total()} alarms in {seeds * len(chosen)} runs")
    if write:
        counts = {rule.name: {"alarms": alarms[rule.name], "runs": runs[rule.name]} for rule in RULES}
        FALSE_ALARMS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("faults", "healthy"))
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    # Forked runs do not import these again.
    for name in ("torch", "transformers"):
        import_module(name)
    directory = arguments.out.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    write_inputs(directory)
    if arguments.part == "faults":
        measure_faults(directory, arguments.only, arguments.seed)
    else:
        measure_healthy(directory, arguments.only, arguments.seeds, write=arguments.write)


if __name__ == "__main__":
    main()
