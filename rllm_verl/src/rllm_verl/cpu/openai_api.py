"""A rollout server's HTTP API: OpenAI's completions and chat completions, with token ids and log-probs."""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rllm_core.errors import RllmError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_serving.body_limit import LimitBody
from rllm_serving.keys import LoopbackNames
from rllm_verl.cpu.server_settings import ServerSettings
from rllm_verl.cpu.token_output import Response

MAX_BODY_BYTES = 64 << 20


class Sampler(Protocol):
    """The part of a rollout server that the routes use."""

    settings: ServerSettings
    renderer: TemplateRenderer

    @property
    def weight_version(self) -> int: ...
    async def generate(self, prompt_ids: Any, sampling_params: Any, request_id: str) -> Response: ...


class _Body(BaseModel):
    # Reject unsupported fields instead of ignoring them.
    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False
    user: str | None = None
    """The conversation's name. Requests with the same user are turns of one conversation. None for a new one."""
    return_token_ids: bool = True
    """vLLM's option. Token ids are always returned."""

    def sampling(self) -> dict[str, Any]:
        names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos")
        return {name: getattr(self, name) for name in names} | {"logprobs": True}


class CompletionBody(_Body):
    """``POST /v1/completions``."""

    prompt: str | list[int]
    logprobs: int | None = None


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: str
    content: str


class ChatBody(_Body):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    max_completion_tokens: int | None = None

    def sampling(self) -> dict[str, Any]:
        return super().sampling() | {"max_tokens": self.max_completion_tokens or self.max_tokens}


def create_app(sampler: Sampler) -> Starlette:
    """Return the routes of a rollout server. Rejected requests are answered with 400 and a message."""
    renderer, name = sampler.renderer, sampler.settings.model

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "weight_version": sampler.weight_version})

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "rllm"}]})

    async def completions(request: Request) -> JSONResponse:
        body = CompletionBody.model_validate_json(await request.body())
        prompt = body.prompt
        if isinstance(prompt, str):
            prompt = list(renderer.tokenizer.encode(prompt, add_special_tokens=False))
        request_id = secrets.token_hex(8)
        response = await sampler.generate(prompt, body.sampling(), body.user or request_id)
        choice = {
            "index": 0,
            "text": renderer.text(response.token_ids),
            "finish_reason": _finish_reason(response, renderer),
            "prompt_token_ids": prompt,
            "token_ids": response.token_ids,
            "logprobs": {"tokens": _pieces(renderer, response.token_ids), "token_logprobs": response.log_probs},
        }
        return JSONResponse(_answer("text_completion", f"cmpl-{request_id}", name, prompt, response, choice))

    async def chat(request: Request) -> JSONResponse:
        body = ChatBody.model_validate_json(await request.body())
        prompt = renderer.prompt([message.model_dump() for message in body.messages]).tolist()
        request_id = secrets.token_hex(8)
        response = await sampler.generate(prompt, body.sampling(), body.user or request_id)
        pieces = _pieces(renderer, response.token_ids)
        logprobs = response.log_probs or []
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": renderer.text(response.token_ids)},
            "finish_reason": _finish_reason(response, renderer),
            "token_ids": response.token_ids,
            "logprobs": {
                "content": [
                    {"token": piece, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for piece, logprob in zip(pieces, logprobs, strict=True)
                ]
            },
        }
        answer = _answer("chat.completion", f"chatcmpl-{request_id}", name, prompt, response, choice)
        return JSONResponse(answer | {"prompt_token_ids": prompt})

    handlers: dict[Any, Any] = {RllmError: _rejected, ValidationError: _malformed, HTTPException: _http_error}
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=[
            Middleware(LoopbackNames, instead="It serves the run that started it."),
            Middleware(LimitBody, max_bytes=MAX_BODY_BYTES),
        ],
        exception_handlers=handlers,
    )


async def _rejected(_: Request, error: RllmError) -> JSONResponse:
    return _failure(str(error), type(error).__name__)


async def _malformed(_: Request, error: ValidationError) -> JSONResponse:
    places = (f"{'.'.join(map(str, ('body', *found['loc'])))}: {found['msg']}" for found in error.errors())
    return _failure("; ".join(places), "BadRequest")


async def _http_error(_: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _answer(
    kind: str, answer_id: str, model: str, prompt: list[int], response: Response, choice: dict[str, Any]
) -> dict[str, Any]:
    asked, sampled = len(prompt), len(response.token_ids)
    return {
        "id": answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled},
        "weight_version": response.weight_version,
    }


def _finish_reason(response: Response, renderer: TemplateRenderer) -> str:
    if response.stop_reason == "aborted":
        return "abort"
    return "stop" if response.token_ids and response.token_ids[-1] in renderer.stop_ids else "length"


def _pieces(renderer: TemplateRenderer, token_ids: list[int]) -> list[str]:
    return [str(renderer.tokenizer.decode([token], skip_special_tokens=False)) for token in token_ids]


def _failure(message: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "code": 400}}, status_code=400)
