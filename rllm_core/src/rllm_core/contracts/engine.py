"""Rollout engines: they take token ids and return sampled token ids with their log-probs.

A backend samples with its own engine, or hosts a `HostedEngine` that the user chooses by name. A hosted engine has its
own copy of the weights. The backend sends it new weights during training.
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
"""Weights, by their names in a Hugging Face checkpoint of the model."""
Dtype = Literal["float32", "bfloat16", "float16"]
"""Type of weights and activations."""
FinishReason = Literal["stop", "length"]
OnTokens = Callable[["NDArray[np.int32]"], None]
"""Called with new sampled tokens, (n,) int32. They follow the tokens of the previous call."""
Overlap = Literal["fixed", "latest"]
"""The weights that an engine samples with during an update; see `Capabilities.overlap`."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling settings. `top_k` of -1 and `top_p` of 1 disable truncation. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    """Sampled tokens depend only on the weights, the prompt and this seed. Other requests in the batch do not affect
    them."""
    stop: tuple[str, ...] = ()
    """Strings that end a response. The tokens that complete such a string are the last tokens of the response. Engines
    without `stop_texts` reject them. A ValueError is raised for a plain string instead of a tuple, and for an empty
    string."""
    json_schema: str | None = None
    """JSON schema, as JSON text, for a response that must be JSON. Reasoning may precede the JSON. Log-probs are the
    values before the grammar removes tokens. Engines that cannot constrain a response raise `UnsupportedSamplingError`.
    """
    top_logprobs: int = 0
    """Number of most likely tokens that `Completion.top` contains for each position. Engines without this feature raise
    `UnsupportedSamplingError`."""
    weight_version: int | None = None
    """The weight version to sample with. It must be a served version (`RunContext.versions_served`). If None, the
    engine uses the latest version, either for each token or at the start of the call; see `Capabilities.overlap`."""
    task_batch: int | None = None
    """Number of the rollout batch that the call belongs to, from 0. None if it belongs to no batch, for example in
    validation. It does not affect the sampled tokens."""
    on_tokens: OnTokens | None = field(default=None, compare=False, repr=False)
    """Receives tokens of the response during sampling, on the caller's event loop. An engine without this feature
    ignores it. An engine may also report only the first tokens, because `Completion.token_ids` has all of them."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop is {self.stop!r}; pass a tuple of non-empty strings")

    def with_seed(self, seed: int) -> SamplingParams:
        """Return the same parameters with a different seed. It is faster than `dataclasses.replace`, because it runs
        for every model call."""
        made = object.__new__(SamplingParams)
        made.__dict__.update(self.__dict__, seed=seed)
        return made


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The likeliest tokens at each place of a completion, likeliest first."""

    ids: NDArray[np.int32]
    """(n, k) token ids."""
    logprobs: NDArray[np.float32]
    """(n, k) log-probs, defined like `Completion.logprobs`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Completion:
    """The tokens that the model sampled for one prompt.

    Raises:
        ValueError: `version_spans` do not cover the tokens, or `weight_version` is not their oldest version.
    """

    token_ids: NDArray[np.int32]
    """(n,) sampled tokens. They include the stop token if `finish_reason` is ``stop``."""
    logprobs: NDArray[np.float32]
    """(n,) log-probs under softmax(logits / temperature), before top-p, top-k and any grammar. At temperature 0 they
    are under softmax(logits). NaN if the engine cannot compute them; the trainer then computes them."""
    finish_reason: FinishReason
    weight_version: int
    """Number of the policy update whose weights sampled these tokens. If there were several versions, the oldest."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Spans of tokens by weight version, in order. If empty, all tokens have the version `weight_version`."""
    top: TopTokens | None = None
    """The most likely tokens. None if `SamplingParams.top_logprobs` is 0."""

    def __post_init__(self) -> None:
        check_version_spans(self.version_spans, len(self.token_ids), self.weight_version)


