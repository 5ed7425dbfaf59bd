"""Sampling from the base model and from adapters: a `LocalEngine` for each set of weights, all on one thread."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.seeding import derive_seed
from rllm_local.engine import LocalEngine
from rllm_local.request import Stops, stop_rule
from rllm_tinker_server.examples import check_ids
from rllm_tinker_server.fair_gate import FairGate
from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import AdapterWeights
from rllm_tinker_server.merged_models import MergedModels
from rllm_tinker_server.messages import RequestRefused, Sampled, SampleSettings, Scores, ScoreSettings


class Samplers:
    """Samplers of all sets of weights. They work on the executor and belong to one event loop."""

    def __init__(
        self, host: Host, executor: Executor, *, kv_cache_bytes: int, max_concurrency: int, max_merged: int
    ) -> None:
        """Start with no adapter merged.

        Args:
            host: of the base model.
            executor: of one thread. It may be another one than that which `host` trains on.
            kv_cache_bytes: for cached keys and values, of each set of weights that is being sampled from.
            max_concurrency: most sequences of one set of weights in a forward pass.
            max_merged: most sets of weights in memory, one copy of the adapted layers each.
        """
        self._host = host
        self._executor = executor
        self._names = (str(number) for number in itertools.count())
        self._sequences = FairGate(max_concurrency, spare=max_concurrency)
        self._scores = FairGate(1)
        renderer = TemplateRenderer(host.tokenizer, host.stop_ids)

        def make_engine(model: Any) -> LocalEngine:
            return LocalEngine(
                model,
                renderer,
                executor,
                max_context=host.base.max_context,
                max_concurrency=max_concurrency,
                kv_cache_bytes=kv_cache_bytes,
            )

        self.models = MergedModels(host.merged, make_engine, executor, limit=max_merged, turn=max_concurrency)

    async def sample(
        self,
        weights: AdapterWeights | None,
        prompts: Sequence[NDArray[np.int32]],
        settings: SampleSettings,
        *,
        client: str = "",
    ) -> list[Sampled]:
        """Continue every prompt once; several samples of one are several times the same prompt.

        Every sequence is drawn with its own seed where there is one for each. Else sequence 0 is drawn with the seed
        that was asked for, and each other one with a seed derived from it.

        Args:
            weights: None: the base model.
            prompts: (n,) tokens each, which fit into the context. `sample_request` checks that.
            settings: valid settings, see `check_settings`. Sampling stops at the end of the context.
            client: name of the client. Sequences of several clients are sampled alternately.

        Raises:
            RequestRefused: a prompt has tokens outside the vocabulary, or the weights are not finite.
            RolloutError: a forward pass failed.
        """
        for prompt in prompts:
            check_ids(prompt, self._host.base.vocabulary, "The prompt")
        stop_ids = self._host.stop_ids if settings.stop_ids is None else settings.stop_ids
        stops = stop_rule(self._text, stop_ids, settings.stop_strings)
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        calls = (
            self._sequence(weights, prompt, _params(settings, seed, index), stops, client)
            for index, prompt in enumerate(prompts)
        )
        # All of them end before an error is raised.
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [_delivered(result) for result in results]

    async def score(
        self,
        weights: AdapterWeights | None,
        given: NDArray[np.int32],
        settings: ScoreSettings | None = None,
        *,
        client: str = "",
    ) -> Scores:
        """Return the model's predictions for tokens, each after the tokens before it.

        Args:
            weights: adapter weights. None means the base model.
            given: (n,) tokens.
            settings: predictions to return. None means only the log-probs of the tokens.
            client: name of the client. Requests of several clients are computed alternately.

        Raises:
            RequestRefused: the request has tokens outside the vocabulary.
        """
        settings = settings or ScoreSettings()
        check_ids(given, self._host.base.vocabulary, "The prompt")
        if settings.targets is not None:
            check_ids(settings.targets[settings.targets != -1], self._host.base.vocabulary, "target_prompt_logprobs")
        async with self._scores.enter(client), self.models.use(weights, client) as sampler:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._host.score, sampler.model, given, settings
            )

    def forget(self, weights: AdapterWeights) -> None:
        """These weights will not be sampled from any more."""
        self.models.forget(weights)

    async def _sequence(
        self,
        weights: AdapterWeights | None,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        stops: Stops,
        client: str,
    ) -> Sampled:
        session = next(self._names)
        async with self._sequences.enter(client), self.models.use(weights, client) as sampler:
            engine = sampler.engine
            try:
                completion = await engine.generate(prompt, params, session=session, stops=stops, client=client)
            finally:
                await engine.end_session(session)
        return Sampled(tokens=completion.token_ids, logprobs=completion.logprobs, stop_reason=completion.finish_reason)

    def _text(self, tokens: list[int]) -> str:
        tokenizer = self._host.tokenizer
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _params(settings: SampleSettings, seed: int, index: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=_seed(settings, seed, index),
    )


def _seed(settings: SampleSettings, seed: int, index: int) -> int:
    if settings.seeds:
        return settings.seeds[index]
    return derive_seed(seed, "sequence", index) if index else seed


def _delivered(result: Sampled | BaseException) -> Sampled:
    if isinstance(result, RolloutError) and isinstance(result.__cause__, FloatingPointError):
        raise RequestRefused(
            "These weights make logits that are not finite: training has diverged. Sample from an earlier snapshot, "
            "and lower the learning rate."
        ) from result
    if isinstance(result, BaseException):
        raise result
    return result
