"""Training steps of the backend `local` next to TRL 1.16 and to a hand-written update: CPU seconds and memory.

python benchmarks/beside_trl.py                          # all cases, both sides
python benchmarks/beside_trl.py --steps 6 prefer sft     # two cases, with more steps
python benchmarks/beside_trl.py --ours grpo-55 tree      # our side only, without TRL
python benchmarks/beside_trl.py --profile grpo-1024      # the same, with the functions that take the time

- grpo-55, grpo-1024: a step of `rllm train` with 8 prompts of 55 or 1,024 tokens, 8 rollouts each and 64 new tokens,
  without a KL term, next to GRPOTrainer with `generate` of transformers
- tree: an update on 8 branches of an agent's session, which share their beginnings at ten levels, next to a
  hand-written update on padded rows
- group: an update on 8 rollouts of a prompt of 512 tokens, next to the same
- prefer: a step of `rllm prefer` with 8 pairs of completions of 64 tokens for prompts of 512, next to DPOTrainer
- sft: a step of `rllm sft` with 16 rows of 32 to 512 tokens, next to SFTTrainer with packing

The model has Qwen3's architecture, random weights and 6.8 million parameters, or SmolLM2-135M's size. Nothing but TRL
is downloaded: the first run installs it into an environment in your cache directory. Each side runs in its own process
with one thread of torch, in float32, without gradient checkpointing. The sides make their steps alternately, and both
train on the same rows with the same AdamW. Case grpo-1024 needs 20 GB of free memory, or --their-rows 16.

A step's CPU seconds are the process's user and system time between the ends of two steps. The first step is not
counted. The ratio is ours divided by theirs, the median of the steps. A peak is the largest resident memory of the
process, with its libraries. Growth is the peak above the memory before the first step. With --profile, the peaks are
those of the parts of a step. The losses of both sides are equal in all cases except the sampled ones.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

from alternation import Child, Steps, compare_reports, describe

VOCABULARY = 8192
"""Tokens of the tokenizer. Models may have more."""
SHAPES = {"small": (VOCABULARY, 256, 6, 768, 4, 2), "smollm2": (49152, 576, 30, 1536, 9, 3)}
"""Vocabulary, width, layers, width of the feed-forward layers, heads and key heads."""
PAD, END = "<pad>", "<end>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
GROUPS, SIBLINGS, NEW_TOKENS = 8, 8, 64
PROMPTS = {"grpo-55": 55, "grpo-1024": 1024}
UPDATES = ("tree", "group")
CASES = (*PROMPTS, *UPDATES, "prefer", "sft")
PAIRS, LONG_PROMPT, SFT_ROWS, SHORTEST, LONGEST = 8, 512, 16, 32, 512
PACKED = 2048
"""Tokens of a packed sequence of TRL. It is also the default limit of a micro-batch of `local` on a CPU."""
TRL = "1.16"
OPTIMIZER = {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "max_grad_norm": 1.0}
LEVELS, LEAVES, ROW_TOKENS, OWN_TURN, ACTION = 10, 8, 6000, 40, 24
"""The trees: the session's turns, the branches, tokens in all rows, tokens of a branch, sampled tokens of a turn."""
REWARD = '''
def share_of_even_words(completions, **columns):
    """Return a reward that differs between rollouts of a random model."""
    chats = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [sum(word[-1] in "02468" for word in chat.split()) / max(1, len(chat.split())) for chat in chats]
'''


def write_inputs(directory: Path, case: str, shape: str) -> None:
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
    vocabulary_size, hidden, layers, feed_forward, heads, key_heads = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=64,
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
    # Both sides add the token that ends the text.
    if case == "prefer":
        lengths = {"prompt": LONG_PROMPT, "chosen": NEW_TOKENS - 1, "rejected": NEW_TOKENS - 1}
        return [{name: random_text(length) for name, length in lengths.items()} for _ in range(PAIRS)]
    if case == "sft":
        longer = (LONGEST - SHORTEST) / (SFT_ROWS - 1)
        return [{"text": random_text(round(SHORTEST + longer * row) - 1)} for row in range(SFT_ROWS)]
    return []


def run_ours(case: str, directory: Path, steps: int, turns: Steps) -> None:
    if case in UPDATES:
        run_update(case, directory, steps, turns, by_hand=False)
    else:
        run_loop(case, our_settings(case, directory, steps), turns)