class RolloutEngine(Protocol):
    """A sampler that serves many conversations concurrently."""

    @property
    def renderer(self) -> Renderer:
        """Converts messages to tokens and tokens to text, for this model."""
        ...

    @property
    def max_context(self) -> int:
        """Maximum number of tokens in one conversation, prompt and response together."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Continue the prompt. Calls with the same `session` share their cached prefix.

        Raises:
            RolloutError: the prompt leaves no room for a token in `max_context`.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Free the cache of a conversation. Unknown names are ignored."""
        ...


class EngineWrapper:
    """A rollout engine that wraps an inner engine. A subclass overrides `generate` and calls the inner engine there.

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
        """Call the inner engine."""
        return await self.inner.generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        """Free the inner engine's cache of a conversation."""
        await self.inner.end_session(session)


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSetup:
    """The model and the limits that a backend gives to the engine that it hosts."""

    directory: Path
    """A Hugging Face directory with the model's configuration and tokenizer, without weights. It is deleted after
    `start` returns."""
    renderer: Renderer
    """The engine's `renderer`. Its stop ids end a response."""
    max_context: int
    """Maximum number of tokens in a conversation of this run. The engine may support fewer."""
    max_concurrency: int
    """Maximum number of conversations that are sampled at the same time."""
    kv_cache_bytes: int
    """Memory for cached keys and values."""
    dtype: Dtype
    """Type of the weights that the engine receives."""


class HostedEngine(RolloutEngine, Protocol):
    """A rollout engine with its own copy of the weights, in a backend that trains the model.

    The backend calls `start`, `load_weights` and `close`, never two of them at once. It calls `load_weights` before the
    first sample and after every update. Each call must end in bounded time.
    """

    async def start(self, setup: EngineSetup) -> None:
        """Prepare to sample. The weights follow with `load_weights`.

        Raises:
            BackendError: the engine cannot run here, or takes too long.
        """
        ...

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        """Replace all weights of the model and clear caches that older weights filled.

        Later completions report `version`. A completion that started before reports the oldest version that sampled its
        tokens. It may list the version of each token in `Completion.version_spans`.

        Raises:
            BackendError: the weights do not fit the model, or the engine fails or takes too long. The engine is then
                unusable.
        """
        ...

    async def close(self) -> None:
        """Release processes, memory and connections. It may be called twice, and after any other method failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnginePlugin(Plugin[ParamsT]):
    """A plugin spec that offers a rollout engine to backends that can host one. Users choose it with
    ``rllm.rollout.engine``.

    `load` returns a factory that takes the options. The factory starts nothing. If `load` cannot import a package, the
    run stops before the model is loaded.

    For example::

        from rllm_core.contracts import EnginePlugin, Params
        from rllm_core.plugins import hookimpl

        class RemoteParams(Params):
            url: str = "http://127.0.0.1:8000"

        class Remote:
            def __init__(self, params):
                self.url = params.url

            async def start(self, setup):
                self.renderer, self.max_context = setup.renderer, setup.max_context

            async def load_weights(self, weights, version):
                raise NotImplementedError("send them there, and forget what is cached")

            async def generate(self, prompt_ids, sampling, *, session):
                raise NotImplementedError("return a Completion here")

            async def end_session(self, session): ...
            async def close(self): ...

        @hookimpl
        def rllm_engines():
            yield EnginePlugin(
                name="remote",
                summary="Samples on another machine.",
                load_params=lambda: RemoteParams,
                load=lambda: Remote,
            )
    """

    kind: ClassVar[str] = "engine"

    load: Callable[[], Callable[[Any], HostedEngine]]
    full_logprobs: bool = True
    """See `Capabilities.full_logprobs`."""
    stop_texts: bool = False
    """See `Capabilities.stop_texts`."""
    overlap: frozenset[Overlap] = frozenset()
    """See `Capabilities.overlap`."""
