"""Rollout engines: token ids in, sampled token ids and their log-probs out.

A backend samples with an engine of its own, or hosts one that is chosen by name: a `HostedEngine`, which has a copy of
the weights and is given new ones as the backend trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin
from rllm_core.data.version_spans import VersionSpan, check_version_spans

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from rllm_core.contracts.renderer import Renderer


NamedTensors = Iterable[tuple[str, "Tensor"]]
"""Weights by their names in a Hugging Face checkpoint of the model."""
FinishReason = Literal["stop", "length"]
OnTokens = Callable[["NDArray[np.int32]"], None]
"""Called with sampled tokens, (n,) int32, that follow those of the call before."""
Overlap = Literal["fixed", "latest"]
"""Under which weights an engine samples while the weights are updated; see `Capabilities.overlap`."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample. `top_k` of -1 and `top_p` of 1 leave the distribution as it is; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    """Sampled tokens are a function of the weights, the prompt and this seed, whatever else is in the batch."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply; the tokens that complete one are its last. Engines without `stop_texts` refuse them.
    A single text in place of a tuple, or an empty one, is a ValueError."""
    json_schema: str | None = None
    """JSON schema, as JSON text, of a reply that must be JSON; thoughts may precede it. Log-probs are the values before
    the grammar removes tokens. Engines that cannot constrain a reply raise `UnsupportedSamplingError`."""
    top_logprobs: int = 0
    """How many of the likeliest tokens `Completion.top` names at each place. Engines that cannot raise
    `UnsupportedSamplingError`."""
    weight_version: int | None = None
    """The version of the weights that samples, one of those that are served (`RunContext.versions_served`); None: the
    newest at each token, or at the begin of the call; see `Capabilities.overlap`."""
    round: int | None = None
    """Which round of training asks, from 0; None: none does, as in a validation. It changes nothing that is sampled."""
    on_tokens: OnTokens | None = field(default=None, compare=False, repr=False)
    """Receives tokens of the reply while it is sampled, on the event loop of the caller. An engine that cannot report
    them ignores it, and may also report only the first tokens: `Completion.token_ids` has all of them."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop is {self.stop!r}; give a tuple of texts that are not empty")

    def with_seed(self, seed: int) -> SamplingParams:
        """The same with another seed; quicker than `dataclasses.replace`, for it is done for every model call."""
        made = object.__new__(SamplingParams)
        made.__dict__.update(self.__dict__, seed=seed)
        return made


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The likeliest tokens at each place of a completion, likeliest first."""

    ids: NDArray[np.int32]
    """(n, k) token ids."""
    logprobs: NDArray[np.float32]
    """(n, k) as `Completion.logprobs`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Completion:
    """What the model sampled after one prompt.

    Raises:
        ValueError: `version_spans` do not cover the tokens, or `weight_version` is not the oldest of them.
    """

    token_ids: NDArray[np.int32]
    """(n,) includes the stop token when `finish_reason` is ``stop``."""
    logprobs: NDArray[np.float32]
    """(n,) log-probs under softmax(logits / temperature), before top-p, top-k and any grammar; under softmax(logits) at
    temperature 0. NaN where the engine cannot tell them: the trainer then computes them."""
    finish_reason: FinishReason
    weight_version: int
    """Number of the policy update whose weights sampled these tokens; the oldest, where there were several."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Runs of tokens by weight version, in order. Empty: all tokens are of `weight_version`."""
    top: TopTokens | None = None
    """None if `SamplingParams.top_logprobs` is 0."""

    def __post_init__(self) -> None:
        check_version_spans(self.version_spans, len(self.token_ids), self.weight_version)


class RolloutEngine(Protocol):
    """Serves many conversations at once."""

    @property
    def renderer(self) -> Renderer:
        """Turns messages into tokens and tokens into text, for this model."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and response together, that one conversation can hold."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Continue the prompt. Calls with the same `session` share their cached prefix.

        Raises `RolloutError` when the prompt leaves no room for a token in `max_context`.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Free what is cached for a conversation. Unknown names are fine."""
        ...


class EngineWrapper:
    """A rollout engine in front of another engine. A subclass overrides `generate` and calls the inner engine there.

    `Observer.wrap_engine` may return one.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self.inner = engine

    @property
    def renderer(self) -> Renderer:
        """The inner engine's renderer."""
        return self.inner.renderer

    @property
    def max_context(self) -> int:
        """The inner engine's limit."""
        return self.inner.max_context

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Ask the inner engine."""
        return await self.inner.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        """Free what the inner engine caches for a conversation."""
        await self.inner.end_session(session)


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSetup:
    """What a backend tells the engine that it hosts: its model, and how much of it at a time."""

    directory: Path
    """A Hugging Face folder with configuration and tokenizer, and without weights. Gone once `start` has returned."""
    renderer: Renderer
    """The engine's `renderer` from here on; its stop ids end a reply."""
    max_context: int
    """Most tokens of one conversation that this run needs; the engine may have room for fewer."""
    max_concurrency: int
    """Most conversations sampled at a time."""
    kv_cache_bytes: int
    """Memory for cached keys and values."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the weights that it will be given."""


class HostedEngine(RolloutEngine, Protocol):
    """A rollout engine with weights of its own, in a backend that trains the model.

    The backend calls `start`, `load_weights` (before anything is sampled, and after every update) and `close`, never
    two of them at once. Each ends in bounded time.
    """

    async def start(self, setup: EngineSetup) -> None:
        """Get ready to sample; weights follow.

        Raises:
            BackendError: it cannot run here, or takes too long.
        """
        ...

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        """Sample with these weights from here on, all of the model's, and forget what was cached under others.

        Completions say `version`. One that was begun before says the older of the versions that sampled its tokens,
        and may tell them apart by `Completion.version_spans`.

        Raises:
            BackendError: they are not this model's, or the engine fails or takes too long. It is of no use then.
        """
        ...

    async def close(self) -> None:
        """Release processes, memory and connections. Fine after a failure of any other method, and twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnginePlugin(Plugin[ParamsT]):
    """Offers a rollout engine to backends that can host one. Chosen by ``rllm.rollout.engine``.

    `load` returns a factory that takes the options; making an engine starts nothing. A package that `load` cannot
    import ends the run before the model is loaded.
    """

    kind: ClassVar[str] = "engine"

    load: Callable[[], Callable[[Any], HostedEngine]]
    full_logprobs: bool = True
    """As `Capabilities.full_logprobs`."""
    stop_texts: bool = False
    """As `Capabilities.stop_texts`."""
    overlap: frozenset[Overlap] = frozenset()
    """As `Capabilities.overlap`."""
