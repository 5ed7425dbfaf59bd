"""`rllm sft` with backend `local` next to TRL's SFTTrainer: the same model, rows and optimizer, in one process.

python benchmarks/sft.py                      # 7 steps of each; about five minutes
python benchmarks/sft.py --ragged             # rows of 32 to 256 tokens instead of equal ones

Needs TRL in `conformance`, where `make install` puts it. The model has the architecture of SmolLM2-135M with random
weights, and is not downloaded. Both sides run their whole training loop, and stop after each step until the other has
made its step. The first steps are not counted. Both train every token of the same rows in float32, in one batch, with
AdamW, the same learning rate and gradient clipping, without gradient checkpointing and without packing. TRL pads the
rows of a batch. A ratio above 1 means that ours is faster. A last line compares the losses of all steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import string
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

import numpy as np
import peers
import torch
from measuring import keep_freed_memory
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from rllm.builtin.supervised.command import read_sft_request
from rllm.cli.configuring import plan_for
from rllm.planning.preflight import check_to_train
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep

VOCABULARY, SHORTEST = 49152, 32
SAME_LOSS = 1e-4
LEARNING_RATE, BETAS, EPS, CLIP = 1e-4, (0.9, 0.95), 1e-8, 1.0
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}<end>{% endfor %}"


@dataclass
class Side:
    """One of the two training loops: it runs only while it has its turn."""

    turn: threading.Semaphore
    other: threading.Semaphore
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self.turn.acquire()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end_step(self) -> None:
        """Note the time since the last step of this side, and give the turn to the other."""
        self.seconds.append(time.perf_counter() - self._wall)
        self.cpu.append(time.process_time() - self._cpu)
        self.other.release()
        self.begin()

    def leave(self) -> None:
        self.other.release()


def write_model(directory: Path) -> None:
    """Write SmolLM2-135M's architecture with random weights, and a tokenizer with a token for each byte."""
    torch.manual_seed(0)
    characters = enumerate(("<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer = Tokenizer(models.BPE({character: number for number, character in characters}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def make_rows(count: int, tokens: int, *, ragged: bool) -> list[dict[str, str]]:
    generator = np.random.default_rng(0)
    lengths = np.linspace(SHORTEST, tokens, count).astype(int) if ragged else np.full(count, tokens)
    # The tokenizers of both sides add the token that ends the text.
    return [{"text": "".join(generator.choice([*string.ascii_letters], length - 1))} for length in lengths]


class Ours(Observer):
    """Hands over the turn at the end of each step of `rllm sft`."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._side.begin()

    def on_batch_end(self, step: TrainStep) -> None:
        self._side.losses.append(step.metrics["actor/loss"])
        self._side.end_step()


def run_ours(side: Side, model: Path, data: Path, rows: int, steps: int, threads: int) -> None:
    words = [
        f"data.train_batch_size={rows}",
        f"rllm.trainer.total_epochs={steps}",
        f"rllm.trainer.output_dir={model.parent / 'runs'}",
        "rllm.trainer.save_freq=-1",
        "rllm.trainer.test_freq=-1",
        "rllm.trainer.val_before_train=false",
        f"training.learning_rate={LEARNING_RATE}",
        f"training.beta1={BETAS[0]}",
        f"training.beta2={BETAS[1]}",
        f"training.eps={EPS}",
        f"training.max_grad_norm={CLIP}",
        f"local.torch_threads={threads}",
    ]
    plan = plan_for(read_sft_request(words, str(model), (), {"data": str(data)}))
    train_tasks, val_tasks = load_tasks(plan, "train"), load_tasks(plan, "val")
    check_to_train(plan, train_tasks, val_tasks)
    directory = RunDirectory.open(plan.config.rllm.trainer, resume=False, overwrite=True)
    try:
        loop = TrainingLoop(
            plan, directory, train_tasks=train_tasks, val_tasks=val_tasks, observers=[Ours(side)], warn=lambda _: None
        )
        asyncio.run(loop.fit_async())
    finally:
        directory.close()
        side.leave()


def run_theirs(side: Side, model: Path, rows: list[dict[str, str]], steps: int, threads: int) -> None:
    torch.set_num_threads(threads)
    trl, datasets = trl_and_datasets()

    class Trainer(trl.SFTTrainer):
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            side.losses.append(float(loss.detach()))
            return loss

    class HandsOver(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            side.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            side.end_step()

    config = trl.SFTConfig(
        output_dir=str(model.parent / "trl"),
        num_train_epochs=steps,
        per_device_train_batch_size=len(rows),
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=EPS,
        weight_decay=0.0,
        max_grad_norm=CLIP,
        max_length=None,
        packing=False,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    try:
        trainer = Trainer(
            model=str(model),
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            callbacks=[HandsOver()],
        )
        trainer.train()
    finally:
        side.leave()


def trl_and_datasets() -> tuple[Any, Any]:
    peers.directory_of("trl")
    sys.path.append(str(peers.CONFORMANCE))
    import datasets
    import trl

    return trl, datasets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=7, help="optimizer steps of each side (default: 7)")
    parser.add_argument("--rows", type=int, default=2, help="rows in a batch (default: 2)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of the longest row (default: 256)")
    parser.add_argument("--ragged", action="store_true", help=f"rows of {SHORTEST} to --tokens tokens")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on both sides (default: 1)")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    keep_freed_memory()
    rows = make_rows(arguments.rows, arguments.tokens, ragged=arguments.ragged)
    first, second = threading.Semaphore(1), threading.Semaphore(0)
    ours, theirs = Side(first, second), Side(second, first)
    with tempfile.TemporaryDirectory() as directory:
        model, data = Path(directory, "model"), Path(directory, "rows.jsonl")
        write_model(model)
        data.write_text("\n".join(map(json.dumps, rows)))
        # Ours is in the main thread, because it handles signals.
        theirs_words = (theirs, model, rows, arguments.steps, arguments.threads)
        thread = threading.Thread(target=run_theirs, args=theirs_words, daemon=True)
        thread.start()
        run_ours(ours, model, data, arguments.rows, arguments.steps, arguments.threads)
        thread.join()
    trained = sum(len(row["text"]) for row in rows)
    for name, us, them in (("clock", ours.seconds, theirs.seconds), ("processor", ours.cpu, theirs.cpu)):
        ratios = sorted(b / a for a, b in zip(us[1:], them[1:], strict=True))
        ours_speed, theirs_speed = (trained / statistics.median(times[1:]) for times in (us, them))
        middle, low, high = statistics.median(ratios), ratios[0], ratios[-1]
        print(
            f"tokens per second of the {name}: rllm sft {ours_speed:.1f}, TRL {peers.version_of('trl')} "
            f"{theirs_speed:.1f}, ratio {middle:.3f} ({low:.3f} to {high:.3f}); target 1.0"
        )
    gap = max(abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True))
    losses = f"{ours.losses[0]:.4f} to {ours.losses[-1]:.4f}"
    print(f"losses: {losses}; largest difference from TRL {gap:.2e}; target {SAME_LOSS:g}")
    return 0 if gap <= SAME_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())
