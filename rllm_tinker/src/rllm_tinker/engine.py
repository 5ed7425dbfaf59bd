"""The rollout engine, which sends token ids to the service, and the tokenizer and chat template on this machine."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.model_files import generation_stop_ids, is_only_cached, model_directory, stop_ids
from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.errors import BackendError, ConfigError, RolloutError, did_you_mean
from rllm_core.rollout.prompts import checked_prompt
from rllm_tinker.client import Sampler
from rllm_tinker.exchange import SampledSequence
from rllm_tinker.settings import TinkerConfig


class ServedSamplers:
    """Samplers for the most recently synced versions, one for each version."""

    def __init__(self, *, versions: int) -> None:
        """Start without samplers. `versions` is the maximum number of versions to keep."""
        self._versions = versions
        self._samplers: dict[int, Sampler] = {}

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Serve a version and remove versions that are too old. Running requests keep their sampler."""
        self._samplers[version] = sampler
        for old in [each for each in self._samplers if each <= version - self._versions]:
            del self._samplers[old]

    def find(self, version: int | None) -> tuple[int, Sampler]:
        """Return a version and its sampler. None selects the latest version.

        Raises:
            RolloutError: the version is no longer served.
        """
        found = max(self._samplers) if version is None else version
        if found not in self._samplers:
            served = ", ".join(map(str, sorted(self._samplers)))
            raise RolloutError("weights-gone", f"Weight version {found} is not served. Served versions: {served}.")
        return found, self._samplers[found]


QUIET_TURNS = 3
"""The engine sends the waiting calls after this many event loop iterations without a new call."""


@dataclass(eq=False)
class _Call:
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    version: int
    sampler: Sampler
    """The sampler of `version`. The call uses it to the end, even if new weights are synced."""
    future: asyncio.Future[Completion]

    @property
    def kind(self) -> SamplingParams:
        """The parameters that calls must share to be sent as one request."""
        return replace(self.sampling, seed=0, weight_version=self.version)


