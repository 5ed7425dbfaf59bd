"""Backends that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.weight_comparison import Probe, TensorDifference, WeightComparison
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_core.errors import RolloutError
from rllm_plugin_kit import BackendContract

from .conftest import later, vary

VOCABULARY = 8
STOP = 0
RATE = 0.1
SHARED_NUMBERS = np.random.default_rng(0)


class Renderer:
    stop_ids = frozenset({STOP})

    def prompt(self, messages: Sequence[Any]) -> Any:
        return np.array([1, 2], np.int32)

    def text(self, token_ids: Any) -> str:
        return "".join(chr(ord("a") + int(token)) for token in token_ids if token != STOP)


class Engine:
    """Every token is drawn from one table of logits, whatever came before."""

    renderer = Renderer()
    max_context = 64

    def __init__(self) -> None:
        self.logits = np.linspace(0.0, 1.0, VOCABULARY)
        self.version = 0

    def logprobs(self, temperature: float = 1.0) -> Any:
        return self.logits / temperature - math.log(np.exp(self.logits / temperature).sum())

    def recorded(self, logprobs: Any, kept: Any) -> Any:
        """(VOCABULARY,) what is recorded of a token; `kept` are the probabilities that it is drawn with."""
        return logprobs

    def check_stop(self, sampling: SamplingParams) -> None:
        if sampling.stop:
            raise RolloutError("made-up", "It cannot stop at texts.")

    def generator(self, sampling: SamplingParams) -> np.random.Generator:
        return np.random.default_rng(sampling.seed)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.check_stop(sampling)
        logprobs, generator = self.logprobs(sampling.temperature), self.generator(sampling)
        order = np.argsort(-logprobs)
        kept = np.zeros(VOCABULARY)
        kept[order[: sampling.top_k if sampling.top_k > 0 else VOCABULARY]] = 1.0
        kept *= np.exp(logprobs)
        kept /= kept.sum()
        before = np.cumsum(kept[order]) - kept[order]
        kept[order[before >= sampling.top_p]] = 0.0
        kept /= kept.sum()
        tokens: list[int] = []
        while len(tokens) < sampling.max_tokens and STOP not in tokens:
            tokens.append(int(generator.choice(VOCABULARY, p=kept)))
        return Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=self.recorded(logprobs, kept)[tokens].astype(np.float32),
            finish_reason="stop" if tokens[-1] == STOP else "length",
            weight_version=self.version,
        )

    async def end_session(self, session: str) -> None:
        pass


class Table(Backend):
    """Trains the table with momentum."""

    engine_class: type[Engine] = Engine
    closed = False

    async def start(self, run: RunContext) -> Any:
        self.engine = self.engine_class()
        self.logits, self.momentum = self.engine.logits.copy(), np.zeros(VOCABULARY)
        return self.engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        computed = np.where(batch.loss_mask, self.engine.logprobs()[batch.tokens], 0).astype(np.float32)
        return batch.with_columns(old_logprobs=batch.old_logprobs_from(computed))

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        assert batch.advantages is not None
        gradient = np.bincount(batch.tokens, batch.advantages * batch.loss_mask, minlength=VOCABULARY)
        self.momentum = 0.9 * self.momentum + gradient
        self.logits = self.logits + RATE * self.momentum
        return UpdateResult(metrics={"actor/loss": float(gradient.sum())})

    async def sync_weights(self, version: int) -> None:
        self.engine.logits, self.engine.version = self.logits.copy(), version

    async def save(self, directory: Path) -> None:
        (directory / "state.json").write_text(json.dumps([self.logits.tolist(), self.momentum.tolist()]))

    async def load(self, directory: Path) -> None:
        self.logits, self.momentum = (np.array(part) for part in json.loads((directory / "state.json").read_text()))


class Retokenizes(Table):
    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        filled = await super().process(batch, needs)
        return replace(filled, tokens=filled.tokens + 1)


class Drifts(Table):
    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        self.logits = self.logits * 0.9
        return await super().update(batch, plan)


class Traces(Table):
    """Names every sampled token once."""

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        result = await super().update(batch, plan)
        return replace(result, trace=self.trace(batch)) if plan.trace else result

    def trace(self, batch: TokenBatch) -> TokenTrace:
        tokens = np.flatnonzero(batch.loss_mask)
        rows = np.searchsorted(batch.row_offsets, tokens, side="right") - 1
        nothing = np.zeros(len(tokens), np.float32)
        return TokenTrace(
            row=rows.astype(np.int32),
            position=(tokens - batch.row_offsets[rows]).astype(np.int32),
            epoch=np.zeros(len(tokens), np.int32),
            optimizer_step=np.zeros(len(tokens), np.int32),
            logprob=batch.sampling_logprobs[tokens],
            entropy=np.full_like(nothing, np.nan),
            weight=nothing,
            clipped=nothing,
            policy_part=nothing,
            kl_part=nothing,
            entropy_part=nothing,
        )


class TracesUnasked(Traces):
    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        return await super().update(batch, replace(plan, trace=True))


class ForgetsTheOptimizer(Table):
    async def load(self, directory: Path) -> None:
        await super().load(directory)
        self.momentum = np.zeros(VOCABULARY)


class ClosesOnce(Table):
    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class TooLong(Engine):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return await super().generate(prompt_ids, replace(sampling, max_tokens=50), session=session)


class NoLogProbs(Engine):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        done = await super().generate(prompt_ids, sampling, session=session)
        return replace(done, logprobs=done.logprobs[:-1])


class ForwardPassOfAnother(Table):
    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        old = (await super().process(batch, needs)).old_logprobs
        assert old is not None
        return batch.with_columns(old_logprobs=(old - 0.01 * batch.loss_mask).astype(np.float32))


class AlwaysStops(Engine):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return replace(await super().generate(prompt_ids, sampling, session=session), finish_reason="stop")


def record(backend: type[Backend], **can: Any) -> BackendPlugin[NoParams]:
    return BackendPlugin(
        name="mine",
        summary="Mine.",
        load=lambda: backend,
        capabilities=Capabilities(**{"custom_losses": True, "columns": frozenset({"old_logprobs"}), **can}),
    )


def traced(backend: type[Backend]) -> BackendPlugin[NoParams]:
    """Return the plugin spec of a backend that declares traces."""
    return record(backend, token_trace=True)


def with_engine(engine: type[Engine] = Engine, **members: Any) -> type[Table]:
    """Return the backend of an engine that differs in these members."""
    return vary(Table, engine_class=vary(engine, **members))


def with_columns(old_logprobs: Callable[[TokenBatch], Any]) -> type[Table]:
    """Return a backend that fills this column."""
    return vary(Table, process=later(lambda _, batch, needs: batch.with_columns(old_logprobs=old_logprobs(batch))))


def with_metrics(loss: Any) -> type[Table]:
    """Return a backend with this metric, which updates nothing."""
    return vary(Table, update=later(lambda *_: UpdateResult(metrics={"actor/loss": loss})))


def with_traces(change: Callable[[TokenTrace], dict[str, Any]]) -> type[Table]:
    """Return a backend whose traces are changed in these columns."""

    def trace(self: Traces, batch: TokenBatch) -> TokenTrace:
        made = Traces.trace(self, batch)
        return replace(made, **change(made))

    return vary(Traces, trace=trace)


TracesPrompts = with_traces(lambda trace: {"position": trace.position - 1})
TracesOneToken = with_traces(lambda trace: {"row": trace.row * 0, "position": trace.position * 0 + trace.position[0]})
AfterTruncation = with_engine(
    recorded=lambda self, logprobs, kept: np.log(kept, where=kept > 0, out=np.zeros(VOCABULARY))
)
UnknownAfterTruncation = with_engine(
    recorded=lambda self, logprobs, kept: logprobs if kept.all() else np.full_like(logprobs, np.nan)
)


@pytest.fixture
def find_complaint(complaint: Any, tmp_path: Path) -> Any:
    """What a test of the contract says of a backend that has just been started."""

    def run(plugin: BackendPlugin[Any], test: str) -> str:
        contract = type("TestRecord", (BackendContract,), {"record": lambda self: plugin})()
        try:
            session = contract.start({})
        except AssertionError as error:
            return str(error)
        try:
            said: str = complaint(BackendContract, plugin, test, given={"session": session, "tmp_path": tmp_path})
            return said
        finally:
            if not session.closed:
                session.close()

    return run


class Compares(WeightComparison):
    """Compares the tables of a backend."""

    vocabulary, max_context, layers, dtype = VOCABULARY, 64, 1, "float32"

    def __init__(self, backend: Table) -> None:
        self._backend = backend

    async def of_trainer(self, probe: Probe) -> Any:
        trained = self._backend.logits - math.log(np.exp(self._backend.logits).sum())
        return trained[probe.tokens[:, probe.prompt :]].ravel().astype(np.float32)

    async def of_samplers(self, probe: Probe) -> Any:
        return {"engine": self._backend.engine.logprobs()[probe.tokens[:, probe.prompt :]].ravel().astype(np.float32)}

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Any:
        return []


def with_comparison(**methods: Any) -> type[Table]:
    """Return a backend whose comparison of weights has these methods."""
    return vary(Table, weight_comparison=lambda self: vary(Compares, **methods)(self))


SCORES = "weight_comparison_scores_the_current_weights"
TRACES = "tokens_are_traced_only_on_request"


def test_engine_that_ignores_stop_texts_fails(find_complaint: Any) -> None:
    ignoring, test = with_engine(check_stop=lambda *_: None), "stop_text_ends_a_response_or_is_rejected"
    first, second = find_complaint(record(ignoring), test), find_complaint(record(ignoring, stop_texts=True), test)
    assert "stop text" in first
    assert second not in ("", first)


SAMPLES = "it_samples_tokens_with_their_log_probs"
BEFORE = "log_probs_are_computed_before_truncation"
UNKNOWN = "missing_sampler_log_probs_are_recomputed"
FUNCTION = "tokens_depend_only_on_prompt_and_seed"
FILLS = "declared_columns_are_filled"
RESUMED = "a_saved_run_continues_exactly"


@pytest.mark.parametrize(
    ("backend", "test", "message"),
    [
        (vary(Table, start=later(lambda *_: 1 / 0)), SAMPLES, "ZeroDivisionError"),
        (with_engine(TooLong), SAMPLES, "`max_tokens`"),
        (with_engine(NoLogProbs), SAMPLES, "Return one finite"),
        (AfterTruncation, BEFORE, "1.6324"),
        (with_engine(recorded=lambda self, *_: self.logprobs()), "temperature_divides_logits", "at temperature 2"),
        (with_engine(AlwaysStops), SAMPLES, "'stop'"),
        (with_engine(generator=lambda *_: SHARED_NUMBERS), FUNCTION, "SamplingParams.seed"),
        (with_engine(generator=lambda *_: np.random.default_rng(0)), FUNCTION, "SamplingParams.seed"),
        (vary(Table, process=later(lambda _, batch, needs: batch)), FILLS, "'old_logprobs'"),
        (with_columns(lambda batch: -batch.sampling_logprobs), FILLS, "'old_logprobs'"),
        (with_columns(lambda batch: np.nan_to_num(batch.sampling_logprobs)), UNKNOWN, "returns old log-probs"),
        (UnknownAfterTruncation, BEFORE, "full_logprobs"),
        (Retokenizes, FILLS, "`batch.with_columns(…)`"),
        (Drifts, "an_update_without_advantages_changes_nothing", "samples differently after"),
        (
            vary(Table, sync_weights=later(lambda self, version: setattr(self.engine, "version", version))),
            "updates_change",
            "samples exactly as",
        ),
        (with_metrics(float("nan")), "updates_change_sampled_tokens", "'actor/loss'"),
        (with_metrics(3), "updates_change_sampled_tokens", "'actor/loss'"),
        (vary(Table, update=later(lambda *_: {})), "updates_change_sampled_tokens", "contracts.backend.UpdateResult"),
        (TracesUnasked, TRACES, "`plan.trace`"),
        (
            vary(Table, sync_weights=later(lambda self, version: setattr(self.engine, "logits", self.logits.copy()))),
            "completions_have",
            "Completion.weight_version",
        ),
        (vary(Table, save=later(lambda *_: None), load=later(lambda *_: None)), RESUMED, "samples differently once"),
        (ForgetsTheOptimizer, RESUMED, "different update"),
        (with_comparison(of_trainer=later(lambda *_: np.zeros(6, np.float32))), SCORES, "for the trainer"),
        (
            with_comparison(of_samplers=later(lambda _, probe: {"old": np.full(probe.n_scores, -2, np.float32)})),
            SCORES,
            "for old",
        ),
        (with_comparison(of_samplers=later(lambda *_: {})), SCORES, "scores with no sampler"),
        (
            with_comparison(different_tensors=later(lambda *_, is_suspect: [TensorDifference(name="table")])),
            SCORES,
            "that table of engine has",
        ),
        (
            vary(Table, save=later(lambda self, directory: (directory / "state.pkl").write_bytes(b"\x80\x04N."))),
            RESUMED,
            "state.pkl",
        ),
        (vary(Table, close=later(lambda self: self.engine.logits)), "close_before_start_works", "cannot be closed"),
        (ClosesOnce, "close_twice_works", "RuntimeError"),
        (ForwardPassOfAnother, BEFORE, "0.0100"),
        (traced(Table), TRACES, "rllm_core.data.record.TokenTrace"),
        (traced(TracesPrompts), TRACES, "traces no token"),
        (traced(with_traces(lambda trace: {"row": trace.row + 1})), TRACES, "traces no token"),
        (
            traced(
                with_traces(lambda trace: {"row": trace.row * 0, "position": trace.position * 0 + trace.position[0]})
            ),
            TRACES,
            "traces a token",
        ),
        (traced(with_traces(lambda trace: {"kl_part": trace.kl_part + np.inf})), TRACES, "traces numbers that"),
    ],
)
def test_contract_reports_the_mistake(find_complaint: Any, backend: Any, test: str, message: str) -> None:
    plugin = backend if isinstance(backend, BackendPlugin) else record(backend)
    assert message in find_complaint(plugin, test)


def test_correct_weight_comparison_passes(find_complaint: Any) -> None:
    assert find_complaint(record(with_comparison()), SCORES) == ""


def test_traces_are_only_needed_if_declared(find_complaint: Any) -> None:
    assert find_complaint(record(TracesPrompts), TRACES) == ""
    assert find_complaint(record(Traces, token_trace=True), TRACES) == ""


@pytest.mark.parametrize(
    ("can", "message"),
    [({"columns": frozenset({"old_logprobs", "valeus"})}, "'valeus'"), ({"columns": frozenset()}, "Every run needs")],
)
def test_what_it_can_do_must_exist(complaint: Any, can: dict[str, Any], message: str) -> None:
    assert message in complaint(BackendContract, record(Table, **can), "declared_capabilities_exist")


def test_backend_may_declare_log_probs_after_truncation(find_complaint: Any) -> None:
    assert find_complaint(record(UnknownAfterTruncation, full_logprobs=False), BEFORE) == ""
    assert find_complaint(record(Table, full_logprobs=False), BEFORE) == ""
    assert "before top-k and" in find_complaint(record(AfterTruncation, full_logprobs=False), BEFORE)


def test_a_backend_runs_a_loss_that_it_names(find_complaint: Any) -> None:
    named = record(Table, custom_losses=False, losses=frozenset({"a_loss_of_its_own", "ppo"}))
    assert find_complaint(named, "updates_change_sampled_tokens") == ""
    nothing = record(Table, custom_losses=False)
    assert "runs no loss" in find_complaint(nothing, "updates_change_sampled_tokens")
