"""Costs of advantages, ours next to the functions of verl and TRL: time, peak memory, and equality of the results.

python benchmarks/advantages.py                       # every estimator at both sizes, about eight minutes
python benchmarks/advantages.py --only gae --size 4096
python benchmarks/advantages.py --json > table.json

The benchmark uses one process and one thread, and calls the compared functions alternately. Times are medians of CPU
time, which a busy machine hardly disturbs. verl's functions return a number for every token. So our time contains the
estimator and the framework's broadcast to tokens. The broadcast is also printed separately. `advantage_cases.py`
specifies the input of each side. Peak memory is the resident memory that a call needs on top of its inputs (Linux
only). The first measurement compares building a TokenBatch with copying its columns. Both use memory fresh from the
system, because a batch is made once per step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

import numpy as np
import peers
import torch
from measuring import keep_freed_memory, peak_megabytes, release_freed_memory, seconds
from torch import Tensor

from rllm_core import builtin
from rllm_core.algorithms.estimation import to_tokens
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_estimators import plugin as catalogue

GROUP = 8
COMPONENTS = ("correct", "format")
GAMMA, LAMBDA = 0.99, 0.95


@dataclass(frozen=True)
class Case:
    """One of our estimators, and the function of another library that gives the same numbers."""

    name: str
    theirs: Callable[[SimpleNamespace, SimpleNamespace], Tensor]
    """The other library's computation, from its functions and a padded batch."""
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """A note on the row. Empty for verl's function of the same name."""
    library: str = "verl"
    per_token: bool = False
    target: float | None = None
    """The target speedup. None if there is no target."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The same trajectories in two forms. Per-token columns share their memory."""

    ours: AdvantageInput
    padded: SimpleNamespace


def batch_of(n: int, tokens: int) -> Batch:
    """Make n trajectories with this number of tokens each."""
    random = np.random.default_rng(0)
    mask = np.arange(tokens) % 32 < 24
    mask[-1] = True
    rewards, greedy = random.normal(size=n), random.normal(size=n)
    components = random.normal(size=(n, len(COMPONENTS)))
    probabilities = random.random((n, tokens), dtype=np.float32) * np.float32(0.9) + np.float32(0.05)
    per_token = {
        "values": random.random((n, tokens), dtype=np.float32),
        "sum_pi_squared": probabilities**2 + np.float32(0.5) * (1 - probabilities) ** 2,
        "old_logprobs": np.log(probabilities, out=probabilities),
    }
    ends = np.arange(n + 1)
    ours = AdvantageInput(
        rewards=rewards,
        group_offsets=np.arange(0, n + 1, GROUP),
        response_lengths=np.full(n, int(mask.sum())),
        step_offsets=ends,
        step_rewards=np.full(n, np.nan),
        token_offsets=ends * tokens,
        loss_mask=np.tile(mask, n),
        groups=[],
        greedy_rewards=greedy,
        component_names=COMPONENTS,
        reward_components=components,
        **{name: column.reshape(-1) for name, column in per_token.items()},
    )
    on_last = torch.zeros(n, tokens)
    on_last[:, -1] = torch.tensor(rewards)
    padded = SimpleNamespace(
        rewards=on_last,
        mask=torch.tensor(mask, dtype=torch.float32).repeat(n, 1),
        index=np.array([f"task {row // GROUP}" for row in range(n)], dtype=object),
        scores=torch.tensor(rewards)[:, None],
        greedy=torch.tensor(greedy, dtype=torch.float32),
        components=dict(zip(COMPONENTS, components.T, strict=True)),
        whole={"prompts": torch.zeros(n, 0), "attention_mask": torch.ones(1, tokens, dtype=torch.long).expand(n, -1)},
        **{name: torch.from_numpy(column) for name, column in per_token.items()},
    )
    return Batch(ours, padded)


