"""Conversion of requests and answers (protobuf and JSON) to and from `messages`. Only this package imports tinker.

Requests may contain unknown keys, because newer clients send them. Settings within a known key must be known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel as PydanticModel, ValidationError
from tinker import types
from tinker.proto import tinker_public_pb2 as proto
from tinker.types.topk_logprobs import MASK_LOGPROB

from rllm_tinker_server.messages import (
    AdamStep,
    ForwardBackwardResult,
    LoraSpec,
    RequestError,
    SampledSequence,
    Scores,
    TopTokens,
)
from rllm_tinker_server.sample_request import SampleRequest
from rllm_tinker_server.sparse import row_numbers
from rllm_tinker_server.turns import Answer

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


def json_answer(content: Mapping[str, Any]) -> Answer:
    return Answer(json.dumps(content, allow_nan=False).encode(), JSON)


def answer(message: PydanticModel) -> Answer:
    """A response of tinker's own type."""
    return json_answer(message.model_dump())


def future_response(request_id: str, model_id: str | None = None, samples: int = 0) -> Answer:
    """Return the answer to a request whose result the client fetches later. Built by hand for thousands of samples."""
    content: dict[str, Any] = {"request_id": request_id}
    if model_id is not None:
        content["model_id"] = model_id
    if samples:
        content["sample_sequence_ids"] = [f"{request_id}:{index}" for index in range(samples)]
    return json_answer(content)


def user_error(why: str) -> Answer:
    """The result of a request that asked for something wrong."""
    return json_answer({"error": why, "category": types.RequestErrorCategory.User.value})


def server_error(why: str) -> Answer:
    """The result of a request that this machine could not execute."""
    return json_answer({"error": why, "category": types.RequestErrorCategory.Server.value})


def samples_answer(samples: Sequence[SampledSequence], prompt: Scores | None, request: SampleRequest) -> Answer:
    """`prompt`: scores of the prompt, if the request asks for some."""
    response = proto.SampleResponse()
    for sampled in samples:
        stopped = sampled.stop_reason == "stop"
        sequence = response.sequences.add(
            stop_reason=proto.STOP_REASON_STOP if stopped else proto.STOP_REASON_LENGTH,
            tokens=sampled.tokens.astype(np.int32, copy=False).tobytes(),
            logprobs=sampled.logprobs.astype(np.float32, copy=False).tobytes(),
        )
        if sampled.top is not None:
            _fill(sequence.topk_sampled_logprobs, sampled.top)
    if prompt is not None:
        _fill_prompt(response, prompt, request)
    return Answer(response.SerializeToString(), PROTOBUF)


def _fill_prompt(response: Any, prompt: Scores, request: SampleRequest) -> None:
    if prompt.top is not None:
        _fill(response.topk_prompt_logprobs, prompt.top)
    if request.prompt_logprobs:
        response.prompt_logprobs = prompt.logprobs.astype(np.float32, copy=False).tobytes()
    if prompt.draws is not None:
        _fill_tensor(response.prompt_alt_tokens.tokens, prompt.draws.tokens.astype(np.int64), proto.DTYPE_INT64)
        _fill_tensor(response.prompt_alt_tokens.logprobs, prompt.draws.logprobs, proto.DTYPE_FLOAT32)
    targets = request.targets
    if prompt.targets is not None and targets is not None:
        tensor = response.target_prompt_logprobs
        if targets.rows is None or targets.columns is None:
            _fill_tensor(tensor, prompt.targets, proto.DTYPE_FLOAT32)
            return
        tensor.dtype = proto.DTYPE_FLOAT32
        tensor.shape.extend(prompt.targets.shape)
        tensor.sparse_csr.values = prompt.targets[row_numbers(targets.rows), targets.columns].tobytes()
        tensor.sparse_csr.crow_indices = targets.rows.tobytes()
        tensor.sparse_csr.col_indices = targets.columns.tobytes()


def _fill_tensor(tensor: Any, values: NDArray[Any], dtype: int) -> None:
    tensor.dtype = dtype
    tensor.shape.extend(values.shape)
    tensor.dense = values.tobytes()


