"""LiteLLM's proxy, for `benchmarks/gateway.py --litellm`: a process in front of a server that answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from starlette.types import Receive, Scope, Send

from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of

LITELLM = Path(__file__).parents[1] / ".venv-litellm/bin/litellm"
HOW_TO_INSTALL = "make .venv-litellm/.installed"
SECONDS_TO_START = 300.0
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "the number is lower " * 40},
            }
        ],
        "usage": {"prompt_tokens": 2000, "completion_tokens": 200, "total_tokens": 2200},
    }
)


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    """The model's server. It answers every request with 200 tokens at once."""
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


@asynccontextmanager
async def litellm_proxy(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, str]]:
    """Yield the process, its port and its key when it answers. Its files are in `directory`."""
    with listen() as free:
        port = free.getsockname()[1]
    listening = listen()
    server = HttpServer(answering, listening)
    await server.start()
    to = {"model": "openai/m", "api_base": f"{url_of(listening)}/v1", "api_key": "k"}
    config = directory / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": to}]}))
    key, said = f"sk-{secrets.token_hex(32)}", directory / "litellm.log"
    with said.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                str(LITELLM),
                "--config",
                str(config),
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--keepalive_timeout",
                "600",
            ),
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR",
                "LITELLM_MASTER_KEY": key,
            },
        )
    try:
        await _until_it_answers(process, port, said)
        yield process, port, key
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop()


async def _until_it_answers(process: asyncio.subprocess.Process, port: int, said: Path) -> None:
    async with asyncio.timeout(SECONDS_TO_START):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return
    raise RuntimeError(f"LiteLLM's proxy does not start:\n{said.read_text()[-2000:]}")
