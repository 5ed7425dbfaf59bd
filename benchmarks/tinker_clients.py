"""Several clients at once for `benchmarks/tinker.py`. Run as a program, it is one of them: ``… URL KEY MODEL``.

Each trains its own LoRA model and samples from it: a step, a snapshot, and samples, alternately.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TINKER_TELEMETRY"] = "0"

TURNS = 3
SAMPLES, NEW_TOKENS = 32, 32
TOKENS_PER_CLIENT = TURNS * SAMPLES * NEW_TOKENS
ROW = [4 + position % 32 for position in range(33)]


def tokens_per_second(clients: int, url: str, key: str, model: str) -> float:
    """Sampled by all clients together, with the steps and snapshots between them."""
    program = [sys.executable, str(Path(__file__)), url, key, model]
    processes = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(clients)
    ]
    for process in processes:
        assert _next_line(process) == "ready"
    start = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert _next_line(process) == "done"
    seconds = time.perf_counter() - start
    for process in processes:
        process.communicate()
    return clients * TOKENS_PER_CLIENT / seconds


def _next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main(url: str, key: str, model: str) -> None:
    # A file next to this one has the client's name.
    sys.path.append(sys.path.pop(0))
    import tinker
    from tinker import types

    inputs: dict[str, Any] = {"target_tokens": ROW[1:], "weights": [1.0] * 32}
    data = [types.Datum(model_input=types.ModelInput.from_ints(ROW[:-1]), loss_fn_inputs=inputs)] * 32
    prompt, params = types.ModelInput.from_ints(ROW), types.SamplingParams(max_tokens=NEW_TOKENS, seed=1, stop=[])
    client = tinker.ServiceClient(base_url=url, api_key=key)
    trainer = client.create_lora_training_client(base_model=model, rank=32).result()

    def turn() -> None:
        gradient = trainer.forward_backward(data, "cross_entropy")
        step = trainer.optim_step(types.AdamParams(learning_rate=1e-3))
        gradient.result()
        step.result()
        sampler = trainer.save_weights_and_get_sampling_client().result()
        sampler.sample(prompt, SAMPLES, params).result()

    turn()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(TURNS):
        turn()
    print("done", flush=True)
    client.close("success").result()


if __name__ == "__main__":
    main(*sys.argv[1:])