def _fill(message: Any, top: TopTokens) -> None:
    nothing = np.isnan(top.logprobs)
    message.length, message.k = top.tokens.shape
    message.token_ids = np.where(nothing, 0, top.tokens).astype(np.int32).tobytes()
    message.logprobs = np.where(nothing, MASK_LOGPROB, top.logprobs).astype(np.float32).tobytes()


def forward_backward_answer(result: ForwardBackwardResult) -> Answer:
    """Log-probs by example, neighbors of the same row shape packed together."""
    response = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(result.metrics))
    start = 0
    while start < len(result.logprobs):
        row = result.logprobs[start].shape[1:]
        end = start
        while end < len(result.logprobs) and result.logprobs[end].shape[1:] == row:
            end += 1
        packed = [array.astype(np.float32, copy=False).tobytes() for array in result.logprobs[start:end]]
        record = response.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=end - start)
        field = record.fields["logprobs"]
        field.data = b"".join(packed)
        field.offsets = np.cumsum([0, *map(len, packed)], dtype=np.int64).tobytes()
        field.dtype = proto.DTYPE_FLOAT32
        field.trailing_shape.extend(row)
        start = end
    return Answer(response.SerializeToString(), PROTOBUF)


def create_model_response(model_id: str) -> Answer:
    return answer(types.CreateModelResponse(model_id=model_id))


def load_weights_response(path: str, model_id: str) -> Answer:
    return answer(types.LoadWeightsResponse(path=path, model_id=model_id, type="load_weights"))


def optim_step_response(metrics: Mapping[str, float]) -> Answer:
    # JSON has only finite numbers. Clients parse the strings "nan" and "inf" as numbers.
    texts = {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
    return json_answer({"metrics": texts})


def save_weights_response(path: str) -> Answer:
    return answer(types.SaveWeightsResponse(path=path, type="save_weights"))


def save_weights_for_sampler_response(*, path: str | None = None, sampler_id: str | None = None) -> Answer:
    return answer(
        types.SaveWeightsForSamplerResponseInternal(
            path=path, sampling_session_id=sampler_id, type="save_weights_for_sampler"
        )
    )


def save_weights_external_response(path: str, size: int) -> Answer:
    """`size`: bytes."""
    return json_answer({"path": path, "size_bytes": size, "type": "save_weights_external"})


def unload_model_response(model_id: str) -> Answer:
    return answer(types.UnloadModelResponse(model_id=model_id, type="unload_model"))


def create_sampling_session_response(sampler_id: str) -> Answer:
    return answer(types.CreateSamplingSessionResponse(sampling_session_id=sampler_id))


M = TypeVar("M", bound=PydanticModel)


def validate_settings(message: type[M], found: Mapping[str, Any]) -> M:
    """Return settings in tinker's own type. An unknown key is an error, because it could change the computation.

    Raises:
        RequestError: with the first problem.
    """
    try:
        return message.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise RequestError(f"{message.__name__}: {where}: {problem['msg']}.") from error


def lora_spec(found: Mapping[str, Any]) -> LoraSpec:
    """The adapter of a `create_model` request. Raises RequestError: only LoRA models can be trained."""
    if not isinstance(found.get("lora_config"), dict):
        raise RequestError("lora_config is missing: this server trains LoRA models only.")
    config = validate_settings(types.LoraConfig, found["lora_config"])
    if config.rank < 1:
        raise RequestError(f"The LoRA rank is {config.rank}. It must be 1 or more.")
    if not (config.train_mlp or config.train_attn or config.train_unembed):
        raise RequestError("train_mlp, train_attn and train_unembed are all false: nothing would be trained.")
    return LoraSpec(**config.model_dump())


def check_optimizer(found: Mapping[str, Any]) -> None:
    """Raise RequestError unless the optimizer is AdamW. Clients before about 0.30 do not send this setting."""
    config = found.get("optimizer_config")
    if config is not None and (not isinstance(config, dict) or config.get("type", "adamw") != "adamw"):
        raise RequestError(f"optimizer_config is {config!r}: this server has the optimizer adamw only.")


def adam_step(found: Mapping[str, Any]) -> AdamStep:
    """The settings of an `optim_step` request."""
    config = found.get("adam_params", found.get("optim_params"))
    if not isinstance(config, dict):
        raise RequestError("adam_params are missing: this server has the optimizer adamw only.")
    return AdamStep(**validate_settings(types.AdamParams, config).model_dump())
