"""The Tinker client with rllm's types. No other module of the backend imports `tinker`.

Every wait has a time limit, and every failure becomes a `BackendError`. The client itself retries an unreachable server
for minutes, and polls indefinitely for a missing result.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

# By default the client records every call and sends telemetry to its service.
os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import BackendError
from rllm_serving.tinker_additions import pack_seeds
from rllm_tinker.exchange import Adam, Datum, Gradient, SampledSequence, SavedModel
from rllm_tinker.settings import ModelSection
from rllm_tinker.waiting import Waiting

logger = logging.getLogger("rllm_tinker")
# The client also logs every error that it raises, and rllm reports these errors itself. So the log records are not
# printed, but the user's log handlers still receive them.
logging.getLogger("tinker").addHandler(logging.NullHandler())

LOSS = "loss:sum"
CLOSING = 5.0
"""Time limit in seconds for the service to close the session."""
GONE = 0.5
"""The same limit for a service that does not answer. It is above 0 because the client must start its cleanup."""


T = TypeVar("T")
PendingResult: TypeAlias = Coroutine[Any, Any, T]
"""The awaitable result of a request that is already sent."""
CustomLoss = Callable[[Sequence[Any]], Any]
"""Takes the log-probs of each datum's targets, torch tensors (n,) with gradient, and returns a loss of shape ()."""


