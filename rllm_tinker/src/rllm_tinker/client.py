"""The Tinker client behind our types: the one module of the backend that imports `tinker`.

Every wait has a deadline, and every failure becomes a `BackendError`. The client itself would try a server that is gone
for minutes, and polls for ever for a result that never comes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

# The client reports to its service by default, and for that looks at every call.
os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import BackendError
from rllm_tinker.exchange import Adam, Datum, Gradient, SampledSequence, SavedModel
from rllm_tinker.seeds import seed_of_request
from rllm_tinker.settings import ModelSection
from rllm_tinker.waiting import Waiting

logger = logging.getLogger("rllm_tinker")
# The client logs what it also raises, and what it raises is told as an error of ours. Handlers of the user hear it.
logging.getLogger("tinker").addHandler(logging.NullHandler())

LOSS = "loss:sum"
CLOSING = 5.0
"""Seconds that a service has to end the session."""
GONE = 0.5
"""As much for one that does not answer; the client must have begun, or it would not clean up."""


T = TypeVar("T")
Asked: TypeAlias = Coroutine[Any, Any, T]
"""The answer to a request that has been sent."""
CustomLoss = Callable[[Sequence[Any]], Any]
"""Takes the log-probs of every datum's targets, torch tensors (n,) with gradient; returns a loss tensor of shape ()."""


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
        """Continue every prompt with its seed, which counts instead of that in `sampling`.

        More than one only where the service takes that; see `rllm_tinker.seeds`.
        """
        settings = tinker.SamplingParams(
            max_tokens=sampling.max_tokens,
            seed=seed_of_request(seeds),
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
                "The service sampled without log-probs, which training needs.",
                "Use another server.",
            )
        return [
            SampledSequence(
                tokens=np.asarray(sequence.tokens, np.int32), logprobs=np.asarray(sequence.logprobs, np.float32)
            )
            for sequence in sequences
        ]

    async def logprobs(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """(n,) log-probs of a sequence's tokens; 0 for the first, which follows nothing."""
        found = await self._waiting.for_result(self._client.compute_logprobs(_model_input(tokens)), "Log-probs")
        return np.array([0.0 if value is None else value for value in found], np.float32)


class Trainer:
    """One LoRA model that is being trained."""

    def __init__(self, client: tinker.TrainingClient, waiting: Waiting) -> None:
        self._client = client
        self._waiting = waiting

    async def forward(self, data: Sequence[Datum]) -> Gradient:
        """Log-probs of all targets; leaves the gradient alone."""
        future = self._client.forward(_data(data), "cross_entropy")
        return _gradient(await self._waiting.for_result(future, "The forward pass"))

    def forward_backward(self, data: Sequence[Datum], loss: Any, config: Mapping[str, float]) -> Asked[Gradient]:
        """Add the gradient of one of the service's own losses. Submitted at once; await for the result."""
        future = self._client.forward_backward(_data(data), loss, dict(config) or None)
        return self._gradient_of(future)

    def forward_backward_custom(self, data: Sequence[Datum], loss: CustomLoss) -> Asked[Gradient]:
        """Add the gradient of a loss that is computed here. Submitted at once; await for the result."""

        def with_metrics(_: list[tinker.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
            return loss(logprobs), {}

        future = self._client.forward_backward_custom(_data(data), with_metrics)
        return self._gradient_of(future)

    def optim_step(self, step: Adam) -> Asked[dict[str, float]]:
        """Make an optimiser step of the gradient so far. Submitted at once; await for its metrics."""
        future = self._client.optim_step(tinker.AdamParams(**vars(step)))

        async def result() -> dict[str, float]:
            return dict((await self._waiting.for_result(future, "The optimiser step")).metrics or {})

        return result()

    async def sampler(self, kind: Literal["snapshot", "inflight"]) -> Sampler:
        """Samples from the weights as they are now; `inflight` goes on with newer ones."""
        future = self._client.save_weights_and_get_sampling_client(kind=kind)
        return Sampler(await self._waiting.for_result(future, "Publishing weights"), self._waiting)

    async def save(self, name: str) -> str:
        """Keep weights and optimiser state on the service; returns where."""
        return str((await self._waiting.for_result(self._client.save_state(name), "Saving")).path)

    async def save_for_sampling(self, name: str) -> str:
        """Keep weights for sampling on the service; returns where."""
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
        """Open a session; without a key the client looks for one where `tinker auth login` put it.

        Raises:
            BackendError: the service does not answer in time, or does not accept the key.
        """
        client = tinker.ServiceClient(base_url=base_url, api_key=api_key)
        given_up = threading.Event()

        def open_session() -> None:
            # The first look at `holder` asks the service for its settings and a session, and blocks.
            _ = client.holder
            if given_up.is_set():
                client.close("errored")

        try:
            await waiting.for_thread(open_session, "Opening a session")
        except BaseException:
            given_up.set()
            raise
        # Whatever fails on the client's loop is told by a result, or is of one that nobody wants any more.
        client.holder.get_loop().set_exception_handler(_note)
        return cls(client, base_url, api_key, waiting)

    async def create(self, model: ModelSection, seed: int) -> Trainer:
        """A LoRA model with fresh weights; `seed` is cut to 31 bits."""
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
        """A LoRA model with the weights and the optimiser state that `Trainer.save` kept."""
        future = self._client.create_training_client_from_state_with_optimizer(path)
        return Trainer(await self._waiting.for_result(future, f"Taking up {path}"), self._waiting)

    async def create_from(self, path: str) -> Trainer:
        """A LoRA model with the weights that `Trainer.save` kept, and a fresh optimiser."""
        future = self._client.create_training_client_from_state(path)
        return Trainer(await self._waiting.for_result(future, f"Taking up {path}"), self._waiting)

    async def sampler(self, *, path: str | None = None, base_model: str | None = None) -> Sampler:
        """Samples from weights that `Trainer.save_for_sampling` kept, or from a base model."""
        future = self._client.create_sampling_client(model_path=path, base_model=base_model)
        return Sampler(await self._waiting.for_result(future, "Opening a sampler"), self._waiting)

    async def max_context(self, base_model: str) -> int | None:
        """Most tokens that the service takes of a prompt and its reply; None where it does not say."""
        rest = await self._rest_client()
        found = await self._waiting.for_result(rest.get_server_capabilities(), "Asking what the service can do")
        limits = {model.model_name: model.max_context_length for model in found.supported_models}
        return limits.get(base_model)

    async def saved_model(self, path: str) -> SavedModel:
        """What a path of `Trainer.save` holds."""
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
        """Path of the newest state that was saved of a training run."""
        rest = await self._rest_client()
        run = await self._waiting.for_result(rest.get_training_run(training_run), f"Looking up {training_run}")
        found = run.last_checkpoint
        if found is None:
            raise BackendError(
                "no-checkpoint", f"Training run {training_run!r} has no checkpoint.", "Name another one."
            )
        return str(found.tinker_path)

    async def _rest_client(self) -> tinker.RestClient:
        """What asks without a session. Making one blocks; the client keeps its connection for the process."""
        return await self._waiting.for_thread(
            lambda: tinker.RestClient(base_url=self._base_url, api_key=self._api_key), "Connecting"
        )

    async def close(self) -> None:
        """End the session and what the client runs for it; a service that does not answer is left alone."""
        ended = self._client.close("success").future()
        try:
            seconds = GONE if await self._waiting.is_gone() else CLOSING
            await asyncio.wait_for(asyncio.wrap_future(ended), seconds)
        except Exception as error:  # noqa: BLE001  (the run is over, and may have failed for the same reason)
            logger.info("the session was not ended: %s", error)


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
            "Use another version of the server.",
        )
    return Gradient(
        logprobs=[np.asarray(one["logprobs"].data, np.float32) for one in output.loss_fn_outputs],
        loss=float(output.metrics[LOSS]),
    )
