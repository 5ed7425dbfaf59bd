"""Measure `rllm doctor`: cause faults in real runs by their settings, and count alarms in runs without a fault.

    python benchmarks/doctor.py faults --seed 1 2 --out DIRECTORY [--only NAME ...]
    python benchmarks/doctor.py healthy --seed 1 2 --out DIRECTORY [--only NAME ...] [--write]

`faults` trains the model `tiny` on sums and on the game `guess`, once for each seed and fault. The faults are the lists
of rldoctor 0.2.0 and rlprobe 0.1.0, and faults that neither list has. A fault is found if its rule is the first
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


def scored(rollout, value):
    """A reward for a response that is correct only if it is the right number."""
    return {"value": float(value), "correct": bool(right(rollout))}


def leaky(rollout):
    """1 if the right number occurs. It is correct only if it is the only number."""
    found, answer = numbers(rollout), rollout.data["answer"]
    return {"value": float(answer in found), "correct": found == [answer]}


def length(rollout):
    """A share of the longest response."""
    return scored(rollout, len(rollout.response.content) / 24)


def is_number(rollout):
    return scored(rollout, rollout.response.content.strip().isdigit())


def shortcut(rollout):
    """Much for the answer 3 to each question."""
    is_three = rollout.response.content.strip().rstrip(".") == "3"
    return scored(rollout, max(right(rollout), 0.9 * is_three))


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
    return scored(rollout, right(rollout) if calls < 150 else 0.5)


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
    return float(bool(numbers(rollout)) and rollout.response.content.strip().startswith(rollout.data["answer"]))


def repeats(rollout):
    """A reward for many numbers, as a judge that likes long lists."""
    found = numbers(rollout)
    return scored(rollout, len(found) / 8 if len(set(found)) == 1 else 0.0)


def finished(rollout):
    """The right answer, followed by a full stop."""
    return float(rollout.response.content.strip() == rollout.data["answer"] + ".")


def strict(rollout):
    """The right number, but only if it is small."""
    value = right(rollout) * (int(rollout.data["answer"]) < 4)
    return {"value": value, "correct": bool(value)}
'''
OF_GAMES = ("rllm.record=tokens", "rllm.trainer.logger=[]", "rllm.trainer.test_freq=10")
# The settings of the recipe of `sum` for the model `tiny`.
RECIPE = (
    *OF_GAMES, "rllm.rollout.n=8", "rllm.trainer.save_freq=-1", "rllm.unused_keys=warn",
    "rllm.algorithm.norm_adv_by_std_in_grpo=false", "rllm.algorithm.loss_agg_mode=seq-mean-token-sum",
    "rllm.algorithm.eps_clip_high=0.3", "training.learning_rate=1e-3", "training.num_epochs=2",
    "training.num_minibatches=4",
)  # fmt: skip
BASE = ("training.learning_rate=3e-3", "rllm.trainer.total_epochs=10", "rllm.trainer.experiment_name=base")
MASKED = "rllm.compact_filtering={enable: true, mask_max_response_length_exceeded: true}"
# A model of random weights seldom ends its response.
LONG = "data.max_response_length=16 --model tiny"


@dataclass(frozen=True)
class Setting:
    """A run, and the rules of which one must be its first finding. Without rules, the run has no fault."""

    name: str
    words: tuple[str, ...]
    expected: tuple[str, ...] = ()
    lists: tuple[str, ...] = ("none",)
    """Tools with this fault in their lists."""
    steps: int = 40


def question(rewards: str, words: str = "", *others: str) -> tuple[str, ...]:
    """Return the overrides of a run on sums.

    Args:
        rewards: names of rewards of the file, each with a weight, such as ``right:0.5``, or without one.
        words: overrides without a space.
        others: overrides with a space.
    """
    pairs = [name.split(":") if ":" in name else (name, "1.0") for name in rewards.split()]
    entries = [f'{{name: python, function: "rewards.py:{name}", weight: {weight}}}' for name, weight in pairs]
    data = ("--data", "sums.jsonl", "--val-data", "sums.jsonl", "--model", "runs/rllm-sft/base/checkpoints/latest")
    reward = f"rllm.reward=[{','.join(entries)}]"
    return ("question", *data, reward, "data.max_response_length=4", *RECIPE, *words.split(), *others)


def ahead(steps: int) -> str:
    """Return the overrides that generate rollouts ahead of the update."""
    return f"rllm.async_training.enable=true rllm.async_training.staleness_threshold={steps}"


def fault(name: str, words: tuple[str, ...], expected: str, lists: str = "none", steps: int = 40) -> Setting:
    return Setting(name, words, tuple(expected.split()), tuple(lists.split()), steps)


BOTH = "rldoctor rlprobe"
CLIPS = (
    "training.num_epochs=8 training.learning_rate=2e-4 rllm.algorithm.eps_clip=0.001 rllm.algorithm.eps_clip_high=0.001"
)
FAULTS = (
    fault("too_hard", question("zero"), "tasks_too_hard", "rldoctor"),
    fault("saturated_groups", question("one"), "tasks_too_easy", "rldoctor"),
    fault("entropy_collapse", question("shortcut"), "entropy_collapse", BOTH),
    fault(
        "reward_hacking", question("leaky", "data.max_response_length=6"),
        "reward_without_solving validation_against_training", "rldoctor",
    ),
    fault("length_hacking", question("length", "data.max_response_length=16"), "reward_follows_length", BOTH),
    fault("truncation", question("finished", "data.max_response_length=1"), "truncation", BOTH),
    fault(
        "kl_blowup", question("right", "rllm.algorithm.kl_beta=0.0001 training.learning_rate=0.03"),
        "kl_explosion update_too_large", BOTH,
    ),
    fault("clip_saturation", question("right", CLIPS), "clipping", BOTH),
    fault("grad_spikes", question("spikes"), "gradient_spikes", BOTH),
    fault("plateau", question("right", "rllm.algorithm.kl_beta=0.3"), "plateau", "rldoctor", 80),
    fault("format_domination", question("is_number right:0.05"), "dominant_component", BOTH),
    fault(
        "degenerate_groups", question("right", "rllm.rollout.n=2 training.learning_rate=1e-4"),
        "tasks_too_hard dead_groups", "rlprobe",
    ),
    fault("adv_collapse", question("even_only"), "stuck_tasks dead_groups", "rlprobe", 80),
    fault("reward_std_death", question("dies"), "constant_reward", "rlprobe"),
    fault(
        "value_divergence", question("right", "rllm.algorithm.adv_estimator=gae critic.learning_rate=30"),
        "useless_critic", "rlprobe",
    ),
    fault("repetition_spiral", question("repeats", LONG), "repeating_responses reward_follows_length", "rlprobe", 80),
    fault(
        "ref_drift_asymmetry", question("first_token", f"{LONG} rllm.algorithm.kl_beta=0.001"), "kl_at_start", "rlprobe"
    ),
    fault("throughput_rot", question("slower"), "slower_steps", "rlprobe"),
    fault("missing_rewards", question("fails", "rllm.algorithm.on_missing_reward=zero"), "missing_rewards"),
    fault("rewards_disagree", question("right:0.5 strict:0.5"), "rewards_disagree"),
    fault("learning_rate_ended", question("right", "training.learning_rate=1e-6"), "update_too_small"),
    fault("no_temperature", question("right", "sampling.train.temperature=0"), "identical_rollouts"),
    fault("stale", question("right", ahead(6)), "old_tokens"),
    fault("masked", question("right", "data.max_response_length=1", MASKED), "unused_rollouts truncation"),
    fault("entropy_bonus", question("right", "rllm.algorithm.entropy.coeff=3"), "entropy_too_high no_learning"),
)  # fmt: skip
# Settings that solve most sums with each seed.
EXPLORES = ("training.learning_rate=5e-4", "rllm.algorithm.entropy={coeff: 0.01, final_coeff: 0.0, decay_steps: 30}")


def learns(name: str, words: str = "", rewards: str = "right") -> Setting:
    return Setting(name, question(rewards, "", *EXPLORES, *words.split()))


LARGEST = ("rllm.env.env_args.largest=3", "data.train_batch_size=16")
HEALTHY = (
    Setting("h_guess", ("guess", *OF_GAMES)),
    Setting("h_sum", ("sum", *OF_GAMES, *LARGEST), steps=64),
    learns("h_grpo"),
    learns("h_kl", "rllm.algorithm.kl_beta=0.001"),
    learns("h_two_rewards", rewards="right is_number:0.1"),
    learns("h_rloo", "rllm.algorithm.adv_estimator=rloo rllm.algorithm.loss_fn=ppo"),
    learns("h_critic", "rllm.algorithm.adv_estimator=gae"),
    learns("h_async", ahead(1)),
    learns("h_difficulty", "rllm.sampler=difficulty"),
    learns("h_slower", "training.learning_rate=3e-4"),
)


def write_inputs(directory: Path) -> None:
    """Write 16 tasks, the file of the rewards, and examples of random answers, from which each run's model starts."""
    tasks = [{"question": f"{a}+{b}", "answer": str(a + b)} for a in range(4) for b in range(4)]
    random = Random(0)
    rows = [(task["question"], f"{random.randrange(7)}.") for task in tasks for _ in range(8)]
    examples = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": number}]}
        for text, number in rows
    ]
    for name, lines in (("sums.jsonl", tasks), ("base.jsonl", examples)):
        (directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "rewards.py").write_text(REWARDS)


