"""A server of OpenAI's completions API that returns vLLM's `prompt_logprobs`, around a Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def hugging_face_distributions(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the log-probs of the vocabulary at each token except the first, (n - 1, n_vocabulary) float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].double()
    return torch.log_softmax(logits, -1)


def hugging_face_logprobs(model: Any, tokens: list[int]) -> list[float]:
    """Return the log-prob of each token except the first, given all earlier tokens."""
    distributions = hugging_face_distributions(model, tokens)
    return distributions.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


def prompt_logprobs_app(model: Any, *, names: tuple[str, ...] = ("small",), most: int = 20) -> Starlette:
    """Return the server. It has one model, with these names, and returns at most the `most` likeliest tokens."""

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": name} for name in names]})

    async def completions(request: Request) -> JSONResponse:
        body = await request.json()
        tokens = body["prompt"]
        entries: list[Any] = [None]
        for token, distribution in zip(tokens[1:], hugging_face_distributions(model, tokens), strict=True):
            likeliest = distribution.topk(min(body["prompt_logprobs"], most)).indices.tolist()
            entries.append({str(each): {"logprob": distribution[each].item()} for each in (token, *likeliest)})
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": entries}]})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])])