class TinkerEngine:
    """A `RolloutEngine` that samples from a service. One version of the weights samples all tokens of a call.

    If the service accepts several prompts in a request, concurrent calls are sent as one request. Otherwise each call
    is a separate request.
    """

    def __init__(
        self, renderer: Renderer, *, max_context: int, prompts_per_request: int, versions_served: int = 1
    ) -> None:
        """Create an engine without weights. Call `sync_weights` before `generate`.

        Args:
            renderer: the model's renderer.
            max_context: maximum number of tokens in a conversation.
            prompts_per_request: number of prompts, each with its own seed, that the service accepts in one request.
            versions_served: the same as `RunContext.versions_served`.
        """
        self.renderer = renderer
        self.max_context = max_context
        self._prompts_per_request = prompts_per_request
        self._samplers = ServedSamplers(versions=versions_served)
        self._waiting: list[_Call] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def latest_sampler(self) -> Sampler:
        """The sampler of the latest weights."""
        _, sampler = self._samplers.find(None)
        return sampler

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Use these weights for new calls that do not request an older served version."""
        self._samplers.sync_weights(sampler, version)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample a completion; see `RolloutEngine.generate`. Without a version, the latest weights are used.

        Raises:
            RolloutError: the version is no longer served, or an error of `RolloutEngine.generate` occurs.
        """
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        version, sampler = self._samplers.find(sampling.weight_version)
        sampling = replace(sampling, max_tokens=room)
        call = _Call(prompt, sampling, version, sampler, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._start(self._send_waiting())
        return await call.future

    async def end_session(self, session: str) -> None:
        """Do nothing. The engine stores nothing for a conversation, and the service manages its own caches."""

    async def close(self) -> None:
        """Cancel all running requests and the calls that wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        calls, self._waiting = self._waiting, []
        for call in calls:
            call.future.cancel()

    async def _send_waiting(self) -> None:
        """Wait until no new calls arrive, then send the waiting calls. Calls of the same kind share a request."""
        quiet = 0
        while quiet < QUIET_TURNS:
            seen = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
        calls, self._waiting = self._waiting, []
        by_kind: dict[SamplingParams, list[_Call]] = defaultdict(list)
        for call in calls:
            by_kind[call.kind].append(call)
        for alike in by_kind.values():
            for start in range(0, len(alike), self._prompts_per_request):
                self._start(self._serve(alike[start : start + self._prompts_per_request]))

    async def _serve(self, calls: Sequence[_Call]) -> None:
        """Request samples for some calls, and set the calls' results."""
        sampler, version = calls[0].sampler, calls[0].version
        _cancel_without_callers(calls)
        prompts, seeds = [call.prompt for call in calls], [call.sampling.seed for call in calls]
        try:
            found = await sampler.sample(prompts, calls[0].sampling, sorted(self.renderer.stop_ids), seeds)
            for call, sequence in zip(calls, found, strict=True):
                if not call.future.done():
                    call.future.set_result(self._completion(sequence, version))
        except Exception as error:  # noqa: BLE001  (the waiting calls must receive the error)
            for call in calls:
                if not call.future.done():
                    call.future.set_exception(error)
        finally:
            for call in calls:
                call.future.cancel()

    def _completion(self, sequence: SampledSequence, version: int) -> Completion:
        tokens, logprobs = sequence.tokens, sequence.logprobs
        if not len(tokens) or tokens.shape != logprobs.shape or not np.isfinite(logprobs).all():
            raise BackendError(
                "logprobs-not-finite",
                f"The service sampled {len(tokens)} tokens with {len(logprobs)} log-probs, of which "
                f"{int(np.isfinite(logprobs).sum())} are finite.",
                "Check the loss of the previous steps, because the model may have diverged.",
            )
        stopped = int(tokens[-1]) in self.renderer.stop_ids
        return Completion(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason="stop" if stopped else "length",
            weight_version=version,
        )

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cancel_without_callers(calls: Sequence[_Call]) -> None:
    """Cancel this request's task when none of its calls is still waiting. The service then stops sampling."""
    task = asyncio.current_task()
    assert task is not None
    waiting = len(calls)

    def decrement_waiting(_: asyncio.Future[Completion]) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            task.cancel()

    for call in calls:
        call.future.add_done_callback(decrement_waiting)


TINY = "tiny"


def renderer_setup(config: TinkerConfig, base_model: str) -> RendererSetup:
    """Return the tokenizer, stop ids and template options for a base model's renderer.

    Raises:
        ConfigError: the tokenizer cannot be loaded, has no chat template, or lacks a template option that is set in the
            configuration.
    """
    name = _inside_checkpoint(config.model.tokenizer or base_model)
    tokenizer = _load(name)
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"The tokenizer {name!r} has no chat template.",
            "Set model.tokenizer to the tokenizer of a chat or instruct model, or to a directory whose "
            "tokenizer_config.json contains a chat template.",
        )
    stops = stop_ids(tokenizer, None if name == TINY else generation_stop_ids(name))
    return RendererSetup(
        name=name,
        tokenizer=tokenizer,
        stop_ids=stops,
        template_options=_template_options(tokenizer, config),
    )


def _inside_checkpoint(name: str) -> str:
    """Return the model's directory if `name` is a checkpoint, as the local server does. Otherwise return `name`."""
    return str(model_directory(Path(name).expanduser()) or name)


def _load(name: str) -> Any:
    if name == TINY:
        return _tiny()
    from transformers import AutoTokenizer

    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise ConfigError(
            "tokenizer-not-found",
            f"The tokenizer directory {name!r} does not exist.",
            "Correct the path in model.tokenizer or model.name.",
        )
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=is_only_cached(name))
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            "tokenizer-not-found",
            f"The tokenizer {name!r} cannot be loaded: {why}.",
            f"{did_you_mean(name, [TINY])} Set model.tokenizer to a directory or a hub id that contains the tokenizer "
            "of model.name.".strip(),
        ) from error


def _tiny() -> Any:
    try:
        from rllm_local.tiny import build_tokenizer
    except ImportError as error:
        raise ConfigError(
            "missing-package",
            "The model `tiny` needs rllm-local, which is not installed.",
            "pip install rllm-local",
        ) from error
    return build_tokenizer()


def _template_options(tokenizer: Any, config: TinkerConfig) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if config.rollout_engine.disable_thinking:
        options |= options_without_thinking(tokenizer)
    effort = config.rollout_engine.reasoning_effort
    if "reasoning_effort" in str(tokenizer.chat_template):
        options["reasoning_effort"] = effort
    elif effort != type(config.rollout_engine)().reasoning_effort:
        raise ConfigError(
            "no-thinking-switch",
            f"rollout_engine.reasoning_effort is {effort!r}, but this model's chat template has no such option.",
            "Remove the key, or use a model whose template reads reasoning_effort.",
        )
    return options
