"""Training steps of the backend `local` next to TRL 1.16 and to a hand-written update: CPU seconds and memory.

python benchmarks/beside_trl.py --ours grpo-55 tree      # our side only, in this environment
python benchmarks/beside_trl.py --profile grpo-1024      # the same, with the functions that take the time

- grpo-55, grpo-1024: a step of `rllm train` with 8 prompts of 55 or 1,024 tokens, 8 rollouts each, 64 new tokens
- tree: an update on 8 branches of an agent's session, which share their beginnings at ten levels
- group: an update on 8 rollouts of a prompt of 512 tokens

The model has Qwen3's architecture, random weights and 6.8 million parameters. Nothing is downloaded. Each side runs in
its own process with one thread. A step's CPU seconds are user and system time. The first step is not counted. A peak is
the largest resident memory of the process. With --profile, it is the peak of a part, in GB.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN, LAYERS, MLP, HEADS, KEY_HEADS, HEAD_SIZE = 8192, 256, 6, 768, 4, 2, 64
PAD, END = "<pad>", "<end>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
GROUPS, SIBLINGS, NEW_TOKENS = 8, 8, 64
PROMPTS = {"grpo-55": 55, "grpo-1024": 1024}
UPDATES = ("tree", "group")
CASES = (*PROMPTS, *UPDATES)
OPTIMIZER = {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "max_grad_norm": 1.0}
LEVELS, LEAVES, ROW_TOKENS, OWN_TURN, ACTION = 10, 8, 6000, 40, 24
"""The trees: the session's turns, the branches, tokens in all rows, tokens of a branch, sampled tokens of a turn."""
REWARD = '''
def share_of_even_words(completions, **columns):
    """Return a reward that differs between rollouts of a random model."""
    chats = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [sum(word[-1] in "02468" for word in chat.split()) / max(1, len(chat.split())) for chat in chats]
'''


