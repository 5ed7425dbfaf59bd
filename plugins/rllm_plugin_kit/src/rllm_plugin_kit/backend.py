"""The contract of backends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rllm_core.algorithms.columns import TOKEN_COLUMNS
from rllm_core.contracts.backend import BackendPlugin, RunContext, UpdateResult
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.errors import RllmError, RolloutError, did_you_mean
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit.scores import is_score_of, make_probe
from rllm_plugin_kit.session import MAX_TOKENS, REQUESTS, BackendSession, difference
from rllm_plugin_kit.started import StartedContract
from rllm_plugin_kit.token_traces import trace_problem

SCORES = "scores"
"""The need of a run that trains a reward model, which is no column."""
SAME = 1e-4
"""Maximum difference between equal log-probs: the order of sums depends on the batch size."""
TRUNCATIONS: tuple[Mapping[str, Any], ...] = ({"top_k": 2}, {"top_p": 0.4}, {"top_k": 5, "top_p": 0.6})
TEMPERATURES = (1.0, 0.7)
FIRST_TOKENS = tuple((REQUESTS[0][0], seed) for seed in range(32))
"""One prompt with many seeds: all first tokens come from one distribution."""
PICKLES = frozenset({".pkl", ".pickle", ".pt", ".pth"})


class _RendererOfTheRun(TemplateRenderer):
    """The model's template, as a renderer plugin."""


_OF_THE_RUN: RendererPlugin[Any] = RendererPlugin(
    name="of_the_run",
    summary="The model's template, which differs from the backend's own renderer.",
    load=lambda: lambda setup, params: _RendererOfTheRun(setup.tokenizer, setup.stop_ids, setup.template_options),
)


