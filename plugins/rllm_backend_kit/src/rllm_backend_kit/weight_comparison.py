"""Parts of comparisons of weights: a probe as a batch, and digests of tensors by their names in a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.contracts.weight_comparison import Probe, TensorDifference
from rllm_core.data.batch import TokenBatch


def probe_batch(probe: Probe) -> TokenBatch:
    """Return the rows of a probe. The loss mask marks the scored tokens."""
    rows, length = probe.tokens.shape
    scored = np.zeros((rows, length), np.bool_)
    scored[:, probe.prompt :] = True
    none = np.zeros(rows, np.int32)
    return TokenBatch(
        tokens=probe.tokens.ravel(),
        row_offsets=np.arange(rows + 1, dtype=np.int64) * length,
        loss_mask=scored.ravel(),
        sampling_logprobs=np.zeros(rows * length, np.float32),
        trajectory=none,
        group=none,
        role=none,
        weight_version=none,
        roles=(),
        groups=(),
    )


def digest(tensor: Tensor) -> str:
    """Return the hexadecimal SHA-256 of a tensor's values, see `ScoringEngine.digests`."""
    return hashlib.sha256(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data).hexdigest()


def find_differences(trained: Mapping[str, str], own: Mapping[str, str]) -> list[TensorDifference]:
    """Return the tensors whose digests in a sampler, `own`, differ from the trained ones. Only common names count."""
    owners = {digest: name for name, digest in reversed(list(trained.items()))}
    return [
        TensorDifference(name=name, values_of=owners.get(own[name]))
        for name, digest in trained.items()
        if own.get(name, digest) != digest
    ]


def vllm_digests(model: Any) -> dict[str, str]:
    """Return the digests of a vLLM model's parameters, see `vllm_tensors`. A tied weight has several names."""
    named = dict(vllm_tensors(model))
    places = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in named.items()}
    digests = {places[name]: digest(tensor) for name, tensor in named.items()}
    return {name: digests[place] for name, place in places.items()}


def vllm_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a vLLM model with their names in a checkpoint.

    vLLM joins the rows of several linear layers in one parameter, and appends rows to embeddings. Here the rows are
    separate again, and the appended rows are removed. Parameters are omitted if this worker has only a part of them.
    """
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules(remove_duplicate=False):
        parent, _, last = path.rpartition(".")
        parts, vocabulary = packed.get(last, ()), getattr(module, "org_vocab_size", None)
        for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if len(parts) > 1:
                sizes = getattr(module, "output_sizes", ())
                if len(sizes) == len(parts) and sum(sizes) == len(parameter):
                    for part, rows in zip(parts, parameter.split(list(sizes)), strict=True):
                        yield f"{parent}.{part}.{own}", rows
            else:
                yield f"{path}.{own}", parameter if vocabulary is None else parameter[:vocabulary]