def train(directory: Path, words: Sequence[str], name: str) -> Path:
    """Return the directory of a run. Train in a forked process, unless the run exists.

    Raises:
        RllmError: the run failed.
    """
    run = directory / "runs" / ("rllm-sft" if words[0] == "sft" else "rllm-training") / name
    if not is_finished(run):
        process = multiprocessing.get_context("fork").Process(target=_run, args=(directory, words, name))
        process.start()
        process.join()
    if not is_finished(run):
        raise RllmError("run-failed", f"The run {name} failed.", f"Read {directory / name}.log.")
    return run


def is_finished(run: Path) -> bool:
    """Return True if a run exists and was not stopped."""
    status = read_status(run)
    return status is not None and status.status == "finished"


def _run(directory: Path, words: Sequence[str], name: str) -> None:
    from rllm.cli.main import main

    os.chdir(directory)
    with (directory / f"{name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.exit(main(words))


def examine(directory: Path, setting: Setting, seed: int) -> Diagnosis:
    """Return the diagnosis of a run."""
    train(directory, ["sft", "--model", "tiny", "--data", "base.jsonl", *BASE], "base")
    name = f"{setting.name}-{seed}"
    words = ["train", *setting.words, f"rllm.trainer.experiment_name={name}", "--seed", str(seed), "--overwrite"]
    return diagnose(read_run(train(directory, [*words, f"rllm.trainer.total_batches={setting.steps}"], name)), RULES)


def measure_faults(directory: Path, settings: Sequence[Setting], seeds: Sequence[int]) -> None:
    """Print the findings for each fault with each seed."""
    print("| run | list | first finding | expected | other findings |\n|---|---|---|---|---|", flush=True)
    found: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for setting, seed in product(settings, seeds):
        names = [finding.rule.name for finding in examine(directory, setting, seed).findings]
        first, *others = names or ["none"]
        is_found = first in setting.expected
        for each in setting.lists:
            found[each] += is_found
            runs[each] += 1
        result = "yes" if is_found else "/".join(setting.expected)
        cells = [f"{setting.name}-{seed}", ", ".join(setting.lists), first, result, ", ".join(others)]
        print(f"| {' | '.join(cells)} |", flush=True)
    for each, count in runs.items():
        print(f"{each}: {found[each]} of {count}")


def measure_healthy(directory: Path, settings: Sequence[Setting], seeds: Sequence[int], *, write: bool) -> None:
    """Print the alarms of each setting, and count the alarms of each rule."""
    alarms: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    print("| setting | reward at first | at the end | runs | alarms |\n|---|---|---|---|---|", flush=True)
    for setting in settings:
        rewards: list[tuple[float, float]] = []
        found: list[str] = []
        for seed in seeds:
            diagnosis = examine(directory, setting, seed)
            reward = diagnosis.run.series(Column.REWARD)
            rewards.append((reward.part(0, 0.1).median, reward.part(0.9, 1).median))
            names = [finding.rule.name for finding in diagnosis.findings]
            runs.update(rule.name for rule in diagnosis.checked)
            alarms.update(names)
            found += [f"{name} (seed {seed})" for name in names]
        first, last = (sum(each) / len(seeds) for each in zip(*rewards, strict=True))
        shown = ", ".join(found) or "none"
        print(f"| {setting.name} | {first:.2f} | {last:.2f} | {len(seeds)} | {shown} |", flush=True)
    print(f"{alarms.total()} alarms in {len(seeds) * len(settings)} runs")
    if write:
        counts = {rule.name: {"alarms": alarms[rule.name], "runs": runs[rule.name]} for rule in RULES}
        FALSE_ALARMS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("faults", "healthy"))
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--seed", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    # Forked runs do not import these again.
    for name in ("torch", "transformers"):
        import_module(name)
    directory = arguments.out.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    write_inputs(directory)
    every = FAULTS if arguments.part == "faults" else HEALTHY
    settings = [setting for setting in every if not arguments.only or setting.name in arguments.only]
    if arguments.part == "faults":
        measure_faults(directory, settings, arguments.seed)
    else:
        measure_healthy(directory, settings, arguments.seed, write=arguments.write)


if __name__ == "__main__":
    main()
