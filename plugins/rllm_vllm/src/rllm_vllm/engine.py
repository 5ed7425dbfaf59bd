"""`VllmEngine`: sample with vLLM in separate processes. It sends and receives token ids, never text.

New weights are passed in safetensors files. The files are in memory if there is room, and on disk otherwise.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import BackendError, UnsupportedSamplingError
from rllm_core.rollout.prompts import checked_prompt
from rllm_serving.child_process import ChildProcess
from rllm_serving.connection import PICKLE, Connection
from rllm_serving.process_directory import ProcessDirectory
from rllm_vllm.cpu import SWITCH
from rllm_vllm.messages import (
    Body,
    Digests,
    FailureResponse,
    Generate,
    GenerateResponse,
    LoadWeights,
    Marks,
    Score,
    ScoreResponse,
    Start,
    StartResponse,
    UnsupportedResponse,
)
from rllm_vllm.options import VllmOptions

if TYPE_CHECKING:
    from torch import Tensor

END = 15.0
"""Seconds that vLLM has to stop by itself at the end of a run."""


FIRST_REPLICA = "replica 0"


class VllmEngine:
    """A `HostedEngine` with vLLM. vLLM's prefix cache keeps common prefixes of prompts."""

    renderer: Renderer
    max_context: int

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._files: ProcessDirectory | None = None
        self._process: ServerProcess | None = None

    @property
    def process_group(self) -> int:
        """Id of the process group of vLLM's processes."""
        if self._process is None:
            raise BackendError("not-started", "The engine vllm is not running.", "Call start() first.")
        return self._process.pid

    async def start(self, setup: EngineSetup) -> None:
        """See `HostedEngine.start`. vLLM's weights are random until `load_weights`."""
        self.renderer = setup.renderer
        self._stop_ids = tuple(sorted(setup.renderer.stop_ids))
        self._files = ProcessDirectory("rllm-vllm-")
        self._process = ServerProcess.spawn(self._files.path, self._options.threads)
        await self._process.connect()
        started: StartResponse = await self._process.ask(
            Start(_arguments(setup, self._options), Marks(self._stop_ids, setup.renderer.reasoning_ids)),
            "Starting vLLM",
            within=self._options.start_timeout,
            option="start_timeout",
        )
        self.max_context = started.max_context

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        """See `HostedEngine.load_weights`."""
        with ExitStack() as stack:
            directory = await asyncio.to_thread(stack.enter_context, weight_files(weights))
            await self._running().ask(
                LoadWeights(str(directory), version),
                "Giving vLLM new weights",
                within=self._options.load_timeout,
                option="load_timeout",
            )

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample a response. See `RolloutEngine.generate`.

        Raises:
            BackendError: vLLM fails, ends, or takes too long.
        """
        prompt, room = checked_prompt(prompt_ids, replace(sampling, json_schema=None), self.max_context)
        request = Generate(
            prompt_ids=tuple(prompt.tolist()),
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop_ids=self._stop_ids,
            json_schema=sampling.json_schema,
        )
        sampled: GenerateResponse = await self._running().ask(
            request, "Sampling with vLLM", within=self._options.generate_timeout, option="generate_timeout"
        )
        return Completion(
            token_ids=np.array(sampled.token_ids, np.int32),
            logprobs=np.array(sampled.logprobs, np.float32),
            finish_reason=sampled.finish_reason,
            weight_version=min(span.version for span in sampled.version_spans),
            version_spans=sampled.version_spans,
        )

    async def score(self, probe: Probe) -> dict[str, NDArray[np.float32]]:
        """Return the scores of each data-parallel replica, see `ScoringEngine.score`.

        They are vLLM's log-probs of prompts: the sampler's weights, layers and log-softmax, with the attention of
        prompts. They ignore the prefix cache, so a cache with old weights does not change them.
        """
        scored: ScoreResponse = await self._running().ask(
            Score(tuple(map(tuple, probe.tokens.tolist()))),
            "Scoring tokens with vLLM",
            within=self._options.generate_timeout,
            option="generate_timeout",
        )
        scores = np.array(scored.replicas, np.float32)[:, :, probe.prompt - 1 :]
        return {f"replica {number}": rows.ravel() for number, rows in enumerate(scores)}

    async def digests(self, replica: str) -> Mapping[str, str]:
        """Return the digests of a replica's tensors, see `ScoringEngine.digests`.

        Tensors that are split over GPUs are missing. Empty for all replicas but the first, because vLLM has no call for
        the others.
        """
        if replica != FIRST_REPLICA:
            return {}
        digests: Mapping[str, str] = await self._running().ask(
            Digests(), "Comparing vLLM's weights", within=self._options.load_timeout, option="load_timeout"
        )
        return digests

    async def end_session(self, session: str) -> None:
        """Do nothing. vLLM's cache drops the entries that were not used for the longest time."""

    async def close(self) -> None:
        """See `HostedEngine.close`."""
        if self._process is not None:
            await self._process.close(END)
        if self._files is not None:
            self._files.close()
        self._files = None

    def _running(self) -> ServerProcess:
        if self._process is None or self._files is None:
            raise BackendError("not-started", "The engine vllm is not running.", "Call start() first.")
        return self._process


