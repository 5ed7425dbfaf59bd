"""Small models made in code, batches of random tokens, and updates, for tests of the backend `local`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.loss import LossPlugin, PolicyLoss
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.updates import losses as core_losses
from rllm_core.updates.losses import ppo_clipped
from rllm_local import tiny
from rllm_local.columns import ColumnFiller
from rllm_local.critic import Critic
from rllm_local.exact_attention import use_exact_attention
from rllm_local.sampling import draw
from rllm_local.settings import CriticSection, TrainingSection
from rllm_local.update import Updater

one_order_of_sums = pytest.mark.skipif(
    not torch.backends.mkl.is_available() or not os.environ.get("MKL_CBWR", "").endswith("STRICT"),
    reason="MKL has one order of sums only in its strict mode",
)


def sharpen(model: Any) -> Any:
    """Scale up the weights. Small initial weights give uniform attention, and with larger ones every token matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.12 / parameter.std())
    use_exact_attention(model)
    return model.eval()


@cache
def tiny_tokenizer() -> Any:
    """Return the tokenizer of the tiny model. It is shared, because nothing changes it."""
    return tiny.build_tokenizer()


def build_tiny(seed: int) -> Any:
    return sharpen(tiny.build_model(len(tiny_tokenizer()), seed))


def full_logits(model: Any, ids: Sequence[int] | np.ndarray) -> torch.Tensor:
    """Return the logits of a sequence, (n, n_vocabulary), computed in one pass without a cache."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor(np.asarray(ids, np.int64))[None], use_cache=False).logits[0]


def assert_as_without_cache(
    model: Any, prompt: Sequence[int], sampling: SamplingParams, completion: Completion
) -> None:
    """Check a completion against a plain forward pass over prompt and response.

    Each token must be what its seed draws from the plain logits, and each log-prob theirs.
    """
    count = len(completion.token_ids)
    logits = full_logits(model, [*prompt, *completion.token_ids.tolist()])[len(prompt) - 1 : -1]
    drawn = draw(logits, [sampling] * count, range(count))
    assert completion.token_ids.tolist() == drawn.tokens.tolist()
    logprobs = torch.log_softmax(logits.double() / (sampling.temperature or 1.0), dim=-1)
    expected = logprobs[torch.arange(count), torch.from_numpy(drawn.tokens)]
    assert_close(completion.logprobs, expected, [logits / (sampling.temperature or 1.0)], relative=5e-6)


def random_batch(
    rows: Sequence[tuple[int, int]] | Sequence[Sequence[tuple[int, int]]],
    *,
    roles: Sequence[str] = ("agent",),
    rollouts: int = 1,
    vocabulary: int = 70,
    seed: int = 0,
) -> TokenBatch:
    """Return a batch of random tokens.

    Args:
        rows: (prompt, response) lengths of each trajectory, or a list of those, one per turn.
        roles: roles of the trajectories, in order.
        rollouts: number of consecutive trajectories with the same prompt.
        vocabulary: tokens are below this.
        seed: seed of tokens, log-probs and advantages.
    """
    generator = np.random.default_rng(seed)
    groups: dict[str, TrajectoryGroup] = {}
    task: list[int] = []
    for index, turns in enumerate(rows):
        role = roles[index % len(roles)]
        trajectory = Trajectory(role, reward=0.0)
        history: list[int] = []
        for turn, (prompt, response) in enumerate([turns] if isinstance(turns[0], int) else turns):  # type: ignore[list-item, arg-type]
            said = generator.integers(0, vocabulary, prompt).tolist()
            if turn == 0:
                task = said if index % rollouts == 0 else task
                said = task
            history += said
            sampled = generator.integers(0, vocabulary, response)
            logprobs = generator.normal(-4.4, 0.4, response).astype(np.float32)
            trajectory.add_step(history, sampled, logprobs)
            history += sampled.tolist()
        groups.setdefault(role, TrajectoryGroup(group_id=f"task:{role}", trajectories=[])).trajectories.append(
            trajectory
        )
    batch = build_batch(list(groups.values()))
    advantages = generator.normal(0, 1, len(batch.tokens)).astype(np.float32) * batch.loss_mask
    return batch.with_columns(advantages=advantages, old_logprobs=batch.sampling_logprobs)


def plain_rows(
    model: Any, batch: TokenBatch, temperature: float = 1.0
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield what the plain model computes of each row by itself, over full logits, for all tokens but the first.

    Yields:
        their place in the batch, log-probs of the vocabulary (n, n_vocabulary), their log-probs (n,), and the hidden
        states before them (n, width).
    """
    for start, end in pairwise(batch.row_offsets.tolist()):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        output = model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
        table = torch.log_softmax(output.logits[0, :-1] / temperature, dim=-1)
        yield slice(start + 1, end), table, table.gather(1, ids[1:, None])[:, 0], output.hidden_states[-1][0, :-1]


def make_plan(
    losses: str | Mapping[str, str | PolicyLoss] = "ppo", roles: Sequence[str] = ("agent",), **changes: Any
) -> UpdatePlan:
    """Return an update plan. `losses` are functions by role, or the name of one of the core's losses for every role."""
    by_role = dict.fromkeys(roles, losses) if isinstance(losses, str) else losses
    values = {"global_step": 0, "aggregation": "token-mean", "entropy_coeff": 0.0, "seed": 0} | changes
    return UpdatePlan(losses={role: _choice(loss) for role, loss in by_role.items()}, **values)


def _choice(loss: str | PolicyLoss) -> PluginChoice[LossPlugin[Any]]:
    function: PolicyLoss = getattr(core_losses, loss) if isinstance(loss, str) else loss
    params = PpoParams(eps_clip=0.2, eps_clip_high=0.3) if loss == "ppo" else NoParams()
    name = loss if isinstance(loss, str) else "custom"
    load_clipped = (lambda: ppo_clipped) if loss == "ppo" else None
    plugin: LossPlugin[Any] = LossPlugin(
        name=name, summary="", load_params=lambda: type(params), load=lambda: function, load_clipped=load_clipped
    )
    return PluginChoice(registered=Registered(plugin=plugin, distribution="tests", version="0"), params=params)


def make_updater(
    model: Any, *, critic: Critic | None = None, temperature: float = 1.0, total_steps: int = 100, **settings: Any
) -> Updater:
    section = TrainingSection(**({"learning_rate": 1e-3, "max_grad_norm": 1e9} | settings))
    return Updater(
        model, section, total_steps=total_steps, temperature=temperature, max_response_length=50, critic=critic
    )


def make_critic(model: Any, **settings: Any) -> Critic:
    """Return a critic with random weights, as if it had learned already."""
    critic = Critic(model, CriticSection(**settings))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        critic.weight.copy_(8 * torch.randn(critic.weight.shape, generator=generator))
        critic.bias.fill_(0.1)
    return critic


def fill_columns(model: Any, batch: TokenBatch, *needs: str, temperature: float = 1.0, **parts: Any) -> TokenBatch:
    """Return the batch with columns filled by a `ColumnFiller` and recomputed old log-probs."""
    settings = {"max_tokens_per_microbatch": 10_000, "recompute_old_logprobs": True}
    filler = ColumnFiller(model, temperature=temperature, **settings | parts)
    return batch.with_columns(**filler.columns(batch, frozenset(needs)))


def weights_of(model: Any) -> torch.Tensor:
    """Return all weights of a model as one copied vector."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def gradient_of(model: Any) -> torch.Tensor:
    """Return the gradient of the last update as one vector."""
    return torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])