class Sampler:
    """Samples from one set of weights."""

    def __init__(self, client: tinker.SamplingClient, waiting: Waiting) -> None:
        self._client = client
        self._waiting = waiting

    async def sample(
        self,
        prompts: Sequence[NDArray[np.int32]],
        sampling: SamplingParams,
        stop_ids: Sequence[int],
        seeds: Sequence[int],
    ) -> list[SampledSequence]:
        """Continue each prompt with its own seed. The seed in `sampling` is ignored.

        Pass more than one prompt only if the service supports that; see `rllm_serving.tinker_additions`.
        """
        settings = tinker.SamplingParams(
            max_tokens=sampling.max_tokens,
            seed=pack_seeds(seeds),
            stop=list(stop_ids),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        future = self._client.sample(_model_input(*prompts), len(prompts), settings)
        sequences = (await self._waiting.for_result(future, "Sampling")).sequences
        if any(sequence.logprobs is None for sequence in sequences):
            raise BackendError(
                "missing-logprobs",
                "The service returned samples without log-probs, but training needs them.",
                "Set tinker_base_url to a server that returns log-probs.",
            )
        return [
            SampledSequence(
                tokens=np.asarray(sequence.tokens, np.int32), logprobs=np.asarray(sequence.logprobs, np.float32)
            )
            for sequence in sequences
        ]

    async def logprobs(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the log-probs of a sequence's tokens, (n,). The first token has no prefix and gets 0."""
        found = await self._waiting.for_result(self._client.compute_logprobs(_model_input(tokens)), "Log-probs")
        return np.array([0.0 if value is None else value for value in found], np.float32)

    @property
    def id(self) -> str:
        """The service's id of the sampler."""
        handle = json.loads(base64.urlsafe_b64decode(self._client.get_sampler_handle()))
        return str(handle["sampling_session_id"])


class Trainer:
    """One LoRA model in training."""

    def __init__(self, client: tinker.TrainingClient, waiting: Waiting) -> None:
        self._client = client
        self._waiting = waiting

    @property
    def id(self) -> str:
        """The service's id of the model."""
        return str(self._client.model_id)

    async def forward(self, data: Sequence[Datum]) -> Gradient:
        """Return the log-probs of all targets. The gradient does not change."""
        future = self._client.forward(_data(data), "cross_entropy")
        return _gradient(await self._waiting.for_result(future, "The forward pass"))

    def forward_backward(
        self, data: Sequence[Datum], loss: Any, config: Mapping[str, float]
    ) -> PendingResult[Gradient]:
        """Add the gradient of one of the service's own losses. The request is sent at once; await the result."""
        future = self._client.forward_backward(_data(data), loss, dict(config) or None)
        return self._gradient_of(future)

    def forward_backward_custom(self, data: Sequence[Datum], loss: CustomLoss) -> PendingResult[Gradient]:
        """Add the gradient of a loss that rllm computes. The request is sent at once; await the result."""

        def with_metrics(_: list[tinker.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
            return loss(logprobs), {}

        future = self._client.forward_backward_custom(_data(data), with_metrics)
        return self._gradient_of(future)

    def optim_step(self, step: Adam) -> PendingResult[dict[str, float]]:
        """Make an optimizer step with the accumulated gradient. The request is sent at once; await its metrics."""
        future = self._client.optim_step(tinker.AdamParams(**vars(step)))

        async def result() -> dict[str, float]:
            return dict((await self._waiting.for_result(future, "The optimizer step")).metrics or {})

        return result()

    async def sampler(self, kind: Literal["snapshot", "inflight"]) -> Sampler:
        """Return a sampler for the current weights. With `inflight` it later switches to newer weights."""
        future = self._client.save_weights_and_get_sampling_client(kind=kind)
        return Sampler(await self._waiting.for_result(future, "Syncing weights"), self._waiting)

    async def save(self, name: str) -> str:
        """Save weights and optimizer state on the service, and return their path."""
        return str((await self._waiting.for_result(self._client.save_state(name), "Saving")).path)

    async def save_for_sampling(self, name: str) -> str:
        """Save weights for sampling on the service, and return their path."""
        future = self._client.save_weights_for_sampler(name)
        return str((await self._waiting.for_result(future, "Saving weights")).path)

    async def _gradient_of(self, future: Any) -> Gradient:
        return _gradient(await self._waiting.for_result(future, "The forward and backward pass"))


class Service:
    """A connection to a Tinker service."""

    def __init__(self, client: tinker.ServiceClient, base_url: str, api_key: str | None, waiting: Waiting) -> None:
        self._client = client
        self._base_url = base_url
        self._api_key = api_key
        self._waiting = waiting

    @classmethod
    async def connect(cls, base_url: str, api_key: str | None, waiting: Waiting) -> Service:
        """Open a session. Without a key, the client uses the key that `tinker auth login` stored.

        Raises:
            BackendError: the service does not answer in time, or does not accept the key.
        """
        client = tinker.ServiceClient(base_url=base_url, api_key=api_key)
        given_up = threading.Event()

        def open_session() -> None:
            # The first access to `holder` blocks, because it requests settings and a session from the service.
            _ = client.holder
            if given_up.is_set():
                client.close("errored")

        try:
            await waiting.for_thread(open_session, "Opening a session")
        except BaseException:
            given_up.set()
            raise
        # Errors on the client's loop are returned in the result. Errors of cancelled requests are ignored.
        client.holder.get_loop().set_exception_handler(_note)
        return cls(client, base_url, api_key, waiting)

    async def create(self, model: ModelSection, seed: int) -> Trainer:
        """Create a LoRA model with new weights. Only the low 31 bits of `seed` are used."""
        future = self._client.create_lora_training_client(
            base_model=model.name,
            rank=model.lora_rank,
            seed=seed & 0x7FFFFFFF,
            train_mlp=model.train_mlp,
            train_attn=model.train_attn,
            train_unembed=model.train_unembed,
        )
        what = f"Creating a LoRA model of {model.name!r}"
        return Trainer(await self._waiting.for_result(future, what), self._waiting)

    async def resume(self, path: str) -> Trainer:
        """Load a LoRA model with the weights and the optimizer state that `Trainer.save` stored."""
        future = self._client.create_training_client_from_state_with_optimizer(path)
        return Trainer(await self._waiting.for_result(future, f"Loading {path}"), self._waiting)

    async def create_from(self, path: str) -> Trainer:
        """Load a LoRA model with the weights that `Trainer.save` stored and a new optimizer state."""
        future = self._client.create_training_client_from_state(path)
        return Trainer(await self._waiting.for_result(future, f"Loading {path}"), self._waiting)

    async def sampler(self, *, path: str | None = None, base_model: str | None = None) -> Sampler:
        """Return a sampler for weights that `Trainer.save_for_sampling` stored, or for a base model."""
        future = self._client.create_sampling_client(model_path=path, base_model=base_model)
        return Sampler(await self._waiting.for_result(future, "Opening a sampler"), self._waiting)

    async def max_context(self, base_model: str) -> int | None:
        """Return the service's maximum number of tokens in a prompt and its response. None if it reports no limit."""
        rest = await self._rest_client()
        found = await self._waiting.for_result(rest.get_server_capabilities(), "Reading the service's capabilities")
        limits = {model.model_name: model.max_context_length for model in found.supported_models}
        return limits.get(base_model)

    async def saved_model(self, path: str) -> SavedModel:
        """Return the properties of a model that `Trainer.save` stored."""
        rest = await self._rest_client()
        found = await self._waiting.for_result(rest.get_weights_info_by_tinker_path(path), f"Looking up {path}")
        return SavedModel(
            base_model=found.base_model,
            lora_rank=found.lora_rank,
            train_unembed=found.train_unembed,
            train_attn=found.train_attn,
            train_mlp=found.train_mlp,
        )

    async def latest_checkpoint(self, training_run: str) -> str:
        """Return the path of a training run's newest checkpoint."""
        rest = await self._rest_client()
        run = await self._waiting.for_result(rest.get_training_run(training_run), f"Looking up {training_run}")
        found = run.last_checkpoint
        if found is None:
            raise BackendError(
                "no-checkpoint",
                f"Training run {training_run!r} has no checkpoint.",
                "Set training.resume_from_tinker_id to a training run with a checkpoint.",
            )
        return str(found.tinker_path)

    async def _rest_client(self) -> tinker.RestClient:
        """Return a client for requests without a session. Its constructor blocks, so it runs in a thread.

        The client keeps one connection for the whole process.
        """
        return await self._waiting.for_thread(
            lambda: tinker.RestClient(base_url=self._base_url, api_key=self._api_key), "Connecting"
        )

    async def close(self) -> None:
        """Close the session and the client's tasks for it. If the service does not answer, do not wait for it."""
        ended = self._client.close("success").future()
        try:
            seconds = GONE if await self._waiting.is_gone() else CLOSING
            await asyncio.wait_for(asyncio.wrap_future(ended), seconds)
        except Exception as error:  # noqa: BLE001  (the run is over, and may have failed for the same reason)
            logger.info("the session was not closed: %s", error)


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.info("in the client: %s", context.get("exception") or context["message"])


def _model_input(*chunks: NDArray[np.int32]) -> tinker.ModelInput:
    return tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=chunk.tolist()) for chunk in chunks])


def _data(data: Sequence[Datum]) -> list[tinker.Datum]:
    return [
        tinker.Datum(
            model_input=_model_input(datum.tokens),
            loss_fn_inputs={"target_tokens": datum.targets.astype(np.int64), **datum.inputs},  # type: ignore[dict-item]
        )
        for datum in data
    ]


def _gradient(output: Any) -> Gradient:
    if LOSS not in output.metrics:
        known = ", ".join(sorted(output.metrics)) or "none"
        raise BackendError(
            "bad-service-answer",
            f"The service returned no metric {LOSS!r} ({known}).",
            "Use a server version that returns this metric.",
        )
    return Gradient(
        logprobs=[np.asarray(one["logprobs"].data, np.float32) for one in output.loss_fn_outputs],
        loss=float(output.metrics[LOSS]),
    )