def our_settings(case: str, directory: Path, steps: int) -> dict[str, Any]:
    """Return the overrides of the run."""
    training = {f"training.{name}": value for name, value in OPTIMIZER.items()}
    if case in UPDATES:
        return training
    rows, output = directory / "rows.jsonl", {"output_dir": directory / "runs", "save_freq": -1, "test_freq": -1}
    sampled = {
        "rllm.env.name": "question",
        "rllm.reward": f"[{{name: python, function: '{directory / 'reward.py'}:share_of_even_words', processes: 0}}]",
        "rllm.rollout.n": SIBLINGS,
        "rllm.algorithm.kl_beta": 0.0,
        "data.max_response_length": NEW_TOKENS,
    }
    return {
        "data.train_dataset": f"{{name: jsonl, path: '{rows}'}}",
        "data.train_batch_size": len(rows.read_text().splitlines()),
        **(sampled if case in PROMPTS else {"rllm.objective": case}),
        **{f"rllm.trainer.{name}": value for name, value in output.items()},
        "rllm.trainer.total_batches": steps,
        "rllm.trainer.val_before_train": "false",
        "rllm.trainer.logger": "[]",
        "model.name": directory / "model",
        "local.torch_threads": 1,
        **training,
    }


def run_loop(case: str, settings: dict[str, Any], turns: Steps) -> None:
    """Train with the loop of `rllm train`, `rllm prefer` or `rllm sft`."""
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
        running = 0

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

        def on_train_start(self, total_steps: int, first_step: int) -> None:
            turns.begin()

        def on_batch_end(self, step: Any) -> None:
            loss = step.metrics["preference/loss" if case == "prefer" else "actor/loss"]
            turns.end(loss=loss, tokens=float(step.batch.loss_mask.sum()))

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
    from hand_written_update import HandWrittenUpdate, ppo_plan

    from rllm_local.model import load_model
    from rllm_local.settings import ModelSection, TrainingSection
    from rllm_local.update import Updater

    torch.set_num_threads(1)
    loaded = load_model(ModelSection(name=str(directory / "model")), seed=0)
    settings = TrainingSection(**OPTIMIZER)
    batch, plan = tree_batch() if case == "tree" else group_batch(), ppo_plan()
    update: Callable[[], Any]
    if by_hand:
        written = HandWrittenUpdate(loaded.model, settings)
        update = lambda: written(batch)  # noqa: E731
    else:
        ours = Updater(loaded.model, settings, total_steps=1000, temperature=1.0, max_response_length=NEW_TOKENS)
        update = lambda: ours.update(batch, plan).metrics["actor/loss"]  # noqa: E731
    turns.begin()
    for _ in range(steps):
        turns.end(loss=float(update()), tokens=float(len(batch.tokens)))


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
    """Print the functions of our side that take the processor's time, on all threads."""
    profiles: list[cProfile.Profile] = []

    def start(*_: object) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].enable()

    threading.setprofile(start)
    start()
    run_ours(case, directory, steps, Steps(waits=False))
    threading.setprofile(None)  # type: ignore[arg-type]
    table = pstats.Stats(*profiles).strip_dirs()
    for order in ("tottime", "cumtime"):
        table.sort_stats(order).print_stats(45)


