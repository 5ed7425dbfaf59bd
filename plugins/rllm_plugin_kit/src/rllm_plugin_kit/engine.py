"""The contract of rollout engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.engine import Completion, EnginePlugin, HostedEngine, SamplingParams
from rllm_core.contracts.weight_comparison import ScoringEngine
from rllm_core.errors import BackendError, RolloutError
from rllm_plugin_kit.engine_session import EngineSession, Request
from rllm_plugin_kit.process_state import RANDOM_NUMBERS, THREADS, find_changed_state, find_changes, read_process_state
from rllm_plugin_kit.scores import is_score_of, make_probe
from rllm_plugin_kit.small_model import STOP_ID, SmallModel
from rllm_plugin_kit.started import StartedContract

SAME = 1e-3
"""Maximum difference between equal log-probs: kernels sum in different orders."""
MAX_TOKENS = 24
PROMPT = (7, 8, 9, 10, 11)
TRUNCATIONS: tuple[Mapping[str, Any], ...] = ({"top_k": 3}, {"top_p": 0.4}, {"top_k": 8, "top_p": 0.6})
SAMPLINGS: tuple[Mapping[str, Any], ...] = ({}, {"temperature": 0.7}, {"temperature": 0.0}, *TRUNCATIONS)


class EngineContract(StartedContract[EnginePlugin[Any], EngineSession]):
    """Contract of every rollout engine. The tests load a small Llama and compare the engine with transformers.

    They start the engine once for each mapping in `options`, and a few more times. They need torch and transformers.
    """

    kind = "engine"

    def start(self, options: Mapping[str, Any]) -> EngineSession:
        """Start an engine with these options and load weights."""
        params = self.params_from(options)
        with self.explain_errors(
            "cannot be started",
            "It is called with an EngineSetup, and then given all weights of the model, as a generator.",
        ):
            return EngineSession(lambda: self._make_engine(params))

    def test_creation_starts_nothing(self, params: Any) -> None:
        self.load_plugin()
        before = read_process_state()
        engine = self._make_engine(params)
        if THREADS in find_changed_state(before):
            raise self.failure("starts threads when it is made", "Start them in `start`.")
        self._close_twice(engine, "before it was started")

    def test_finish_reason_matches_the_tokens(self, session: EngineSession) -> None:
        for completion in session.generate(*_requests()):
            tokens, logprobs = completion.token_ids, completion.logprobs
            if tokens.dtype != np.int32 or not 1 <= len(tokens) <= MAX_TOKENS:
                raise self.failure(
                    f"sampled {tokens!r}, but the maximum is {MAX_TOKENS} tokens",
                    "Return one to `max_tokens` token ids as int32.",
                )
            if logprobs.shape != tokens.shape or logprobs.dtype != np.float32:
                raise self.failure(
                    f"gave {logprobs!r} as the log-probs of {len(tokens)} tokens",
                    "Return one for every sampled token, as float32.",
                )
            stops = [token == STOP_ID for token in tokens.tolist()]
            if stops != [False] * (len(stops) - 1) + [completion.finish_reason == "stop"]:
                raise self.failure(
                    f"reports {completion.finish_reason!r} for tokens that end with {tokens[-3:].tolist()}, but the "
                    f"stop token is {STOP_ID}",
                    "A response includes the first of the renderer's `stop_ids` and ends there. The reason "
                    "is then 'stop', and otherwise 'length'.",
                )

    @pytest.mark.parametrize("how", SAMPLINGS, ids=str)
    def test_log_probs_match_the_model(self, session: EngineSession, how: Mapping[str, Any]) -> None:
        """Under softmax(logits / temperature), before top-p and top-k; NaN only if the plugin spec declares it."""
        requests = _requests(**how)
        for request, completion in zip(requests, session.generate(*requests), strict=True):
            unknown = np.isnan(completion.logprobs)
            if unknown.any() and (self.plugin.full_logprobs or how not in TRUNCATIONS):
                raise self.failure(
                    f"reports no log-probs (NaN) with {how or 'no truncation'}, but does not declare it",
                    "Set full_logprobs=False in its plugin spec, which permits it if top-p or top-k truncate.",
                )
            self._check_logprobs(session.model, request, completion, f"with {how or 'the defaults'}")

    @pytest.mark.parametrize("how", [{"temperature": 0.0}, *TRUNCATIONS[:1]], ids=str)
    def test_greedy_and_top_k_sample_likeliest_tokens(self, session: EngineSession, how: Mapping[str, Any]) -> None:
        """The likeliest at temperature 0, one of the first k with top-k."""
        kept = how.get("top_k", 1)
        for request, completion in zip(_requests(**how), session.generate(*_requests(**how)), strict=True):
            tokens = completion.token_ids.tolist()
            logits = session.model.logits(request.prompt, tokens)
            least = np.sort(logits, axis=1)[:, -kept]
            if (logits[np.arange(len(tokens)), tokens] < least - SAME).any():
                raise self.failure(
                    f"samples tokens with {dict(how)} that are not among the {kept} likeliest",
                    "top-k keeps that many; temperature 0 takes the likeliest.",
                )

    def test_tokens_depend_only_on_prompt_and_seed(self, session: EngineSession) -> None:
        requests = _requests()
        together = [each.token_ids.tolist() for each in session.generate(*requests)]
        separate = [each.token_ids.tolist() for request in requests[:4] for each in session.generate(_rename(request))]
        backwards = [each.token_ids.tolist() for each in session.generate(*map(_rename, requests[::-1]))][::-1]
        if separate != together[:4] or backwards != together:
            raise self.failure(
                "samples other tokens from the same prompt and seed when other requests are served with it",
                "Draw every token with the request's seed and the number of the token, never from a shared generator.",
            )
        if len(set(map(tuple, together))) < len(requests) // 2:
            raise self.failure("samples the same tokens with different seeds", "Use `sampling.seed`.")

    def test_each_turn_sees_the_whole_conversation(self, session: EngineSession) -> None:
        """Each turn extends what the engine may have cached; the last one has rewritten its history."""
        prompt: Sequence[int] = PROMPT
        for turn in range(3):
            request = Request(prompt, SamplingParams(max_tokens=8, seed=turn), "turns")
            (completion,) = session.generate(request)
            self._check_logprobs(session.model, request, completion, f"in turn {turn} of a conversation")
            prompt = [*prompt, *completion.token_ids.tolist(), 12, 13]
        rewritten = Request([*PROMPT, 20, 21, 22], SamplingParams(max_tokens=8, seed=3), "turns")
        (completion,) = session.generate(rewritten)
        self._check_logprobs(session.model, rewritten, completion, "where the history was rewritten")
        session.end(rewritten)

    def test_scores_and_digests_are_the_models(self, session: EngineSession) -> None:
        if not isinstance(session.engine, ScoringEngine):
            pytest.skip("it has no scores and digests")
        response = np.array([20, 21, 22, 23], np.int32)
        logits = session.model.logits(PROMPT, response.tolist())
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = logprobs[np.arange(len(response)), response].astype(np.float32)
        weights = {
            name: sha256(tensor.contiguous().numpy().data).hexdigest()
            for name, tensor in session.model.weights().items()
        }
        for replica, scores in session.ask(session.engine.score(make_probe(PROMPT, response))).items():
            if not is_score_of(scores, expected, SAME):
                raise self.failure(
                    f"scores the tokens {response.tolist()} with {scores!r}, and the model with {expected!r}",
                    "Return the log-prob of each token after the prompt, at temperature 1, with the current weights.",
                )
            for name, digest in session.ask(session.engine.digests(replica)).items():
                if digest != weights.get(name, digest):
                    raise self.failure(
                        f"returns {digest!r} as the digest of {name}, which should be {weights[name]!r}",
                        "Hash the tensor with its name and its shape in a checkpoint, in `EngineSetup.dtype`.",
                    )

    def test_any_session_can_be_ended(self, session: EngineSession) -> None:
        """Ending an unknown session or ending a session twice works. An ended session can start again."""
        request = Request(PROMPT, SamplingParams(max_tokens=8, seed=1), "ended")
        with self.explain_errors("fails where a session is ended", "Unknown names are fine."):
            session.end(request)
            (first,) = session.generate(request)
            session.end(request, request)
            (again,) = session.generate(request)
        if first.token_ids.tolist() != again.token_ids.tolist():
            raise self.failure("samples different tokens after a session was ended", "Clear the cache of the session.")

    def test_full_context_ends_a_response_or_is_rejected(self, session: EngineSession) -> None:
        room = session.engine.max_context
        last = Request([7] * (room - 1), SamplingParams(max_tokens=9), "last")
        (completion,) = session.generate(last)
        if len(completion.token_ids) != 1:
            raise self.failure(
                f"samples {len(completion.token_ids)} tokens where its context of {room} has room for one",
                "Sample as many as there is room for.",
            )
        full = Request([7] * room, SamplingParams(max_tokens=9), "full")
        try:
            session.generate(full)
        except RolloutError:
            pass
        except Exception as error:
            raise self._no_room(f"fails with {type(error).__name__}") from error
        else:
            raise self._no_room("samples")
        session.generate(last)
        session.end(last, full)

    def test_stop_text_ends_a_response_or_is_rejected(self, session: EngineSession) -> None:
        """The tokens that complete the text are its last; those before it do not change."""
        text_of = session.engine.renderer.text
        requests = _requests()
        whole = [text_of(completion.token_ids) for completion in session.generate(*requests)]
        text = max(whole, key=len)[2:4]
        stopping = [_rename(each)._replace(sampling=replace(each.sampling, stop=(text,))) for each in requests]
        if not self.plugin.stop_texts:
            try:
                session.generate(stopping[0])
            except RolloutError:
                return
            raise self.failure(
                "ignores a stop text, but does not declare it",
                "rllm_core.rollout.prompts.checked_prompt refuses it; or end there, and set stop_texts=True.",
            )
        for before, completion in zip(whole, session.generate(*stopping), strict=True):
            self._check_stop(text, before, completion, text_of)

    def test_a_cancelled_request_does_not_change_others(self, session: EngineSession) -> None:
        requests = _requests()

        async def give_up_on_some() -> list[Completion]:
            calls = [asyncio.ensure_future(session.call(request)) for request in map(_rename, requests)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            return [each for each in done[1::2] if isinstance(each, Completion)]

        expected = [each.token_ids.tolist() for each in session.generate(*requests)[1::2]]
        if [each.token_ids.tolist() for each in session.ask(give_up_on_some())] != expected:
            raise self.failure(
                "samples different tokens when other requests are cancelled", "Drop only those requests."
            )

    def test_new_weights_are_used_for_sampling(self, session: EngineSession) -> None:
        """Samples report the new version, use no cache of old weights, and do not depend on the caller's tensors."""
        request = Request(PROMPT, SamplingParams(max_tokens=MAX_TOKENS, seed=5), "kept")
        (before,) = session.generate(request)
        old, version = session.model, session.version
        session.load(SmallModel(1), version + 1)
        (after,) = session.generate(request)
        self._check_logprobs(session.model, request, after, "after new weights were loaded")
        session.load(old, version + 2)
        (again,) = session.generate(request)
        versions = [each.weight_version for each in (before, after, again)]
        if versions != [version, version + 1, version + 2]:
            raise self.failure(
                f"reports {versions} for completions that were sampled with versions {version} to {version + 2}",
                "`weight_version` is the version of the last `load_weights` before the completion began.",
            )
        if again.token_ids.tolist() != before.token_ids.tolist():
            raise self.failure(
                "samples different tokens after the earlier weights are loaded again",
                "Replace all weights, and clear the caches.",
            )
        session.end(request)

    def test_weight_version_is_correct_during_a_sync(self, session: EngineSession) -> None:
        """A response with the new version has only tokens from the new weights. Version spans match the weights."""
        old, new, version = session.model, SmallModel(1), session.version
        requests = [_rename(request) for request in _requests(max_tokens=100)]
        weights = new.weights()

        async def change_meanwhile() -> list[Completion]:
            calls = [asyncio.ensure_future(session.call(request)) for request in requests]
            await asyncio.sleep(0)
            await session.engine.load_weights(weights.items(), version + 1)
            return await asyncio.gather(*calls)

        completions = session.ask(change_meanwhile())
        session.load(old, version + 2)
        for request, completion in zip(requests, completions, strict=True):
            if completion.weight_version not in (version, version + 1):
                raise self.failure(
                    f"reports version {completion.weight_version}, but versions {version} and {version + 1} sampled it",
                    "The version of a response is the oldest version that sampled one of its tokens.",
                )
            models = {version: old, version + 1: new}
            for said, part in _parts(completion, version):
                self._check_logprobs(
                    models[said], request, completion, "in a response during which weights changed", part
                )

    def test_weights_of_a_different_model_are_rejected(self, params: Any) -> None:
        session = EngineSession(lambda: self._make_engine(params))
        try:
            strange = {f"strange.{name}": tensor for name, tensor in session.model.weights().items()}
            session.ask(session.engine.load_weights(strange.items(), 1))
        except BackendError:
            return
        except Exception as error:
            raise self._strange_weights(f"fails with {type(error).__name__}") from error
        finally:
            session.close()
        raise self._strange_weights("takes them")

    def test_close_twice_works(self, session: EngineSession) -> None:
        """No thread or process of the engine runs afterwards."""
        with self.explain_errors("fails when it is closed twice", "The second call does nothing."):
            session.close()
        different = find_changed_state(session.before)
        if different and RANDOM_NUMBERS.issuperset(different):
            different = find_changes(lambda: self._live(session.start_copy()))
        if different:
            raise self.failure(
                f"leaves {', '.join(different)} changed",
                "Release the resources of `start` in `close`, and restore everything else.",
            )

    def _live(self, session: EngineSession) -> None:
        try:
            session.generate(*_requests())
        finally:
            session.close()

    def _make_engine(self, params: Any) -> HostedEngine:
        engine: HostedEngine = self.make(params, called_with="the options")
        return engine

    def _close_twice(self, engine: HostedEngine, when: str) -> None:
        async def close_twice() -> None:
            await engine.close()
            await engine.close()

        with self.explain_errors(f"cannot be closed {when}", "`close` works at any time, and twice."):
            asyncio.run(close_twice())

    def _check_logprobs(
        self, model: SmallModel, request: Request, completion: Completion, where: str, part: slice = slice(None)
    ) -> None:
        """Check the log-probs of all tokens, or of a part of them."""
        expected = model.logprobs(request.prompt, completion.token_ids.tolist(), request.sampling)[part]
        given = completion.logprobs[part]
        off = float(np.abs(given - expected)[~np.isnan(given)].max(initial=0.0))
        if not off <= SAME:
            raise self.failure(
                f"gives log-probs {where} that are up to {off:.4f} from the model's",
                "Report each sampled token under softmax(logits / temperature) of the latest weights, given the "
                "whole prompt, before top-p and top-k; under softmax(logits) at temperature 0.",
            )

    def _no_room(self, what: str) -> AssertionError:
        return self.failure(
            f"{what} if the prompt leaves no room for a token",
            "Raise RolloutError: rllm_core.rollout.prompts.checked_prompt does.",
        )

    def _strange_weights(self, what: str) -> AssertionError:
        return self.failure(
            f"{what} when it is given weights of a different model", "Compare the names, and raise BackendError."
        )


def _requests(**sampling: Any) -> list[Request]:
    """Prompts of different lengths, each with a few seeds."""
    return [
        Request(
            PROMPT[: 2 + number % 4],
            SamplingParams(**{"max_tokens": MAX_TOKENS, "seed": 2**62 + number, **sampling}),
            f"session-{number}",
        )
        for number in range(12)
    ]


def _parts(completion: Completion, oldest: int) -> list[tuple[int, slice]]:
    """Return weight versions and the tokens that they certainly sampled, in a response that began with `oldest`."""
    if not completion.version_spans:
        # Without spans, only the first token certainly comes from the oldest weights.
        known = slice(None) if completion.weight_version > oldest else slice(1)
        return [(completion.weight_version, known)]
    ends = list(accumulate(span.tokens for span in completion.version_spans))
    starts = [0, *ends[:-1]]
    return [
        (span.version, slice(start, end))
        for span, start, end in zip(completion.version_spans, starts, ends, strict=True)
    ]


def _rename(request: Request) -> Request:
    return request._replace(session=f"{request.session}-again")
