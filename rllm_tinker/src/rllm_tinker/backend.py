"""TinkerBackend: LoRA training and sampling through the Tinker API.

With ``tinker_base_url=local``, the run starts a server process and keeps its standard input open. When the run ends in
any way, this input closes and the server stops.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, CheckpointError, ConfigError
from rllm_core.seeding import derive_seed
from rllm_serving.child_process import ChildProcess
from rllm_serving.listening import EndedError, wait_for_url
from rllm_serving.process_directory import ProcessDirectory
from rllm_tinker.checks import api_key_for, check_url
from rllm_tinker.client import Sampler, Service, Trainer
from rllm_tinker.datums import Rows
from rllm_tinker.engine import TinkerEngine, renderer_setup
from rllm_tinker.health import HttpHealth, ServedModel
from rllm_tinker.settings import LOCAL, TinkerConfig
from rllm_tinker.state import SavedState, check_saved_model, read_state, state_named_by, write_state
from rllm_tinker.update import Updater
from rllm_tinker.waiting import Waiting
from rllm_tinker.weight_comparison import UNKNOWN_LAYERS, TinkerComparison, WeightRoutes

STOPPING = 15.0
"""Seconds that the server gets to stop before it is killed."""
MERGED, SNAPSHOTS, CACHE_GIB = 2, 32, 1.0
"""Defaults of ``rllm tinker serve``: merged versions that are ready for sampling, stored versions, and GiB of cache for
each merged version."""


@dataclass(eq=False)
class LocalServer:
    """A running server."""

    url: str
    api_key: str
    process: ChildProcess
    files: ProcessDirectory
    checkpoints: Path
    """Absolute path of the server's checkpoint directory."""

    @classmethod
    async def start(cls, *, model: str, checkpoints: str, seed: int, longest: float, versions: int = 1) -> LocalServer:
        """Start a server and wait until it listens.

        Args:
            model: `tiny`, a directory or a hub id.
            checkpoints: directory for the run's saved weights.
            seed: the run's seed, which determines the weights of `tiny`.
            longest: time limit in seconds to load the model.
            versions: maximum number of weight versions that sample at the same time.

        Raises:
            BackendError: the server stops or exceeds the time limit.
        """
        files = ProcessDirectory("rllm-tinker-")
        announcement, log = files.path / "address.json", files.path / "server.log"
        # Other users of this machine must not use the server. They could read a key on the command line.
        key = f"tml-{secrets.token_hex(16)}"
        serve = [sys.executable, "-m", "rllm.cli.main", "tinker", "serve"]
        what = ["--model", model, "--checkpoints", checkpoints, "--seed", str(seed)]
        where = ["--port", "0", "--announce", str(announcement), "--end-with-stdin"]
        process = ChildProcess.spawn([*serve, *what, *where, *room_for(versions)], log, {"TINKER_API_KEY": key})
        server = cls("", key, process, files, Path(checkpoints).expanduser().absolute())
        try:
            server.url = await wait_for_url(announcement, server.process, longest)
        except EndedError:
            server.process.kill()  # also kills processes that the server started
            files.keep()
            raise BackendError(
                "process-not-started",
                f"The local Tinker server could not be started. Its log is {log}.",
                "Run it separately to see its full output: `rllm tinker serve --model MODEL`.",
                process.log_tail(),
            ) from None
        except TimeoutError as error:
            tail = process.log_tail()
            await server.stop()
            raise BackendError(
                "process-timeout",
                f"The local Tinker server did not start within {longest:g} s.",
                "Raise tinker_timeout, or set model.name to a model directory on this machine.",
                tail,
            ) from error
        except BaseException:
            await server.stop()
            raise
        return server

    async def problem(self) -> str | None:
        """Return the server's current problem. None if it answers.

        Raises:
            BackendError: the server process has ended.
        """
        if self.process.exit_code is not None:
            raise BackendError(
                "process-died",
                f"The run's local Tinker server has ended. Its log is {self.process.log}.",
                "Run the same command with --resume. It starts a new server and continues from the newest checkpoint.",
                self.process.log_tail(),
            )
        return await HttpHealth(self.url).problem()

    async def stop(self) -> None:
        """Close the server's input, wait, and kill the server if it does not stop.

        Its files are kept only if it had stopped before this call.
        """
        by_itself = self.process.exit_code is not None
        await self.process.end(STOPPING)
        if by_itself:
            self.files.keep()
        else:
            self.files.close()


def room_for(versions: int) -> list[str]:
    """Return server options with which `versions` versions can sample at the same time.

    The caches together keep the size that they have by default.
    """
    merged = max(MERGED, versions)
    caches = ["--kv-cache-gib", str(MERGED * CACHE_GIB / merged)]
    # One snapshot more, because the latest is saved before the last use of the oldest.
    return ["--max-merged", str(merged), "--max-snapshots", str(max(SNAPSHOTS, versions + 1)), *caches]


