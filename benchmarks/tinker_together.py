"""Throughput of two clients that train their own LoRA models at once, relative to one after the other.

python benchmarks/tinker_together.py           # two lines for each size of batch, about three minutes

First, passes in this process: CPU seconds of the gradients of two models, separately and together. Then the server, a
separate process. Each client is a process with the real client, and its step is a gradient and an optimizer step. Both
arms alternate, and the median of the ratios counts. CPU seconds depend less on other programs of the machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import seconds

os.environ["TINKER_TELEMETRY"] = "0"

SIZES = ((1, 16), (4, 16), (8, 32), (32, 64))
"""Examples of a request, and tokens of each."""
STEPS, ROUNDS = 8, 5
CLIENTS = 2
RANK = 16


def passes(rows: int, length: int) -> str:
    """Return a line of results for the passes of one size, without a server."""
    import torch

    from rllm_local.model import load_model
    from rllm_local.settings import ModelSection
    from rllm_tinker_server.host import Host
    from rllm_tinker_server.messages import Example, ForwardBackward, LoraSpec

    torch.set_num_threads(1)
    host = Host(load_model(ModelSection(), 0), name="tiny", tokenizer="tiny", max_tokens_per_microbatch=4096)
    tokens = np.arange(length) % 32 + 4
    inputs = {"weights": np.ones(length, np.float32)}
    example = Example(tokens=tokens, targets=tokens, inputs=inputs)
    request = ForwardBackward(loss="cross_entropy", config={}, examples=(example,) * rows)
    requests = {f"model-{number}": request for number in range(CLIENTS)}
    for model_id in requests:
        host.create(model_id, LoraSpec(rank=RANK))

    def separately() -> None:
        for model_id in requests:
            host.forward_backward(model_id, request)

    separate, together = seconds([separately, lambda: host.forward_backward_together(requests)], 40)
    return (
        f"{rows} x {length} tokens, passes: {1000 * separate:.1f} ms of CPU separately, {1000 * together:.1f} ms "
        f"together, ratio {separate / together:.2f}"
    )


class Client:
    """A process that trains a model when it is told to."""

    def __init__(self, url: str, key: str) -> None:
        program = [sys.executable, str(Path(__file__)), url, key]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, rows: int, length: int, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows} {length} {steps}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "done"

    def close(self) -> None:
        self._process.communicate(timeout=60)


def measure(clients: Sequence[Client], process: int, rows: int, length: int) -> str:
    """Return a line of results for one size."""
    taken, cpu = [], []
    for number in range(ROUNDS + 1):
        took = []
        for together in (False, True):
            before, start = cpu_seconds(process), time.perf_counter()
            for client in clients:
                client.start(rows, length, STEPS if number else 2)
                if not together:
                    client.wait()
            if together:
                for client in clients:
                    client.wait()
            took.append((time.perf_counter() - start, cpu_seconds(process) - before))
        if number:
            (separate, separate_cpu), (at_once, at_once_cpu) = took
            taken.append((separate, at_once))
            cpu.append((separate_cpu, at_once_cpu))
    ratios = sorted(separate / at_once for separate, at_once in taken)
    cpu_ratio = sum(each for each, _ in cpu) / sum(each for _, each in cpu)
    typical = statistics.median(at_once for _, at_once in taken)
    return (
        f"{rows} x {length} tokens, server: throughput at once / one after the other {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}), CPU seconds of the server one after the other / at once "
        f"{cpu_ratio:.2f}; {1000 * typical / STEPS / CLIENTS:.1f} ms a step at once"
    )


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process and its children so far."""
    total = time.clock_gettime(~process << 3 | 2)
    for task in Path(f"/proc/{process}/task").iterdir():
        total += sum(cpu_seconds(int(child)) for child in (task / "children").read_text().split())
    return total


def train(url: str, key: str) -> None:
    """Make steps for each line of standard input."""
    # This directory contains a file with the client's name.
    sys.path.append(sys.path.pop(0))
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=url, api_key=key)
    trainer = service.create_lora_training_client(base_model="tiny", rank=RANK).result()
    for line in sys.stdin:
        rows, length, steps = map(int, line.split())
        tokens = [4 + position % 32 for position in range(length + 1)]
        inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": [1.0] * length}
        datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        for _ in range(steps):
            gradient = trainer.forward_backward([datum] * rows, "cross_entropy")
            step = trainer.optim_step(types.AdamParams(learning_rate=1e-4))
            gradient.result()
            step.result()
        print("done", flush=True)
    service.close("success").result()


async def main() -> None:
    """Start a server and the clients, and print the results."""
    from rllm_tinker.local_server import LocalServer

    for rows, length in SIZES:
        print(passes(rows, length), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        server = await LocalServer.start(model="tiny", checkpoints=directory, seed=0, longest=60.0)
        clients = [Client(server.url, server.api_key) for _ in range(CLIENTS)]
        for rows, length in SIZES:
            print(measure(clients, server.process.pid, rows, length), flush=True)
        for client in clients:
            client.close()
        await server.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        train(*sys.argv[1:])
    else:
        asyncio.run(main())