def run_theirs(case: str, directory: Path, settings: dict[str, Any], turns: Steps) -> None:
    """Train with TRL. This runs in TRL's environment."""
    import datasets
    import torch
    import trl
    from transformers import TrainerCallback

    class Measure(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turns.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.end(loss=sum(losses))
            losses.clear()

    losses: list[float] = []
    kind, config = {"prefer": ("DPO", {}), "sft": ("SFT", {})}.get(
        case, ("GRPO", {"reward_funcs": load_reward(directory)})
    )
    base: Any = getattr(trl, f"{kind}Trainer")

    class Trainer(base):  # type: ignore[misc]
        def training_step(self, *arguments: Any, **options: Any) -> Any:
            loss = super().training_step(*arguments, **options)
            losses.append(float(loss))
            return loss

        def _generate(self, *arguments: Any, **options: Any) -> Any:
            with turns.part("generate"):
                return super()._generate(*arguments, **options)

    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
    trainer = Trainer(
        model=str(directory / "model"),
        args=getattr(trl, f"{kind}Config")(**settings),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[Measure()],
        **config,
    )
    trainer.train()


def load_reward(directory: Path) -> Callable[..., list[float]]:
    names: dict[str, Any] = {}
    exec((directory / "reward.py").read_text(), names)
    reward: Callable[..., list[float]] = names["share_of_even_words"]
    return reward


def their_settings(case: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of TRL's configuration, or of the hand-written update."""
    if case in UPDATES:
        return {"micro-batch": "16 rows, padded", **OPTIMIZER}
    shared = {
        "output_dir": str(directory / "trl"),
        "max_steps": options.steps,
        "learning_rate": OPTIMIZER["learning_rate"],
        "adam_beta1": OPTIMIZER["beta1"],
        "adam_beta2": OPTIMIZER["beta2"],
        "adam_epsilon": OPTIMIZER["eps"],
        "max_grad_norm": OPTIMIZER["max_grad_norm"],
        "weight_decay": 0.0,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": options.attention},
    }
    if case == "prefer":
        return shared | passes(PAIRS, options.their_rows // 2) | {"beta": 0.1, "max_length": None}
    if case == "sft":
        packing = {"packing": True, "packing_strategy": options.packing, "max_length": PACKED}
        return shared | passes(SFT_ROWS, 1) | packing
    sampling = {"num_generations": SIBLINGS, "max_completion_length": NEW_TOKENS, "beta": 0.0}
    return shared | passes(GROUPS * SIBLINGS, options.their_rows) | sampling


def passes(rows: int, together: int) -> dict[str, int]:
    """Return the settings that divide the rows of a step into passes."""
    together = min(rows, together)
    return {"per_device_train_batch_size": together, "gradient_accumulation_steps": -(-rows // together)}


def environment_of_trl() -> Path:
    """Return the Python of an environment with TRL, and our versions of torch and transformers. Create it if needed."""
    from importlib.metadata import version

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rllm-benchmarks"
    same = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
    directory = cache / "-".join((f"trl-{TRL}", *same.values()))
    python, done = directory / "bin/python", directory / "installed"
    if not done.exists():
        print(f"Installing TRL into {directory}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        pinned = (f"trl=={TRL}.*", *(f"{name}=={number}" for name, number in same.items()))
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *pinned], check=True)
        done.touch()
    return python


def child_command(
    side: str, python: Path | str, case: str, directory: Path, options: argparse.Namespace
) -> list[str | Path]:
    given = {"--steps": options.steps, "--their-rows": options.their_rows, "--packing": options.packing}
    given |= {"--attention": options.attention, "--child": side, "--directory": directory}
    return [python, __file__, *(str(word) for pair in given.items() for word in pair), case]


def compare(case: str, options: argparse.Namespace) -> None:
    """Run both sides alternately, and print the ratios."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_inputs(directory, case, options.shape)
        print(f"{case}\n ours: {show(our_settings(case, directory, options.steps))}", flush=True)
        children = [Child("ours", child_command("ours", sys.executable, case, directory, options))]
        if not options.ours:
            print(f" theirs: {show(their_settings(case, directory, options))}", flush=True)
            python = sys.executable if case in UPDATES else environment_of_trl()
            children.append(Child("theirs", child_command("theirs", python, case, directory, options)))
        for _ in range(options.steps):
            for child in children:
                child.step()
        for child in children:
            child.close()
    for child in children:
        print(f" median: {describe(child.reports[1:])}")
    if not options.ours:
        print(f" {case}: {compare_reports(*(child.reports for child in children), same_losses=case not in PROMPTS)}")


def show(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def run_child(case: str, options: argparse.Namespace) -> None:
    turns = Steps(waits=True)
    if options.child == "ours":
        run_ours(case, options.directory, options.steps, turns)
    elif case in UPDATES:
        run_update(case, options.directory, options.steps, turns, by_hand=True)
    else:
        run_theirs(case, options.directory, their_settings(case, options.directory, options), turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"{', '.join(CASES)} (default: all)")
    parser.add_argument("--steps", type=int, default=4, help="steps; the first is not counted (default: 4)")
    parser.add_argument(
        "--shape", choices=SHAPES, default="small", help="6.8 or 135 million parameters (default: small)"
    )
    parser.add_argument("--ours", action="store_true", help="run our side only")
    parser.add_argument("--profile", action="store_true", help="run our side only, and print its slowest functions")
    parser.add_argument("--their-rows", type=int, default=64, help="rows in a pass of TRL (default: 64, all of GRPO)")
    strategies = ("bfd", "bfd_split", "wrapped")
    parser.add_argument("--packing", choices=strategies, default="bfd", help="TRL's packing strategy (default: bfd)")
    parser.add_argument("--attention", default="sdpa", help="TRL's attention: sdpa or eager (default: sdpa)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"{', '.join(unknown)} is no case. The cases are {', '.join(CASES)}.")
    for case in options.cases or CASES:
        if options.child:
            run_child(case, options)
        elif options.profile:
            with tempfile.TemporaryDirectory() as directory:
                write_inputs(Path(directory), case, options.shape)
                profile(case, Path(directory), options.steps)
        else:
            compare(case, options)


if __name__ == "__main__":
    main()