URL_VARIABLE = "TINKER_BASE_URL"
SERVICE_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The client's default URL."""


class TinkerBackend(Backend):
    """A session with the service, with the LoRA model in training and samplers for its latest weights."""

    def __init__(self) -> None:
        self._server: LocalServer | None = None
        self._service: Service | None = None
        self._engine: TinkerEngine | None = None
        self._reference: Sampler | None = None
        self._reference_path: str | None = None
        self._starts_from_base = True
        self._comparison: TinkerComparison | None = None

    async def start(self, run: RunContext) -> TinkerEngine:
        config: TinkerConfig = run.backend_config
        _check_temperature(run)
        self._config, self._run = config, run
        self._named_state = state_named_by(config.model.name)
        self._base_model = self._named_state.base_model if self._named_state else config.model.name
        if self._named_state is not None and config.training.resume_from_tinker_id is not None:
            raise ConfigError(
                "conflicting-keys",
                f"model.name is the checkpoint {config.model.name}, and training.resume_from_tinker_id is "
                f"{config.training.resume_from_tinker_id!r}: both select the weights to start from.",
                "Remove model.name or training.resume_from_tinker_id.",
            )
        url, key = await self._address()
        self._url = LOCAL if self._server is not None else url
        health = self._server or HttpHealth(url, key)
        abilities = await HttpHealth(url, key).wait(config.tinker_connect_timeout)
        waiting = Waiting(health, patience=config.tinker_connect_timeout, longest=config.tinker_timeout)
        self._service = await Service.connect(url, key, waiting)
        self._trainer = await self._first_trainer(self._service)
        # If the hub is unreachable, transformers retries for a minute. So the fast checks run before this line.
        setup = renderer_setup(config, self._base_model)
        renderer = make_renderer(run, setup)
        self._updater = Updater(
            config.training,
            total_steps=run.total_steps,
            max_response_length=run.config.data.max_response_length,
            fused=config.fuse_forward_backward_and_optim_step,
        )
        of_model = await self._service.max_context(self._base_model)
        longest = config.training.max_length
        max_context = longest if of_model is None else min(longest, of_model)
        if "ref_logprobs" in run.needs:
            # The request for a row's reference log-probs also samples one token after the row.
            max_context -= 1
        engine = TinkerEngine(
            renderer,
            max_context=max_context,
            prompts_per_request=abilities.prompts_per_request,
            versions_served=run.versions_served,
        )
        self._engine = engine
        # Without added tokens, because a service may read an image after one of them.
        unknown = ServedModel(layers=UNKNOWN_LAYERS, vocabulary=setup.tokenizer.vocab_size, dtype="bfloat16")
        self._comparison = TinkerComparison(
            lambda: self._trainer,
            engine,
            partial(self._service.sampler, base_model=self._base_model),
            abilities.model or unknown,
            None if abilities.model is None else WeightRoutes(url, key, waiting),
        )
        await self.sync_weights(0)
        return engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        """Return the batch with `old_logprobs` and, if needed, `ref_logprobs`. They are 0 for tokens not sampled.

        The service samples from the weights that it trains, so the sampling log-probs serve as old log-probs. The
        service recomputes them only if the config requires that or if some are unknown.
        """
        rows = Rows.from_batch(batch, np.arange(batch.n_rows))
        columns = {"old_logprobs": batch.sampling_logprobs}
        recompute = self._run.recomputes_old_logprobs
        if recompute or batch.unknown_logprobs.any():
            forward = await self._trainer.forward(rows.datums(weights=batch.loss_mask.astype(np.float32)))
            computed = np.where(batch.loss_mask, rows.column(forward.logprobs), np.float32(0))
            columns["old_logprobs"] = computed if recompute else batch.old_logprobs_from(computed)
        if self._reference is not None and "ref_logprobs" in needs:
            sequences = [batch.tokens[start - 1 : end] for start, end in rows.spans]
            of_rows = await asyncio.gather(*(self._reference.logprobs(tokens) for tokens in sequences))
            column = rows.column([logprobs[1:] for logprobs in of_rows])
            columns["ref_logprobs"] = np.where(batch.loss_mask, column, np.float32(0))
        return batch.with_columns(**columns)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        return await self._updater.update(self._trainer, batch, plan)

    async def sync_weights(self, version: int) -> None:
        engine = self._require_engine()
        engine.sync_weights(await self._trainer.sampler(self._config.rollout_engine.weights), version)

    def weight_comparison(self) -> TinkerComparison | None:
        return self._comparison

    async def save(self, directory: Path) -> None:
        path = await self._trainer.save(_unique_name())
        state = SavedState(
            path=path,
            base_model=self._base_model,
            service=self._url,
            starts_from_base=self._starts_from_base,
            kept_in=None if self._server is None else str(self._server.checkpoints),
            seed=self._run.config.rllm.trainer.seed,
            reference=self._reference_path,
        )
        write_state(directory, state)

    async def load(self, directory: Path) -> None:
        assert self._service is not None
        state = read_state(directory)
        if state.base_model != self._base_model:
            raise CheckpointError(
                "checkpoint-of-other-model",
                f"{directory} belongs to base model {state.base_model!r}, but model.name is {self._base_model!r}.",
                "Resume with the same model.name with which you started the run.",
            )
        try:
            check_saved_model(
                await self._service.saved_model(state.path), state.path, self._config.model, self._base_model
            )
            self._trainer = await self._service.resume(state.path)
        except BackendError as error:
            raise CheckpointError(
                "checkpoint-not-loadable",
                f"The saved state of {directory} cannot be loaded. {error.message}",
                (
                    "The local server stored it. Check its files in "
                    f"training.default_local_dir={self._config.training.default_local_dir}."
                    if state.service == LOCAL
                    else f"{state.service} stored it. Check there if it has expired."
                ),
            ) from error
        self._starts_from_base = state.starts_from_base
        if "ref_logprobs" not in self._run.needs:
            return
        if state.reference is None and not state.starts_from_base:
            raise CheckpointError(
                "checkpoint-lacks-state",
                f"{directory} has no reference model, because its run started from saved weights and did not need one.",
                "Resume with the same rllm.algorithm.kl_beta as before, or start a new run with a different value.",
            )
        await self._refer_to(self._service, state.reference)

    async def close(self) -> None:
        service, self._service = self._service, None
        server, self._server = self._server, None
        try:
            if self._engine is not None:
                await self._engine.close()
            if service is not None:
                await service.close()
        finally:
            if server is not None:
                await server.stop()

    async def _address(self) -> tuple[str, str | None]:
        """Return the service's URL and its API key."""
        base_url = self._config.tinker_base_url
        if base_url == LOCAL:
            checkpoints = self._config.training.default_local_dir
            self._server = await LocalServer.start(
                model=self._base_model,
                checkpoints=checkpoints,
                seed=self._run.config.rllm.trainer.seed,
                longest=self._config.tinker_timeout,
                # The latest weights, and one older version for each rollout batch that can still be running.
                versions=1 + self._run.config.rllm.async_training.staleness,
            )
            return self._server.url, self._server.api_key
        url = base_url or os.environ.get(URL_VARIABLE) or SERVICE_URL
        check_url(url, URL_VARIABLE)
        return url, api_key_for(url)

    async def _first_trainer(self, service: Service) -> Trainer:
        """Return the LoRA model with which the run starts, and create its reference if the run needs one."""
        resume, model = self._config.training.resume_from_tinker_id, self._config.model
        if resume is not None:
            path = resume if resume.startswith("tinker://") else await service.latest_checkpoint(resume)
            check_saved_model(await service.saved_model(path), path, model, self._base_model)
            trainer = await service.resume(path)
        elif self._named_state is not None:
            path = self._named_state.path
            check_saved_model(await service.saved_model(path), path, model, self._base_model)
            trainer = await service.create_from(path)
        else:
            lora = model.model_copy(update={"name": self._base_model})
            trainer = await service.create(lora, derive_seed(self._run.seed, "model"))
        # New LoRA weights do not change the output, so the run then starts from the base model.
        self._starts_from_base = resume is None and self._named_state is None
        if "ref_logprobs" in self._run.needs:
            kept = None if self._starts_from_base else await trainer.save_for_sampling(f"reference-{_unique_name()}")
            await self._refer_to(service, kept)
        return trainer

    async def _refer_to(self, service: Service, path: str | None) -> None:
        self._reference_path = path
        base_model = self._base_model if path is None else None
        self._reference = await service.sampler(path=path, base_model=base_model)

    def _require_engine(self) -> TinkerEngine:
        if self._engine is None:
            raise BackendError("not-started", "The tinker backend is not started.", "Call start() first.")
        return self._engine


def _check_temperature(run: RunContext) -> None:
    """Check that the loss does not compare log-probs at two different temperatures.

    The service trains on log-probs at temperature 1. Rollout log-probs at a different temperature describe a different
    policy.

    Raises:
        ConfigError: the loss would compare the two.
    """
    temperature = run.config.sampling.train.temperature
    if temperature != 1.0 and not run.recomputes_old_logprobs:
        raise ConfigError(
            "bad-sampling-parameter",
            f"sampling.train.temperature is {temperature:g}, but the Tinker API trains on log-probs at temperature 1, "
            "so importance ratios to the rollout's log-probs would be wrong.",
            "Set sampling.train.temperature=1, or set rllm.algorithm.rollout_correction.bypass_mode=false, which "
            "requests the old log-probs from the service.",
        )


def _unique_name() -> str:
    return f"rllm-{uuid.uuid4().hex[:12]}"
