"""Requests for gradients, in protobuf."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as proto

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import SAMPLED, STAND_IN, Example, ForwardBackward, RequestError
from rllm_tinker_server.request_errors import NOT_TEXT
from rllm_tinker_server.sparse import to_dense

NUMPY_TYPES: dict[int, Any] = {
    proto.DTYPE_FLOAT32: np.float32,
    proto.DTYPE_INT64: np.int64,
    proto.DTYPE_INT32: np.int32,
}


@dataclass(frozen=True, kw_only=True)
class ForwardBackwardRequest:
    """One that could be parsed; what it asks for is read by `forward_backward_of` when its turn has come."""

    model_id: str
    number: int
    message: Any


def forward_backward_request(body: bytes) -> ForwardBackwardRequest:
    """Raises RequestError when the body is not the protobuf message, or names no model or number."""
    message = proto.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise RequestError("The body is not a ForwardBackwardRequest in protobuf. Was it cut off?") from error
    if not message.model_id or message.seq_id < 1:
        raise RequestError("The ForwardBackwardRequest has no model_id, or a seq_id below 1.")
    return ForwardBackwardRequest(model_id=message.model_id, number=message.seq_id, message=message)


def forward_backward_of(request: ForwardBackwardRequest, limits: TinkerLimits) -> ForwardBackward:
    """Parse a request. Raise RequestError for unsupported settings, and for sparse tensors that are too large."""
    message = request.message
    if message.loss_fn == STAND_IN and not limits.stand_in_losses:
        raise RequestError(
            f"The formula of {STAND_IN} is not public. Use a different loss, such as importance_sampling, or start "
            "the server with --stand-in-losses, which computes a different formula."
        )
    _check_sparse(message, limits.max_sparse_numbers)
    examples = [_example(datum, index) for index, datum in enumerate(message.data)]
    if message.loss_fn == STAND_IN:
        examples = [
            _add_provenance(*each, index) for index, each in enumerate(zip(examples, message.data, strict=True))
        ]
    return ForwardBackward(
        loss=message.loss_fn,
        config=_loss_config(message),
        examples=tuple(examples),
        forward_only=message.forward_only,
    )


def _loss_config(message: Any) -> dict[str, float]:
    tagged = message.loss_fn_config_v2
    if not tagged:
        # As clients before 0.30 or so send it.
        return dict(message.loss_fn_config)
    texts = sorted(key for key, value in tagged.items() if value.HasField("text"))
    if texts:
        raise RequestError(f"loss_fn_config: {', '.join(texts)}: the losses of this server take numbers only.")
    return {key: value.number for key, value in tagged.items()}


def _example(datum: Any, index: int) -> Example:
    if any(chunk.WhichOneof("chunk") != "encoded_text" for chunk in datum.model_input):
        raise RequestError(f"Datum {index}: {NOT_TEXT}")
    try:
        chunks = [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input]
        length = sum(map(len, chunks))
        arrays = {name: _array(tensor, length) for name, tensor in datum.loss_fn_inputs.items()}
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise RequestError(f"Datum {index}: a tensor's bytes do not fit its type and shape: {error}.") from error
    targets = arrays.pop("target_tokens", None)
    if targets is None or targets.dtype.kind != "i":
        raise RequestError(f"Datum {index}: loss_fn_inputs has no target_tokens of whole numbers.")
    return Example(
        tokens=np.concatenate(chunks or [np.empty(0, np.int32)]).astype(np.int64),
        targets=targets.astype(np.int64),
        inputs={name: array.astype(np.float32) for name, array in arrays.items()},
    )


def _add_provenance(example: Example, datum: Any, index: int) -> Example:
    """Add the input that says which targets the model sampled."""
    spans = [(span, span.WhichOneof("span")) for span in datum.loss_fn_input_spans]
    lengths = [getattr(span, kind).length if kind else -1 for span, kind in spans]
    if min(lengths, default=0) < 0:
        raise RequestError(
            f"Datum {index}: span {lengths.index(min(lengths))} of with_provenance has no content, or a length below 0."
        )
    if (sum(lengths),) != example.targets.shape:
        raise RequestError(
            f"Datum {index}: the spans of with_provenance have {sum(lengths)} positions and target_tokens the shape "
            f"{example.targets.shape}. {STAND_IN} needs a span for each target."
        )
    sampled = np.repeat([kind == "sampled_tokens" for _, kind in spans], np.array(lengths, np.int64))
    return replace(example, inputs={**example.inputs, SAMPLED: sampled.astype(np.float32)})


def _check_sparse(message: Any, most: int) -> None:
    """Limit the expanded size of all sparse tensors, because a few bytes can encode any shape."""
    tensors = (tensor for datum in message.data for tensor in datum.loss_fn_inputs.values())
    numbers = sum(abs(math.prod(tensor.shape)) for tensor in tensors if tensor.HasField("sparse_csr"))
    if numbers > most:
        raise RequestError(
            f"The sparse tensors of this request contain {numbers} numbers, but the limit is {most}. Send fewer "
            "examples in a request, or tensors with fewer columns."
        )


def _array(tensor: Any, length: int) -> NDArray[Any]:
    """`length`: of the model input. Raises ValueError."""
    sparse = tensor.HasField("sparse_csr")
    flat = _numbers(tensor.sparse_csr.values if sparse else tensor.dense, tensor.dtype)
    shape = tuple(tensor.shape) or (len(flat),)
    if sparse and shape[0] != length:
        raise ValueError(f"sparse rows of shape {shape} do not match {length} tokens")
    if not sparse:
        return flat.reshape(shape)
    rows, columns = (
        np.frombuffer(part, np.int64) for part in (tensor.sparse_csr.crow_indices, tensor.sparse_csr.col_indices)
    )
    return to_dense(flat, rows, columns, shape, missing=0)


def _numbers(data: bytes, dtype: int) -> NDArray[Any]:
    if dtype == proto.DTYPE_BFLOAT16:
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype not in NUMPY_TYPES:
        raise ValueError(f"unknown type {dtype}")
    return np.frombuffer(data, NUMPY_TYPES[dtype])
