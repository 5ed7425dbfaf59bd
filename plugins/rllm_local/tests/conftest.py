"""Small models made in code, engines on them, and the plain computations they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.loss import LossPlugin, PolicyLoss
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.updates import losses as core_losses
from rllm_core.updates.losses import ppo_clipped
from rllm_local import engine as engine_module, tiny
from rllm_local.columns import ColumnFiller
from rllm_local.critic import Critic
from rllm_local.engine import LocalEngine
from rllm_local.forward import cache_bytes_per_token
from rllm_local.kv_cache import AS_NEEDED, PassShape
from rllm_local.settings import CriticSection, TrainingSection
from rllm_local.update import Updater

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_order_of_sums_in_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL reads MKL_CBWR at a process's first product: too late for a test process, in time for those it starts."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    monkeypatch.setattr("rllm_local.backend.fix_order_of_sums", lambda: None)


def _sharpened(model: Any) -> Any:
    """Weights as small as they often are at first attend to everything alike; with larger ones every token matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.12 / parameter.std())
    return model.eval()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny.build_tokenizer()


@pytest.fixture(scope="session")
def build_tiny(tokenizer: Any) -> Callable[[int], Any]:
    return lambda seed: _sharpened(tiny.build_model(len(tokenizer), seed))


@pytest.fixture(scope="session")
def model(build_tiny: Callable[[int], Any]) -> Any:
    """The tiny model. Shared: tests that change weights build their own."""
    return build_tiny(0)


@pytest.fixture(scope="session")
def grouped_model(tokenizer: Any) -> Any:
    """A Llama whose four query heads share two key and value heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )
    return _sharpened(LlamaForCausalLM(config))


@pytest.fixture(scope="session")
def qwen_model(tokenizer: Any) -> Any:
    """A Qwen3: grouped heads of a size of their own, normalised queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
        max_position_embeddings=256,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )
    return _sharpened(Qwen3ForCausalLM(config))


@pytest.fixture(scope="session")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


@pytest.fixture(scope="session")
def make_engine(model: Any, tokenizer: Any, executor: ThreadPoolExecutor) -> Callable[..., LocalEngine]:
    """An engine; `cache_tokens` is how many tokens its memory for keys and values holds."""

    def make(
        of: Any = None,
        *,
        stop_ids: Sequence[int] = (),
        max_context: int = 512,
        max_concurrency: int = 64,
        cache_tokens: int = 1 << 20,
        shape: PassShape = AS_NEEDED,
    ) -> LocalEngine:
        of = model if of is None else of
        return LocalEngine(
            of,
            TemplateRenderer(tokenizer, stop_ids),
            executor,
            max_context=max_context,
            max_concurrency=max_concurrency,
            kv_cache_bytes=cache_tokens * cache_bytes_per_token(of),
            shape=shape,
        )

    return make


@dataclass
class Passes:
    """What the engine computed: one entry per forward pass, the number of new tokens of each of its rows."""

    rows: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(sum(row) for row in self.rows)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Counts the tokens that go through the model, which stays real."""
    seen = Passes([])
    real = engine_module.sample_next

    def counting(model: Any, cache: Any, rows: Any) -> Any:
        seen.rows.append([len(row.fresh) for row in rows])
        return real(model, cache, rows)

    monkeypatch.setattr(engine_module, "sample_next", counting)
    return seen


def full_logits(model: Any, ids: Sequence[int] | np.ndarray) -> torch.Tensor:
    """(n, n_vocabulary) logits of a sequence, computed in one piece without a cache."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor(np.asarray(ids, np.int64))[None], use_cache=False).logits[0]


@pytest.fixture(scope="session")
def assert_as_without_cache() -> Callable[..., None]:
    """Checks a completion against a plain forward pass over prompt and reply.

    Each token must be what its seed draws from the plain logits, and each log-prob theirs to 1e-5.
    """
    from rllm_local.sampling import draw

    def check(model: Any, prompt: Sequence[int], sampling: SamplingParams, completion: Completion) -> None:
        count = len(completion.token_ids)
        logits = full_logits(model, [*prompt, *completion.token_ids.tolist()])[len(prompt) - 1 : -1]
        drawn = draw(logits, [sampling] * count, range(count))
        assert completion.token_ids.tolist() == drawn.tokens.tolist()
        logprobs = torch.log_softmax(logits.double() / (sampling.temperature or 1.0), dim=-1)
        expected = logprobs[torch.arange(count), torch.from_numpy(drawn.tokens)]
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-5, rtol=0)

    return check


