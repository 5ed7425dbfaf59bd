"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

import orjson

from rllm_gateway.refusals import Kind, RefusedError

TYPES: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "conflict": "conflict_error",
    "too_large": "invalid_request_error",
    "busy": "rate_limit_error",
    "failed": "server_error",
}


def error_object(refused: RefusedError) -> dict[str, Any]:
    return {
        "message": refused.message,
        "type": TYPES[refused.kind],
        "param": refused.param,
        "code": refused.code,
    }


def error_body(refused: RefusedError) -> bytes:
    return orjson.dumps({"error": error_object(refused)})