def _grouped(function: str, **options: Any) -> Callable[[SimpleNamespace, SimpleNamespace], Tensor]:
    """One of verl's estimators that compare the rewards of a group."""
    return lambda verl, batch: getattr(verl, function)(batch.rewards, batch.mask, batch.index, **options)[0]


def _token_baseline(function: str) -> Callable[[SimpleNamespace, SimpleNamespace], Tensor]:
    return lambda verl, batch: getattr(verl, function)(
        batch.rewards, batch.mask, batch.index, batch.old_logprobs, batch.sum_pi_squared
    )[0]


def _gdpo(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_gdpo_outcome_advantage(
        batch.rewards,
        batch.mask,
        batch.index,
        config={"gdpo_reward_keys": list(COMPONENTS)},
        non_tensor_batch=batch.components,
        batch=batch.whole,
    )[0]
    return result


def _reinforce(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_remax_outcome_advantage(batch.rewards, torch.zeros_like(batch.greedy), batch.mask)[0]
    return result


VERL: dict[str, Any] = {"dialect": "verl"}
TRL_GRPO = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group"}
TRL_RLOO = {"beta": 0.0, "reward_clip_range": None, "normalize_advantages": False}
CASES = [
    Case("grpo", _grouped("compute_grpo_outcome_advantage"), VERL, target=10),
    Case(
        "dr_grpo",
        _grouped("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
        VERL,
        target=10,
    ),
    Case("rloo", _grouped("compute_rloo_outcome_advantage"), VERL, target=10),
    Case(
        "reinforce_plus_plus_baseline",
        _grouped("compute_reinforce_plus_plus_baseline_outcome_advantage"),
        VERL,
        target=10,
    ),
    Case("opo", _grouped("compute_opo_outcome_advantage"), target=10),
    Case("gpg", _grouped("compute_gpg_outcome_advantage"), target=10),
    Case(
        "grpo_passk",
        _grouped("compute_grpo_passk_outcome_advantage", config={"norm_adv_by_std_in_grpo": True}),
        target=10,
    ),
    Case("gdpo", _gdpo, target=10),
    Case(
        "remax",
        lambda verl, batch: verl.compute_remax_outcome_advantage(batch.rewards, batch.greedy, batch.mask)[0],
        label="verl has no loop here",
    ),
    Case("reinforce", _reinforce, label="verl's remax, baseline 0"),
    Case("grpo", _grouped("compute_grpo_vectorized_outcome_advantage"), VERL, label="verl's vectorised"),
    Case("rloo", _grouped("compute_rloo_vectorized_outcome_advantage"), VERL, label="verl's vectorised"),
    Case(
        "gae",
        lambda verl, batch: verl.compute_gae_advantage_return(batch.rewards, batch.values, batch.mask, GAMMA, LAMBDA)[
            0
        ],
        {"gamma": GAMMA, "lam": LAMBDA},
        per_token=True,
        target=3,
    ),
    Case(
        "reinforce_plus_plus",
        lambda verl, batch: verl.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.mask, SimpleNamespace(gamma=GAMMA)
        )[0],
        {"gamma": GAMMA},
        per_token=True,
        target=3,
    ),
    Case("otb", _token_baseline("compute_optimal_token_baseline_advantage"), per_token=True, target=3),
    Case("tir_otb", _token_baseline("compute_multi_turn_optimal_token_baseline_advantage"), per_token=True, target=3),
    Case(
        "grpo",
        lambda trl, batch: trl.grpo_advantages(batch.scores, GROUP, **TRL_GRPO),
        {"dialect": "trl"},
        label="TRL's formula, not spread to tokens",
        library="trl",
    ),
    Case(
        "rloo",
        lambda trl, batch: trl.rloo_advantages(batch.scores, GROUP, **TRL_RLOO),
        {"dialect": "trl"},
        label="TRL's formula, not spread to tokens",
        library="trl",
    ),
]


SIZES = (4096, 131_072)
TOKENS = 256
TURNS = 30
OBSERVED, SAMPLED = 32, 32
COPY_TARGET = 5.0


@dataclass(frozen=True)
class Row:
    """A line of the table, in milliseconds and megabytes."""

    name: str
    label: str
    library: str
    per_token: bool
    trajectories: int
    ours_ms: float
    of_it_to_tokens_ms: float
    theirs_ms: float
    faster: float
    target: float | None
    ours_peak_mb: float | None
    theirs_peak_mb: float | None
    largest_difference: float


def measure(case: Case, record: EstimatorPlugin[Any], batch: Batch, library: SimpleNamespace, repeats: int) -> Row:
    """Run both, compare their results, and time them.

    Raises:
        SystemExit: they do not give the same numbers.
    """
    function, params = record.load(), record.params(**case.options)
    inputs = batch.ours

    def spread(advantages: Advantages) -> Any:
        return to_tokens(inputs, advantages, case.name, record.level)

    def ours() -> Any:
        advantages = function(inputs, params)
        return advantages.values if case.library == "trl" else spread(advantages)

    def theirs() -> Any:
        return case.theirs(library, batch.padded)

    difference = _difference(ours(), theirs(), inputs)
    if difference > 1e-3:
        raise SystemExit(f"{case.name}: ours and {case.library}'s differ by {difference}")
    memory = peak_megabytes(ours), peak_megabytes(theirs)
    advantages = function(inputs, params)
    whole, broadcast, other = seconds([ours, lambda: spread(advantages), theirs], repeats)
    return Row(
        name=case.name,
        label=case.label,
        library=case.library,
        per_token=case.per_token,
        trajectories=len(inputs.rewards),
        ours_ms=1e3 * whole,
        of_it_to_tokens_ms=0.0 if case.library == "trl" else 1e3 * broadcast,
        theirs_ms=1e3 * other,
        faster=other / whole,
        target=case.target,
        ours_peak_mb=memory[0],
        theirs_peak_mb=memory[1],
        largest_difference=difference,
    )


def _difference(ours: Any, theirs: Any, inputs: AdvantageInput) -> float:
    """Return the largest difference, relative to numbers above 1. GAE's values between turns do not matter."""
    other = theirs.reshape(-1).numpy()
    if len(other) == len(inputs.loss_mask):
        ours, other = ours[inputs.loss_mask], other[inputs.loss_mask]
    return float((np.abs(ours - other) / np.maximum(np.abs(other), 1)).max())


@dataclass(frozen=True)
class Building:
    """Costs of building a TokenBatch."""

    trajectories: int
    turns: int
    tokens: int
    build_ms: float
    copy_ms: float
    times_copy: float
    target: float
    build_peak_mb: float | None


def building(n: int, repeats: int) -> Building:
    """Time `build_batch`, and next to it a copy of the columns it makes."""
    groups = [
        TrajectoryGroup(group_id=f"task {task}:agent", trajectories=[_conversation() for _ in range(GROUP)])
        for task in range(n // GROUP)
    ]
    batch = build_batch(groups)
    columns = (batch.tokens, batch.loss_mask, batch.sampling_logprobs)
    peak = peak_megabytes(lambda: build_batch(groups))
    build, copy = seconds(
        [lambda: build_batch(groups), lambda: [column.copy() for column in columns]], repeats, release_freed_memory
    )
    return Building(
        trajectories=n,
        turns=TURNS,
        tokens=len(batch.tokens),
        build_ms=1e3 * build,
        copy_ms=1e3 * copy,
        times_copy=build / copy,
        target=COPY_TARGET,
        build_peak_mb=peak,
    )


def _conversation() -> Trajectory:
    trajectory = Trajectory("agent", reward=1.0)
    said = np.full(SAMPLED, 9, np.int32)
    logprobs = np.full(SAMPLED, -1.0, np.float32)
    for turn in range(TURNS):
        prompt = np.empty((turn + 1) * OBSERVED + turn * SAMPLED, np.int32)
        so_far = trajectory.tokens.ids
        prompt[: len(so_far)] = so_far
        prompt[len(so_far) :] = 7
        trajectory.add_step(prompt, said, logprobs)
    return trajectory


def growth(rows: Sequence[Row]) -> dict[str, float]:
    """Return each estimator's cost per trajectory at the largest size divided by that at the smallest. 1 is linear."""
    ratios = {}
    for row in rows:
        same = [other for other in rows if (other.name, other.label) == (row.name, row.label)]
        small, large = min(same, key=_size), max(same, key=_size)
        if small is not large:
            ratios[f"{row.name} {row.label}".strip()] = (large.ours_ms / _size(large)) / (small.ours_ms / _size(small))
    return ratios


def _size(row: Row) -> int:
    return row.trajectories


def table(rows: Sequence[Row]) -> str:
    """Return the table as text."""
    lines = [
        f"{'estimator':<30}{'trajectories':>13}{'ours ms':>10}{'to tokens':>10}{'theirs ms':>11}{'faster':>9}"
        f"{'target':>8}{'ours MB':>9}{'theirs MB':>10}{'difference':>12}"
    ]
    for row in rows:
        target = "-" if row.target is None else f"{row.target:.0f}x"
        result = "" if row.target is None or row.faster >= row.target else "  MISSED"
        lines.append(
            f"{row.name:<30}{row.trajectories:>13,}{row.ours_ms:>10.2f}{row.of_it_to_tokens_ms:>10.2f}"
            f"{row.theirs_ms:>11.2f}{row.faster:>8.1f}x{target:>8}{_megabytes(row.ours_peak_mb):>9}"
            f"{_megabytes(row.theirs_peak_mb):>10}{row.largest_difference:>12.1e}{result}"
            + (f"  ({row.label})" if row.label else "")
        )
    return "\n".join(lines)


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def main() -> None:
    names = sorted({case.name for case in CASES})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*names, "build_batch"], metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--size", type=int, help="trajectories (default: both 4096 and 131072)")
    parser.add_argument(
        "--repeats", type=int, default=7, help="repeats of each pair (default: 7, fewer for slow functions)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    built = building(SIZES[0], arguments.repeats) if arguments.only in (None, "build_batch") else None
    keep_freed_memory()
    sizes = SIZES if arguments.size is None else (max(GROUP, arguments.size // GROUP * GROUP),)
    libraries = {"verl": peers.verl(), "trl": peers.trl()}
    records = {record.name: record for module in (builtin, catalogue) for record in module.rllm_estimators()}
    rows: list[Row] = []
    for size in sizes:
        batch = batch_of(size, TOKENS)
        for case in CASES:
            if arguments.only in (None, case.name):
                print(f"{case.name} at {size:,} …", file=sys.stderr)
                rows.append(measure(case, records[case.name], batch, libraries[case.library], arguments.repeats))
    versions = {name: peers.version_of(name) for name in libraries} | {"torch": torch.__version__}
    if arguments.json:
        print(
            json.dumps(
                {
                    "versions": versions,
                    "rows": [asdict(row) for row in rows],
                    "growth": growth(rows),
                    "build_batch": None if built is None else asdict(built),
                },
                indent=2,
            )
        )
        return
    if rows:
        print(table(rows))
        said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in growth(rows).items())
        print(f"cost per trajectory, largest size over smallest: {said}" if said else "")
    if built is not None:
        print(
            f"build_batch: {built.trajectories:,} trajectories of {built.turns} turns, {built.tokens:,} tokens: "
            f"{built.build_ms:.1f} ms, copying the same bytes {built.copy_ms:.1f} ms, {built.times_copy:.2f} times "
            f"(target {built.target:.0f}), peak {_megabytes(built.build_peak_mb)} MB"
        )
    print(f"{TOKENS} tokens each, groups of {GROUP}; {versions}")


if __name__ == "__main__":
    main()