def make_batch(
    rows: Sequence[tuple[int, int]] | Sequence[Sequence[tuple[int, int]]],
    *,
    roles: Sequence[str] = ("agent",),
    rollouts: int = 1,
    vocabulary: int = 70,
    seed: int = 0,
) -> TokenBatch:
    """A batch of random tokens.

    Args:
        rows: (prompt, response) lengths of each trajectory, or a list of those, one per turn.
        roles: of the trajectories in turn.
        attempts: so many trajectories in turn begin with the prompt of the first of them.
        vocabulary: tokens are below this.
        seed: of tokens, log-probs and advantages.
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


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., TokenBatch]:
    return make_batch


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., UpdatePlan]:
    """An update plan; `losses` are functions by role, or the name of one of the core's losses for every role."""

    def make(
        losses: str | Mapping[str, str | PolicyLoss] = "ppo", roles: Sequence[str] = ("agent",), **changes: Any
    ) -> UpdatePlan:
        by_role = dict.fromkeys(roles, losses) if isinstance(losses, str) else losses
        values = {"global_step": 0, "aggregation": "token-mean", "entropy_coeff": 0.0, "seed": 0} | changes
        return UpdatePlan(losses={role: _choice(loss) for role, loss in by_role.items()}, **values)

    return make


def _choice(loss: str | PolicyLoss) -> PluginChoice[LossPlugin[Any]]:
    function: PolicyLoss = getattr(core_losses, loss) if isinstance(loss, str) else loss
    params = PpoParams(eps_clip=0.2, eps_clip_high=0.3) if loss == "ppo" else NoParams()
    name = loss if isinstance(loss, str) else "custom"
    load_clipped = (lambda: ppo_clipped) if loss == "ppo" else None
    plugin: LossPlugin[Any] = LossPlugin(
        name=name, summary="", params=type(params), load=lambda: function, load_clipped=load_clipped
    )
    return PluginChoice(registered=Registered(plugin=plugin, distribution="tests", version="0"), params=params)


@pytest.fixture(scope="session")
def make_updater() -> Callable[..., Updater]:
    def make(
        model: Any, *, critic: Critic | None = None, temperature: float = 1.0, total_steps: int = 100, **settings: Any
    ) -> Updater:
        section = TrainingSection(**({"learning_rate": 1e-3, "max_grad_norm": 1e9} | settings))
        return Updater(
            model, section, total_steps=total_steps, temperature=temperature, max_response_length=50, critic=critic
        )

    return make


@pytest.fixture(scope="session")
def make_critic() -> Callable[..., Critic]:
    """A critic that has learnt something already: its weights are random."""

    def make(model: Any, **settings: Any) -> Critic:
        critic = Critic(model, CriticSection(**settings))
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            critic.weight.copy_(8 * torch.randn(critic.weight.shape, generator=generator))
            critic.bias.fill_(0.1)
        return critic

    return make


@pytest.fixture(scope="session")
def fill_columns() -> Callable[..., TokenBatch]:
    """The batch with columns filled by a `ColumnFiller`, old log-probs recomputed."""

    def fill(model: Any, batch: TokenBatch, *needs: str, temperature: float = 1.0, **parts: Any) -> TokenBatch:
        settings = {"max_tokens_per_microbatch": 10_000, "recompute_old_logprobs": True}
        filler = ColumnFiller(model, temperature=temperature, **settings | parts)
        return batch.with_columns(**filler.columns(batch, frozenset(needs)))

    return fill


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Any], torch.Tensor]:
    """All weights of a model as one vector, copied."""
    return lambda model: torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


@pytest.fixture(scope="session")
def gradient_of() -> Callable[[Any], torch.Tensor]:
    """The gradient that the last update left, as one vector."""
    return lambda model: torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])
