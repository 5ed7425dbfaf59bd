"""The training process of asynchronous runs: ``python -m rllm_local.training_child SOCKET MEMORY``.

Both arguments are file descriptors. The process answers one request after the other, until the other end of the socket
(`training_process`) is closed.
"""

from __future__ import annotations

import gc
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_core.contracts.backend import RunContext, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_local.serialized_plan import SerializedPlan
from rllm_local.settings import LocalConfig
from rllm_local.trainer import Trainer, load_trainer
from rllm_local.weights import copy_weights, shared_weights, trained_weights
from rllm_serving.child_process import end_with_parent
from rllm_serving.connection import PICKLE, serve_blocking

T = TypeVar("T")


class TrainingChild:
    """The trainer in the training process. It copies the weights to shared memory after each change."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._trainer: Trainer | None = None

    def start(self, path: list[str], run: RunContext) -> None:
        """Load the model. `path` is the other process's `sys.path`, which can contain more entries than this one's."""
        sys.path[:] = path
        settings: LocalConfig = run.backend_config
        torch.set_num_threads(settings.local.torch_threads)
        _, self._trainer = load_trainer(run)
        self._trained = trained_weights(self._trainer.masters.model)
        self._shared = shared_weights(self._memory, self._trained)
        copy_weights(self._trained, self._shared)
        # The training loop does the same in its process.
        gc.collect()
        gc.freeze()

    def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        return self._require_trainer().filler.columns(batch, needs)

    def update(self, batch: TokenBatch, sent: SerializedPlan) -> UpdateResult:
        result = self._require_trainer().updater.update(batch, sent.deserialize())
        copy_weights(self._trained, self._shared)
        # The other process has the plan, and the plan's losses cannot be sent.
        return replace(result, made_with=None)

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        return function(self._require_trainer(), *arguments)

    def save(self, directory: Path) -> None:
        self._require_trainer().save(directory)

    def load(self, directory: Path) -> None:
        self._require_trainer().load(directory)
        copy_weights(self._trained, self._shared)

    def _require_trainer(self) -> Trainer:
        assert self._trainer is not None
        return self._trainer

    def answer(self, request: bytes) -> bytes:
        """Return the encoded answer to an encoded request: a value, or an error with its traceback."""
        try:
            name, *arguments = PICKLE.load(request)
            answer = PICKLE.dump((getattr(self, name)(*arguments), None, ""))
        except Exception as error:  # noqa: BLE001  (the other process raises it)
            answer = PICKLE.dump((None, _portable(error), traceback.format_exc()))
        # The other process reads the log when it has the answer.
        sys.stdout.flush()
        sys.stderr.flush()
        return answer


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, otherwise a RuntimeError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (the error's class can come from any package)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def main(connection: int, memory: int) -> None:
    """Answer requests until the other end is closed."""
    end_with_parent()
    serve_blocking(socket.socket(fileno=connection), TrainingChild(memory).answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
