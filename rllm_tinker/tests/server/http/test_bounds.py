"""A small request cannot make the server hold much, and what it holds is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as proto

from rllm_tinker.server.messages import RequestRefused
from rllm_tinker.server.wire import forward_backward_of, forward_backward_request


def sparse_request(shapes: list[tuple[int, int]], tokens: int = 4) -> bytes:
    """A datum for each shape, of whose targets none is listed."""
    message = proto.ForwardBackwardRequest(model_id="a:train:0", seq_id=1, loss_fn="cross_entropy")
    for rows, columns in shapes:
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.ones(tokens, np.int32).tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype = proto.DTYPE_INT64
        targets.shape.extend((rows, columns))
        targets.sparse_csr.crow_indices = np.zeros(max(rows, 0) + 1, np.int64).tobytes()
    return bytes(message.SerializeToString())


def read(body: bytes, most: int) -> Any:
    return forward_backward_of(forward_backward_request(body), most)


def test_sparse_rows_are_made_dense_when_they_fit() -> None:
    assert [example.targets.shape for example in read(sparse_request([(4, 5), (4, 5)]), 40).examples] == [(4, 5)] * 2


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([(4, 5), (4, 6)], "stand for 44 numbers"),
        ([(4, 1 << 40)], "stand for"),
        ([(4, -11)], "stand for 44 numbers"),
        ([(5, 4)], "Datum 0: .*shape .5, 4. beside 4 tokens"),
        ([(4, -5)], "Datum 0: "),
        ([(0, 1 << 62)], "Datum 0: "),
    ],
)
def test_sparse_rows_that_stand_for_too_much_are_refused_before_they_are_made_dense(
    shapes: list[tuple[int, int]], why: str
) -> None:
    with pytest.raises(RequestRefused, match=why):
        read(sparse_request(shapes), 40)
