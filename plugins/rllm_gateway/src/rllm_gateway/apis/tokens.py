"""vLLM's token route: a prompt of token ids, and a response of token ids and log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_gateway.apis import fields
from rllm_gateway.apis.chat import error_body, error_object, usage
from rllm_gateway.apis.exchange import Choice, EventStream, ModelRequest, PendingResponse, SampledToken, event
from rllm_gateway.apis.fields import RefusedError, Rules, invalid

RULES = Rules(
    honored=frozenset(("token_ids", "sampling_params", "request_id")),
    overruled=frozenset(("model",)),
    ignored=frozenset(("cache_salt", "priority", "stream_options")),
    refused={
        "content_parts": ([],),
        "features": (),
        "kv_transfer_params": (),
        "return_token_ids": (False,),
        "stream": (False,),
    },
)
PARAMETER_RULES = Rules(
    honored=frozenset(("max_tokens", "n", "stop", "stop_token_ids", "logprobs")),
    overruled=frozenset(("temperature", "top_p")),
    ignored=frozenset(
        (
            "detokenize",
            "extra_args",
            "flat_logprobs",
            "include_stop_str_in_output",
            "output_kind",
            "skip_clone",
            "skip_special_tokens",
            "spaces_between_special_tokens",
        )
    ),
    refused={
        "allowed_token_ids": (),
        "bad_words": ([],),
        "ignore_eos": (False,),
        "logit_bias": ({},),
        "logprob_token_ids": (),
        "prompt_logprobs": (),
        "structured_outputs": (),
        "thinking_token_budget": (),
        "truncate_prompt_tokens": (),
    },
)
"""Classes of the keys of ``sampling_params``."""


def read_token_ids(found: Mapping[str, Any], key: str) -> NDArray[np.int32]:
    """Return (n,) token ids.

    Raises:
        RefusedError: the value is not a list of token ids.
    """
    value = found.get(key)
    most = np.iinfo(np.int32).max
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= most for each in value):
        raise invalid(f"{key} must be a list of token ids, which are integers from 0 to {most}.", key)
    return np.array(value, np.int32)


class TokensApi:
    """See `Api`."""

    error = staticmethod(error_body)

    def read(self, body: dict[str, Any], unsupported: Any) -> ModelRequest:
        """Read a request. ``logprobs`` of 0 or 1 returns the sampled tokens' log-probs, which every engine has."""
        given = {key: value for key, value in fields.mapping(body, "sampling_params").items() if value is not None}
        outcomes = RULES.outcomes(body, unsupported) | PARAMETER_RULES.outcomes(given, unsupported)
        prompt_ids = read_token_ids(body, "token_ids")
        if not len(prompt_ids):
            raise invalid("token_ids is empty; send at least one.", "token_ids")
        fields.optional_text(body, "request_id")
        top = fields.read_integer(given, "logprobs", 0, fields.MOST_TOP)
        return ModelRequest(
            prompt_ids=prompt_ids,
            prompt_parameter="token_ids",
            stop_ids=frozenset(read_token_ids(given, "stop_token_ids").tolist() if "stop_token_ids" in given else ()),
            n=fields.read_count(given, "n"),
            max_tokens=fields.read_integer(given, "max_tokens", 1, 1 << 31),
            stop=fields.stop_texts(given, "stop"),
            logprobs=top is not None,
            top_logprobs=top if top is not None and top > 1 else 0,
            model=fields.optional_text(body, "model"),
            sent={name: value for name, value in body.items() if name != "token_ids"},
            outcomes=outcomes,
        )

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        """Return the body of a response."""
        choices = [
            {
                "index": index,
                "token_ids": choice.token_ids.tolist(),
                "finish_reason": choice.finish,
                "logprobs": _logprobs(choice) if request.logprobs else None,
            }
            for index, choice in enumerate(response.choices)
        ]
        body = {"choices": choices, "usage": usage(response), "prompt_logprobs": None, "kv_transfer_params": None}
        return orjson.dumps({"request_id": request.sent.get("request_id") or response.id, **body})

    def stream(self, request: ModelRequest, response: PendingResponse) -> EventStream:
        """Raise AssertionError, because `read` rejects streamed requests."""
        raise AssertionError("the token route does not stream")

    def error_event(self, refused: RefusedError) -> bytes:
        """Return the event that ends a stream with an error."""
        return event({"error": error_object(refused)})


def _logprobs(choice: Choice) -> dict[str, Any]:
    return {"content": [_entry(each) | {"top_logprobs": [*map(_entry, each.top)]} for each in choice.sampled]}


def _entry(token: SampledToken) -> dict[str, Any]:
    """Return a token whose text is its id, as vLLM does."""
    name = f"token_id:{token.id}"
    return {"token": name, "bytes": [*name.encode()], "logprob": token.known_logprob}
