"""The training process of a server: ``python -m rllm_tinker_server.host_child SOCKET``.

The argument is a file descriptor. The process answers one request after the other, until the other end of the socket
(`host_process`) is closed.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from rllm_local.model import load_model
from rllm_local.settings import TrainedModelSection
from rllm_serving.connection import serve_blocking
from rllm_serving.methods import answer_call
from rllm_serving.parent import end_with_parent
from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import Factors
from rllm_tinker_server.messages import LoraSpec


class HostChild:
    """The methods of a `Host` that `host_process.HostProcess` calls."""

    def start(
        self, path: list[str], threads: int, section: TrainedModelSection, seed: int, settings: Mapping[str, Any]
    ) -> None:
        """Load the model. `path` is the other process's `sys.path`, which can contain more entries than this one's."""
        sys.path[:] = path
        torch.set_num_threads(threads)
        host = Host(load_model(section, seed), **settings)
        self.create, self.release = host.create, host.release
        self.forward_backward, self.optim_step = host.forward_backward, host.optim_step
        self._host = host

    def save_state(self, model_id: str, directory: Any, optimizer: bool) -> None:
        self._host.save_state(model_id, directory, optimizer=optimizer)

    def load_state(self, model_id: str, directory: Any, optimizer: bool) -> None:
        self._host.load_state(model_id, directory, optimizer=optimizer)

    def weights(self, model_id: str) -> tuple[LoraSpec, dict[str, Factors]]:
        """Return the fields of `AdapterWeights`, which cannot be pickled."""
        found = self._host.weights(model_id)
        return found.spec, dict(found.factors)


def main(connection: int) -> None:
    """Answer requests until the other end is closed."""
    end_with_parent()
    serve_blocking(socket.socket(fileno=connection), partial(answer_call, HostChild()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