class BackendContract(StartedContract[BackendPlugin[Any], BackendSession]):
    """Contract of every backend. Set a small model in `options`.

    The tests start the backend once for each mapping in `options`, and once more to load its checkpoint.
    """

    kind = "backend"
    config: ClassVar[Mapping[str, Any]] = {}
    """The core's part of the run's config, such as ``{"data": {"max_response_length": 8}}``."""

    def start(self, options: Mapping[str, Any]) -> BackendSession:
        """A backend that has been started with these options."""
        config = RunConfig.model_validate(self.config)
        run = RunContext(
            config=config,
            backend_config=self.params_from(options),
            seed=0,
            total_steps=100,
            needs=self.plugin.capabilities.columns - {"old_logprobs", SCORES},
            renderer=PluginChoice(
                registered=Registered(plugin=_OF_THE_RUN, distribution="rllm-plugin-kit", version="0"),
                params=NoParams(),
            ),
            overlaps=config.rllm.async_training.staleness > 0,
        )
        loss = self._loss()
        with self.explain_errors(
            "cannot be started", "Correct its `start`, or set an existing model in `options` of the test class."
        ):
            return BackendSession(self.load_plugin(), run, loss)  # type: ignore[arg-type]

    def test_declared_capabilities_exist(self) -> None:
        for column in sorted(self.plugin.capabilities.columns - {*TOKEN_COLUMNS, SCORES}):
            raise self.failure(
                f"declares that it fills {column!r}, which is not a column of a batch",
                f"{did_you_mean(column, TOKEN_COLUMNS)} Columns are {', '.join(TOKEN_COLUMNS[1:])}.",
            )
        if "old_logprobs" not in self.plugin.capabilities.columns:
            raise self.failure(
                "does not declare that it fills 'old_logprobs'", "Every run needs them. Add them to its capabilities."
            )
        if self.plugin.config_yaml is not None and not self.plugin.config_yaml().is_file():
            raise self.failure(
                f"names {self.plugin.config_yaml()}, which does not exist", "Add the YAML file to the package."
            )

    def test_it_samples_tokens_with_their_log_probs(self, session: BackendSession) -> None:
        stops = session.engine.renderer.stop_ids
        for completion in session.sample(REQUESTS):
            tokens, logprobs = completion.token_ids, completion.logprobs
            if not 1 <= len(tokens) <= MAX_TOKENS or tokens.dtype != np.int32:
                raise self.failure(
                    f"sampled {tokens!r}, but the maximum is {MAX_TOKENS} tokens",
                    "Return one to `max_tokens` token ids as int32.",
                )
            if logprobs.shape != tokens.shape or not np.isfinite(logprobs).all() or (logprobs > SAME).any():
                raise self.failure(
                    f"gave {logprobs!r} as the log-probs of {len(tokens)} tokens",
                    "Return one finite log-prob, 0 or less, for every sampled token.",
                )
            if (completion.finish_reason == "stop") != (int(tokens[-1]) in stops):
                raise self.failure(
                    f"reports {completion.finish_reason!r} for a completion that ends with token {int(tokens[-1])}",
                    "The reason is 'stop' when the last token is one of the renderer's `stop_ids`, else 'length'.",
                )

    def test_stop_text_ends_a_response_or_is_rejected(self, session: BackendSession) -> None:
        text_of = session.engine.renderer.text
        whole = [text_of(completion.token_ids) for completion in session.sample(REQUESTS)]
        text = next((text[len(text) // 2] for text in whole if len(text) > 1), "a")
        if not self.plugin.capabilities.stop_texts:
            try:
                session.sample(REQUESTS[:1], stop=(text,))
            except RolloutError:
                return
            raise self.failure(
                "ignores a stop text",
                "Call `rllm_core.rollout.prompts.checked_prompt`, or end the response at the stop text.",
            )
        for before, completion in zip(whole, session.sample(REQUESTS, stop=(text,)), strict=True):
            self._check_stop(text, before, completion, text_of)

    def test_engine_uses_the_configured_renderer(self, session: BackendSession) -> None:
        if "rllm.renderer" not in self.plugin.config_keys:
            pytest.skip("it has its own renderer")
        if not isinstance(session.engine.renderer, _RendererOfTheRun):
            raise self.failure(
                "declares that it reads 'rllm.renderer', but its engine does not use the run's renderer",
                "Make the renderer with `rllm_backend_kit.renderers.make_renderer(run, setup)`.",
            )

    @pytest.mark.parametrize("cut", TRUNCATIONS, ids=str)
    def test_log_probs_are_computed_before_truncation(self, session: BackendSession, cut: Mapping[str, Any]) -> None:
        """The first token has the same log-prob with truncation, without it, and in the trainer with first weights."""
        for temperature in TEMPERATURES:
            free, truncated = (
                session.sample(FIRST_TOKENS, max_tokens=1, temperature=temperature, **each) for each in ({}, cut)
            )
            known = {int(each.token_ids[0]): float(each.logprobs[0]) for each in free}
            for completion in truncated:
                token, logprob = int(completion.token_ids[0]), float(completion.logprobs[0])
                if math.isnan(logprob):
                    self._check_declared_unknown(cut)
                elif abs(known.get(token, logprob) - logprob) > SAME:
                    raise self.failure(
                        f"gave {logprob:.4f} as the log-prob of token {token} with {_words(cut)}, and "
                        f"{known[token]:.4f} without, at temperature {temperature:g}",
                        "Record log-probs under softmax(logits / temperature), before top-k and top-p remove tokens; "
                        "if the engine cannot, report NaN and set full_logprobs=False in its capabilities.",
                    )
        batch = session.batch(**cut)
        old = session.old_logprobs(batch, unknown=batch.loss_mask)
        known_ones = batch.loss_mask & ~batch.unknown_logprobs
        off = np.abs(old - batch.sampling_logprobs)[known_ones].max(initial=0.0)
        if off > SAME:
            raise self.failure(
                f"records log-probs with {_words(cut)} that are up to {off:.4f} from those of its own forward pass",
                "Both are log-probs of the sampled token under softmax(logits / temperature), before truncation.",
            )

    def _check_declared_unknown(self, cut: Mapping[str, Any]) -> None:
        if self.plugin.capabilities.full_logprobs:
            raise self.failure(
                f"reports no log-probs (NaN) with {_words(cut)}, but does not declare it",
                "Set full_logprobs=False in its capabilities, or record log-probs before truncation.",
            )

    def test_temperature_divides_logits(self, session: BackendSession) -> None:
        """Log-probs of two tokens differ by the difference of their logits / temperature."""
        at = {
            temperature: {
                int(each.token_ids[0]): float(each.logprobs[0])
                for each in session.sample(FIRST_TOKENS, max_tokens=1, temperature=temperature)
            }
            for temperature in (1.0, 2.0)
        }
        first, *others = sorted(at[1.0].keys() & at[2.0].keys(), key=lambda token: at[1.0][token])
        for token in others:
            plain, tempered = (at[temperature][token] - at[temperature][first] for temperature in (1.0, 2.0))
            if abs(plain - 2.0 * tempered) > 4 * SAME:
                raise self.failure(
                    f"gives log-probs of tokens {first} and {token} that differ by {plain:.4f} at temperature 1 and by "
                    f"{tempered:.4f} at temperature 2",
                    "Divide the logits by the temperature, and record log-probs of the result.",
                )

    def test_tokens_depend_only_on_prompt_and_seed(self, session: BackendSession) -> None:
        together = session.sample(REQUESTS)
        separate = [session.sample([request])[0] for request in REQUESTS]
        if difference(together, separate) > SAME:
            raise self.failure(
                "samples other tokens for the same prompt and seed when other requests are served with it",
                "Draw every token from a generator of SamplingParams.seed and the token's position.",
            )
        prompt, _ = REQUESTS[0]
        completions = session.sample([(prompt, seed) for seed in range(16)])
        if len({tuple(completion.token_ids.tolist()) for completion in completions}) == 1:
            raise self.failure(
                "samples the same tokens with different seeds", "Pass SamplingParams.seed to the sampler."
            )

    def test_declared_columns_are_filled(self, session: BackendSession) -> None:
        wanted = self.plugin.capabilities.columns - {SCORES}
        batch = session.batch()
        filled = session.ask(session.backend.process(batch, wanted))
        if filled.tokens.tolist() != batch.tokens.tolist() or filled.loss_mask.tolist() != batch.loss_mask.tolist():
            raise self.failure("changes the tokens of a batch in `process`", "Return `batch.with_columns(…)`.")
        for name in sorted(wanted):
            column = getattr(filled, name)
            if column is None or column.shape != batch.tokens.shape:
                found = "nothing" if column is None else f"an array of shape {column.shape}"
                raise self.failure(
                    f"declares the column {name!r}, but `process` filled {found} for {len(batch.tokens)} tokens",
                    "Fill one number per token, or remove the column from its capabilities.",
                )
            numbers = column[batch.loss_mask]
            if not np.isfinite(numbers).all() or (name.endswith("logprobs") and (numbers > SAME).any()):
                raise self.failure(
                    f"fills {name!r} with invalid numbers", "Fill finite numbers. Log-probs must be 0 or less."
                )

    def test_missing_sampler_log_probs_are_recomputed(self, session: BackendSession) -> None:
        batch = session.batch()
        in_first_half = np.repeat(np.arange(batch.n_rows) < batch.n_rows // 2, batch.row_lengths)
        old = session.old_logprobs(batch, unknown=in_first_half & batch.loss_mask)
        if not (np.abs(old - batch.sampling_logprobs)[batch.loss_mask] <= SAME).all():
            raise self.failure(
                "returns old log-probs that differ from its model's for tokens without a sampling log-prob (NaN)",
                "Compute log-probs in `process`, and fill `batch.old_logprobs_from(computed)`.",
            )

    def test_an_update_without_advantages_changes_nothing(self, session: BackendSession) -> None:
        if session.updates:
            pytest.skip("an update has been made; what the optimizer remembers of it may move the weights")
        before = session.sample(REQUESTS)
        self._check_result(session.update(advantage=0.0))
        if difference(before, session.sample(REQUESTS)) > SAME:
            raise self.failure(
                "samples differently after an update in which every advantage was 0",
                "Without entropy bonus and KL term the loss has no gradient. Look for other terms in the loss.",
            )

    def test_updates_change_sampled_tokens(self, session: BackendSession) -> None:
        before = session.sample(REQUESTS)
        for _ in range(3):
            self._check_result(session.update(advantage=1.0))
        if difference(before, session.sample(REQUESTS)) == 0.0:
            raise self.failure(
                "samples exactly as before after three updates and weight syncs",
                "Step the optimizer in `update`. In `sync_weights`, pass on the new weights and clear all caches.",
            )

    def test_tokens_are_traced_only_on_request(self, session: BackendSession) -> None:
        self._check_result(session.update(advantage=1.0))
        if self.plugin.capabilities.token_trace:
            trace = session.update(advantage=1.0, trace=True).trace
            if problem := trace_problem(trace, session.trained):
                raise self.failure(*problem)

    def test_completions_have_the_weight_version(self, session: BackendSession) -> None:
        session.update(advantage=1.0)
        versions = {completion.weight_version for completion in session.sample(REQUESTS)}
        if versions != {session.updates}:
            raise self.failure(
                f"reports weight_version {sorted(versions)} after sync_weights({session.updates})",
                "Set Completion.weight_version to the version that was synced last.",
            )

    def test_weight_comparison_scores_the_current_weights(self, session: BackendSession) -> None:
        comparison = session.backend.weight_comparison()
        if comparison is None:
            pytest.skip("it has no comparison of weights")
        session.update(advantage=1.0)
        (prompt, _), completion = REQUESTS[0], session.sample(REQUESTS[:1])[0]
        probe = make_probe(session.encode(prompt), completion.token_ids)
        samplers = session.ask(comparison.of_samplers(probe))
        scored = {"the trainer": session.ask(comparison.of_trainer(probe)), **samplers}
        for name, scores in scored.items():
            if not is_score_of(scores, completion.logprobs, SAME):
                raise self.failure(
                    f"scores {len(completion.token_ids)} sampled tokens with {scores!r} for {name}, and recorded "
                    f"{completion.logprobs!r}",
                    "Return the log-prob of each token after the prompt, at temperature 1, with the current weights.",
                )
        if not samplers:
            raise self.failure("scores with no sampler", "Return the scores of each sampler in `of_samplers`.")
        for sampler in samplers:
            if different := session.ask(comparison.different_tensors(sampler, is_suspect=True)):
                raise self.failure(
                    f"reports after a weight sync that {different[0].name} of {sampler} has other values",
                    "Compare the tensors in the sampler's type, by the same names.",
                )

    def test_a_saved_run_continues_exactly(self, session: BackendSession, tmp_path: Path) -> None:
        session.update(advantage=1.0)
        session.ask(session.backend.save(tmp_path))
        if pickles := [path.name for path in tmp_path.rglob("*") if path.suffix in PICKLES]:
            raise self.failure(
                f"writes {pickles[0]} into its checkpoint",
                "Write tensors as safetensors and other data as JSON. Do not use pickle.",
            )
        resumed = session.start_copy()
        try:
            resumed.load_checkpoint(tmp_path, session.updates)
            if difference(session.sample(REQUESTS), resumed.sample(REQUESTS)) > SAME:
                raise self.failure(
                    "samples differently once a checkpoint was loaded", "Save all weights, and load all of them."
                )
            for either in (session, resumed):
                either.update(advantage=1.0)
            if difference(session.sample(REQUESTS), resumed.sample(REQUESTS)) > SAME:
                raise self.failure(
                    "makes a different update after a checkpoint was loaded",
                    "Save the optimizer's state and all other state that an update needs.",
                )
        finally:
            resumed.close()

    def test_close_before_start_works(self) -> None:
        make = self.load_plugin()
        with self.explain_errors(
            "cannot be closed before it was started",
            "Release only the resources that exist, because a run that fails to start closes its backend too.",
        ):
            asyncio.run(make().close())

    def test_close_twice_works(self, session: BackendSession) -> None:
        """This is the last test of the class, because a closed backend has no other methods to test."""
        with self.explain_errors("cannot be closed twice", "Release only the resources that still exist."):
            session.close()

    def _check_result(self, result: UpdateResult) -> None:
        """Check the result of an update whose plan does not request a token trace."""
        if not isinstance(result, UpdateResult):
            raise self.failure(
                f"returned {result!r:.80} from `update`", "Return rllm_core.contracts.backend.UpdateResult(metrics=…)."
            )
        for name, value in result.metrics.items():
            if not isinstance(value, float) or not math.isfinite(value):
                raise self.failure(f"gives metric {name!r} the value {value!r}", "Return finite floats from `update`.")
        if result.trace is not None:
            raise self.failure(
                "returns a token trace that was not requested", "Return a token trace only if `plan.trace` is True."
            )

    def _loss(self) -> PluginChoice[LossPlugin[Any]]:
        """Any loss that the backend runs, the plainest first."""
        registry = Registry.load()
        capabilities = self.plugin.capabilities
        named = sorted(capabilities.losses)
        for name in ["importance_sampling"] if capabilities.custom_losses else named:
            try:
                return choose(registry, "loss", name, f"{type(self).__name__}.capabilities")
            except RllmError:
                continue
        raise self.failure(
            f"runs no loss that is installed: {', '.join(named) or 'none is named'}",
            "List losses in its capabilities, or set custom_losses=True.",
        )


def _words(cut: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}={value}" for name, value in cut.items())
