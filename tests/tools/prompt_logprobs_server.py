"""A server of OpenAI's completions API that returns vLLM's `prompt_logprobs`, around a Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def hugging_face_logprobs(model: Any, tokens: list[int]) -> list[float]:
    """Return the log-prob of each token except the first, given all earlier tokens."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].double()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


def prompt_logprobs_app(model: Any, *, names: tuple[str, ...] = ("small",)) -> Starlette:
    """Return the server. It has one model, with these names."""

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": name} for name in names]})

    async def completions(request: Request) -> JSONResponse:
        body = await request.json()
        tokens = body["prompt"]
        scored = zip(tokens[1:], hugging_face_logprobs(model, tokens), strict=True)
        entries = [None, *({str(token): {"logprob": logprob}} for token, logprob in scored)]
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": entries}]})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])])