def write_inputs(directory: Path, case: str) -> None:
    """Write the model, the reward and the case's rows."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    words = (PAD, END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{word}" for word in word_list()))
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    split = pre_tokenizers.Split(Regex(" w[0-9]{4}"), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory / "model")
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=1,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory / "model")
    (directory / "reward.py").write_text(REWARD)
    rows = make_rows(case)
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def word_list() -> list[str]:
    """Return the words that are one token each, with the space before them."""
    return [f"w{number:04}" for number in range(VOCABULARY - 2 - 256)]


def make_rows(case: str) -> list[dict[str, str]]:
    """Return the rows of the data file."""
    import random

    generator, words = random.Random(0), word_list()

    def random_text(tokens: int) -> str:
        return "".join(f" {word}" for word in generator.choices(words, k=tokens))

    if case in PROMPTS:
        return [{"prompt": random_text(PROMPTS[case])} for _ in range(GROUPS)]
    return []


class Steps:
    """Reports of a process's steps to the process that started it, which decides when the next step begins."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._parts: dict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Wait for the next step."""
        if self._waits and not sys.stdin.readline():
            os._exit(0)
        self._parts.clear()
        self._start = cpu_seconds()

    def end(self, **values: float) -> None:
        """Report a step, and wait for the next one."""
        cpu = cpu_seconds() - self._start
        parts = {name: value for name, value in self._parts.items() if not name.endswith("GB")}
        rest = {"rest": cpu - sum(parts.values())} if parts else {}
        report = {"cpu": cpu, "peak": peak_gigabytes(), **self._parts, **rest, **values}
        print(f"step {json.dumps(report)}", flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of a step."""
        start = cpu_seconds()
        if not self._waits:
            # This also resets the peak of the whole process.
            Path("/proc/self/clear_refs").write_text("5")
        yield
        self._parts[name] += cpu_seconds() - start
        if not self._waits:
            self._parts[f"{name} GB"] = max(self._parts[f"{name} GB"], peak_gigabytes())


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run_ours(case: str, directory: Path, steps: int, turns: Steps) -> None:
    if case in UPDATES:
        return run_update(case, directory, steps, turns, by_hand=False)
    return run_loop(loop_settings(directory, steps), turns)


def loop_settings(directory: Path, steps: int) -> dict[str, Any]:
    """Return the overrides of the run."""
    return {
        "rllm.env.name": "question",
        "data.train_dataset": f"{{name: jsonl, path: {directory / 'rows.jsonl'}}}",
        "rllm.reward": f"[{{name: python, function: '{directory / 'reward.py'}:share_of_even_words', processes: 0}}]",
        "rllm.rollout.n": SIBLINGS,
        "rllm.algorithm.kl_beta": 0.0,
        "data.train_batch_size": GROUPS,
        "data.max_response_length": NEW_TOKENS,
        "rllm.trainer.total_batches": steps,
        "rllm.trainer.output_dir": directory / "runs",
        "rllm.trainer.save_freq": -1,
        "rllm.trainer.test_freq": -1,
        "rllm.trainer.val_before_train": "false",
        "rllm.trainer.logger": "[]",
        "model.name": directory / "model",
        "local.torch_threads": 1,
        **{f"training.{name}": value for name, value in OPTIMIZER.items()},
    }


def run_loop(settings: dict[str, Any], turns: Steps) -> None:
    """Train with the loop of `rllm train`."""
    from rllm.config.compose import compose
    from rllm.config.layers import layers_from_overrides
    from rllm.planning.planner import make_plan
    from rllm.runs.run_directory import RunDirectory
    from rllm.training.loop import TrainingLoop
    from rllm.training.setup import load_tasks
    from rllm_core.contracts.backend import BackendWrapper
    from rllm_core.contracts.engine import EngineWrapper
    from rllm_core.contracts.observer import Observer
    from rllm_core.plugins.registry import Registry

    class Engine(EngineWrapper):
        running, start = 0, 0.0

        async def generate(self, *arguments: Any, **options: Any) -> Any:
            """Measure the time in which any rollout is generated."""
            if not self.running:
                self.measured = turns.part("generate")
                self.measured.__enter__()
            self.running += 1
            try:
                return await super().generate(*arguments, **options)
            finally:
                self.running -= 1
                if not self.running:
                    self.measured.__exit__(None, None, None)

    class MeasuredBackend(BackendWrapper):
        async def process(self, *arguments: Any) -> Any:
            with turns.part("log-probs"):
                return await super().process(*arguments)

        async def update(self, *arguments: Any) -> Any:
            with turns.part("update"):
                return await super().update(*arguments)

    class Measure(Observer):
        def wrap_backend(self, backend: Any, run: Any) -> Any:
            return MeasuredBackend(backend)

        def wrap_engine(self, engine: Any, run: Any) -> Any:
            return Engine(engine)

        def on_batch_start(self, step: Any) -> None:
            turns.begin()

        def on_batch_end(self, step: Any) -> None:
            turns.end(loss=step.metrics["actor/loss"], tokens=float(step.batch.loss_mask.sum()))

    words = [f"{key}={value}" for key, value in settings.items()]
    plan = make_plan(compose(Registry.load(), layers_from_overrides(words)), Registry.load())
    run = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
    try:
        tasks = load_tasks(plan, "train")
        TrainingLoop(plan, run, train_tasks=tasks, val_tasks=(), observers=[Measure()], warn=lambda _: None).fit()
    finally:
        run.close()


def run_update(case: str, directory: Path, steps: int, turns: Steps, *, by_hand: bool) -> None:
    """Update on rows that share beginnings."""
    import torch
    from real_model_speed import HandWrittenUpdate, plan, updater

    from rllm_local.model import load_model
    from rllm_local.settings import ModelSection, TrainingSection

    torch.set_num_threads(1)
    loaded = load_model(ModelSection(name=str(directory / "model")), seed=0)
    settings = TrainingSection(**OPTIMIZER)
    batch = tree_batch() if case == "tree" else group_batch()
    update: Callable[[], object]
    if by_hand:
        written = HandWrittenUpdate(loaded.model, settings)
        update = lambda: written(batch)  # noqa: E731
    else:
        ours, losses = updater(loaded, settings), plan()
        update = lambda: ours.update(batch, losses).metrics["actor/loss"]  # noqa: E731
    before = peak_gigabytes()
    for _ in range(steps):
        turns.begin()
        loss = update()
        turns.end(loss=float(loss), growth=peak_gigabytes() - before, tokens=float(len(batch.tokens)))


def tree_batch() -> Any:
    """Return the rows of branches of a session with ten turns: a branch leaves it after each of the last eight."""
    import numpy as np

    generator = np.random.default_rng(0)
    ends = range(LEVELS - LEAVES + 1, LEVELS + 1)
    turn = (ROW_TOKENS - LEAVES * OWN_TURN) // sum(ends)
    sampled = np.arange(turn) >= turn - ACTION
    trunk = generator.integers(2, VOCABULARY, (LEVELS, turn))
    rows, masks = [], []
    for end in ends:
        own = generator.integers(2, VOCABULARY, OWN_TURN)
        rows.append(np.concatenate((trunk[:end].ravel(), own)))
        masks.append(np.concatenate((np.tile(sampled, end), np.arange(OWN_TURN) >= OWN_TURN - ACTION)))
    return batch_of_rows(rows, masks)


def group_batch() -> Any:
    """Return the rows of 8 rollouts at one prompt of 512 tokens."""
    import numpy as np

    generator = np.random.default_rng(0)
    prompt = generator.integers(2, VOCABULARY, 512)
    rows = [np.concatenate((prompt, generator.integers(2, VOCABULARY, NEW_TOKENS))) for _ in range(SIBLINGS)]
    return batch_of_rows(rows, [np.arange(len(row)) >= len(prompt) for row in rows])


def batch_of_rows(rows: Sequence[Any], masks: Sequence[Any]) -> Any:
    """Return a batch with an old log-prob near the model's for each sampled token, and advantages of both signs."""
    import numpy as np

    from rllm_core.data.batch import build_batch
    from rllm_core.data.types import Trajectory, TrajectoryGroup

    trajectories = []
    for row, mask in zip(rows, masks, strict=True):
        trajectory = Trajectory("agent", reward=0.0)
        edges = np.flatnonzero(np.diff(mask, append=False)) + 1
        for start, end in edges.reshape(-1, 2):
            logprobs = np.full(end - start, -np.log(VOCABULARY), np.float32)
            trajectory.add_step(row[:start], row[start:end], logprobs)
        trajectories.append(trajectory)
    batch = build_batch([TrajectoryGroup(group_id="0:agent", trajectories=trajectories)])
    signs = np.where(np.arange(batch.n_rows) % 2, 1.0, -0.5).astype(np.float32)
    advantages = np.repeat(signs, batch.row_lengths) * batch.loss_mask
    return batch.with_columns(advantages=advantages, old_logprobs=batch.sampling_logprobs)


def profile(case: str, directory: Path, steps: int) -> None:
    """Print the functions of our side that take the time, on all threads."""
    profiles: list[cProfile.Profile] = []

    def start(*_: object) -> None:
        profiles.append(cProfile.Profile())
        profiles[-1].enable()

    threading.setprofile(start)
    start()
    run_ours(case, directory, steps, Steps(waits=False))
    threading.setprofile(None)  # type: ignore[arg-type]
    table = pstats.Stats(*profiles).strip_dirs()
    for order in ("tottime", "cumtime"):
        table.sort_stats(order).print_stats(45)


def child_environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def show_ours(case: str, steps: int) -> None:
    """Run our side, and print its steps."""
    with tempfile.TemporaryDirectory() as directory:
        write_inputs(Path(directory), case)
        command = [sys.executable, __file__, "--child", "ours", "--directory", directory, "--steps", str(steps), case]
        with subprocess.Popen(
            command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            print(f"{case}: {steps} steps", flush=True)
            reports = [next_report(child) for _ in range(steps)]
    print(describe(reports))


def next_report(child: Any) -> dict[str, float]:
    """Make a step of a child process, and return its report."""
    child.stdin.write("next\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("step "):
            found: dict[str, float] = json.loads(line.removeprefix("step "))
            print(f"  {describe([found, found])}", flush=True)
            return found
    raise SystemExit(f"The process ended with {child.wait()}.")


def describe(reports: Sequence[dict[str, float]]) -> str:
    """Return the medians of the steps after the first, and the peak of all."""
    names = [name for name in reports[-1] if name != "peak"]
    medians = {name: statistics.median(each.get(name, 0.0) for each in reports[1:]) for name in names}
    return ", ".join(f"{name} {value:.4g}" for name, value in medians.items()) + f", peak {reports[-1]['peak']:.3f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"{', '.join(CASES)} (default: all)")
    parser.add_argument("--steps", type=int, default=4, help="steps; the first is not counted (default: 4)")
    parser.add_argument("--ours", action="store_true", help="run our side only")
    parser.add_argument("--profile", action="store_true", help="run our side only, and print its slowest functions")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.cases or CASES
    if options.child:
        run_ours(*cases, options.directory, options.steps, Steps(waits=True))
        return
    for case in cases:
        if options.profile:
            with tempfile.TemporaryDirectory() as directory:
                write_inputs(Path(directory), case)
                profile(case, Path(directory), options.steps)
        else:
            show_ours(case, options.steps)


if __name__ == "__main__":
    main()
