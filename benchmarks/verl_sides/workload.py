"""The workload of both sides: the same model directory, prompts, numbers of rows, lengths and minibatches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

QUESTION = "what is {a} plus {b}? reply with a number only. "
LARGEST = 7


@dataclass(frozen=True, kw_only=True)
class Workload:
    model: str
    """Directory of the model, written by rllm's own `tiny`."""
    directory: str
    """Directory for runs, data files and checkpoints."""
    steps: int
    prompts: int
    """Prompts per step."""
    rollouts: int
    """Rollouts per prompt."""
    repeats: int
    """Copies of the question in a prompt, 31 tokens each."""
    max_response_length: int
    minibatches: int
    micro_batch_tokens: int

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def prompt(self) -> str:
        return (QUESTION * self.repeats).strip()

    @property
    def max_prompt_length(self) -> int:
        return 40 * self.repeats

    @property
    def words(self) -> list[str]:
        """Return our configuration. verl's own trainer uses its sections of verl's configuration."""
        return [
            "rllm.backend=verl",
            "rllm.profile=cpu",
            "rllm.env.name=sum",
            f"rllm.env.env_args.largest={LARGEST}",
            f'rllm.env.env_args.prompt="{self.prompt}"',
            f"rllm.rollout.n={self.rollouts}",
            f"rllm.trainer.total_batches={self.steps}",
            f"rllm.trainer.output_dir={self.directory}/ours",
            "rllm.trainer.val_before_train=false",
            "rllm.trainer.test_freq=-1",
            "rllm.trainer.save_freq=-1",
            "rllm.trainer.logger=[]",
            "rllm.algorithm.entropy.coeff=0",
            f"data.train_batch_size={self.prompts}",
            f"data.max_prompt_length={self.max_prompt_length}",
            f"data.max_response_length={self.max_response_length}",
            f"training.num_minibatches={self.minibatches}",
            f"actor_rollout_ref.model.path={self.model}",
            # It uses its own Ray, separate from others on the machine.
            "ray_kwargs.ray_init.address=local",
            # Imported by the processes that load a model.
            "actor_rollout_ref.model.external_lib=compute_clock",
            "actor_rollout_ref.actor.ppo_epochs=1",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={self.micro_batch_tokens}",
            # The weights do not change, so the lengths of responses do not change either.
            "actor_rollout_ref.actor.optim.lr=1e-9",
        ]