def _arguments(setup: EngineSetup, options: VllmOptions) -> dict[str, object]:
    """Return the arguments of vLLM's ``AsyncEngineArgs``. `options.OURS` contains the names that are set here."""
    return {
        **options.engine_args,
        "model": str(setup.directory),
        "tokenizer": str(setup.directory),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "load_format": "dummy",
        "dtype": setup.dtype,
        "max_model_len": setup.max_context,
        "max_num_seqs": setup.max_concurrency,
        "kv_cache_memory_bytes": setup.kv_cache_bytes,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": options.enforce_eager,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "rllm_vllm.worker.RllmWorker",
        "disable_log_stats": True,
    }


RESUME = "Continue from the newest checkpoint with --resume."


class ServerProcess:
    """A process of `rllm_vllm.server`, with all processes that it starts."""

    def __init__(self, process: ChildProcess, end: socket.socket) -> None:
        self._process = process
        self._end = end
        self._connection: Connection | None = None

    @classmethod
    def spawn(cls, directory: Path, threads: int) -> ServerProcess:
        """Start a process. Its log is a file in `directory`."""
        ours, theirs = socket.socketpair()
        environment = {
            SWITCH: "1",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with theirs:
            descriptor = theirs.fileno()
            program = [sys.executable, "-m", "rllm_vllm.server", str(descriptor)]
            process = ChildProcess.spawn(program, directory / "vllm.log", environment, [descriptor])
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    async def connect(self) -> None:
        """Connect to the process and start to read its answers."""
        self._connection = await Connection.open(self._end, PICKLE)

    async def ask(self, body: Body, action: str, *, within: float, option: str) -> Any:
        """Return the answer to a request.

        Args:
            body: the request.
            action: its description for errors.
            within: time limit in seconds.
            option: name of the option that sets `within`.

        Raises:
            UnsupportedSamplingError: vLLM cannot constrain the response to the request's JSON schema.
            BackendError: the request failed, the process ended, or the deadline passed.
        """
        assert self._connection is not None
        try:
            answer = await self._connection.ask(body, within)
        except TimeoutError as error:
            raise BackendError(
                "process-timeout",
                f"{action} has taken more than {within:g} s, the engine's option {option}.",
                f"Increase {option}.",
                self._process.log_tail(),
            ) from error
        except EOFError as error:
            raise BackendError(
                "process-died", f"{action}: vLLM's process has ended.", RESUME, self._process.log_tail()
            ) from error
        if isinstance(answer, UnsupportedResponse):
            raise UnsupportedSamplingError(answer.code, answer.message, answer.hint)
        if isinstance(answer, FailureResponse):
            raise BackendError(
                "worker-failed", f"{action} failed: {answer.what.rstrip('.')}.", details=self._process.log_tail()
            )
        return answer

    async def close(self, within: float) -> None:
        """Close the connection, which ends the process. Kill its group after `within` seconds."""
        if self._connection is None:
            self._end.close()
        else:
            await self._connection.close()
        await self._process.end(within)


IN_MEMORY = Path("/dev/shm")
FILE_BYTES = 1 << 29
"""Size at which a file is closed, in bytes. Until then, its tensors are in memory twice."""


@contextmanager
def weight_files(weights: Iterable[tuple[str, Tensor]]) -> Iterator[Path]:
    """Write weights to a directory that exists as long as the context. It blocks, so call it on a thread."""
    named = list(weights)
    size = sum(tensor.nbytes for _, tensor in named)
    with ProcessDirectory("rllm-vllm-", _place(size)) as files:
        directory = files.path
        for number, part in enumerate(_parts(named)):
            _write(part, directory / f"{number:05}.safetensors")
        yield directory


def _place(size: int) -> Path | None:
    """Return the directory in memory if it has room for twice the size. None: use the directory for temporary files."""
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2 * size:
        return IN_MEMORY
    return None


def _parts(named: list[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in named:
        if part and size + tensor.nbytes > FILE_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    if part:
        yield part


def _write(part: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in part.items()}, path)
