"""A simulated accelerator, the torch device `pretend`. It computes on the CPU and counts what a GPU would have to do.

A tensor on `pretend` wraps a CPU tensor. As on CUDA, an operation on tensors of both devices raises RuntimeError, and
work is asynchronous: the program waits when it reads a number or the size of a result. `COUNTS` has the kernels that
an operation launches, the waits, the bytes of transfers, and the memory. Views and allocations launch nothing. A
blocking copy waits in each direction, because torch synchronizes the stream after it. A copy with `non_blocking` waits
only on its way to the main memory (a program must wait itself before it reads the values).

torch's attention is one kernel, except where CUDA has none: with both a mask and grouped heads. Launches inside a
replayed graph count as one. The device does not simulate time, streams, or kernels that differ from the CPU's.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _foreach_utils
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
ALLOCATES = ("aten.empty", "aten.new_empty", "aten.detach", "aten.lift_fresh", "aten.alias", "aten._unsafe_view")
"""Operations that launch no kernel, in addition to views."""
WAITS = ("aten._local_scalar_dense", "aten.equal", "aten.nonzero", "aten.masked_select", "aten.unique", "aten._unique")
"""Operations whose result the program must read, or whose result has a size that it must read."""
INDEXED = ("aten.index.Tensor", "aten.index_put", "aten._index_put_impl_", "aten._unsafe_index")
COPIES = ("aten._to_copy", "aten.copy_")


@dataclass
class Counts:
    """Work of the device since `reset`."""

    kernels: Counter[str] = field(default_factory=Counter)
    """Launched kernels by operation."""
    waits: Counter[str] = field(default_factory=Counter)
    """Waits by operation."""
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    allocated: int = 0
    """Bytes of all tensors on the device."""
    peak: int = 0
    """Largest number of allocated bytes."""

    @property
    def launches(self) -> int:
        return self.kernels.total()

    def reset(self) -> None:
        """Count from 0. The peak becomes the allocated bytes."""
        self.kernels.clear()
        self.waits.clear()
        self.bytes_to_device = self.bytes_to_host = 0
        self.peak = self.allocated


COUNTS = Counts()
_storages: set[int] = set()
_graph: Graph | None = None
"""The graph that is being captured."""


def _note_storage(tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    if storage._cdata in _storages or not storage.nbytes():
        return
    _storages.add(storage._cdata)
    COUNTS.allocated += storage.nbytes()
    COUNTS.peak = max(COUNTS.peak, COUNTS.allocated)
    weakref.finalize(storage, _forget_storage, storage._cdata, storage.nbytes())


def _forget_storage(address: int, size: int) -> None:
    _storages.discard(address)
    COUNTS.allocated -= size


class PretendTensor(Tensor):
    """A tensor on the device. Its values are in the CPU tensor `raw`."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        _note_storage(raw)
        return made

    def __init__(self, raw: Tensor) -> None:
        """Wrap a CPU tensor."""

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, new: PretendTensor) -> None:
        Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
        self.raw = new.raw

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        copied: Tensor = PretendTensor(self.raw.clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]

    # safetensors and transformers find tied weights by their memory.
    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def storage(self) -> torch.UntypedStorage:  # type: ignore[override]
        return self.raw.untyped_storage()

    def __repr__(self, **_: Any) -> str:
        return f"{self.raw!r} on {NAME}"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@torch.inference_mode(False)  # a wrapper of an inference tensor has no version for views
def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation with tensors on the device, or one that makes such tensors."""
    name = str(func)
    if name == "aten.scaled_dot_product_attention.default":
        return _attention(*args, **kwargs)
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        # In inference mode such operations are not yet replaced by the ones that they consist of.
        return func.decompose(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    _check_devices(name, func, tensors, on_device)
    target = kwargs.get("device")
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    raw_args, raw_kwargs = (tree_map(_raw, each) for each in (args, kwargs))
    result = func(*raw_args, **raw_kwargs)
    moves = torch.device(target).type if target is not None else NAME if on_device else "cpu"
    _count(name, func, args, kwargs, moves, result)
    if _graph is not None and on_device:
        _graph.record(func, raw_args, raw_kwargs, result)
    if not func._schema.returns:
        return None
    if name.startswith("aten.copy_") or _writes_to_first(func):
        return args[0]
    if moves != NAME:
        return result
    known = {id(tensor.raw): tensor for tensor in on_device}
    return tree_map(lambda leaf: known[id(leaf)] if id(leaf) in known else _wrap(leaf), result)


def _writes_to_first(func: Any) -> bool:
    return func._schema.name.endswith("_") and not func._schema.name.endswith("__")


def _raw(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, PretendTensor) else leaf


def _wrap(leaf: Any) -> Any:
    return PretendTensor(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, PretendTensor) else leaf


def _check_devices(name: str, func: Any, tensors: list[Tensor], on_device: list[PretendTensor]) -> None:
    if not on_device or name.startswith((*COPIES, *INDEXED)):
        return
    if any(tensor.dim() > 0 for tensor in tensors if not isinstance(tensor, PretendTensor)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got some on {NAME}:0 and cpu")


def _count(name: str, func: Any, args: Any, kwargs: dict[str, Any], moves: str, result: Any) -> None:
    if name.startswith(COPIES):
        to, source = (args[0], args[1]) if name.startswith("aten.copy_") else (None, args[0])
        here = isinstance(source, PretendTensor)
        there = isinstance(to, PretendTensor) if to is not None else moves == NAME
        if here != there:
            size = (source if to is None else to).nbytes
            non_blocking = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2])
            _transfer("copy to the device" if there else "copy to the host", size, there, non_blocking)
            return
    if name.startswith(INDEXED):
        indices = [index for index in args[1] if index is not None]
        for index in indices:
            if not isinstance(index, PretendTensor):
                _transfer("index on the host", index.nbytes, True, False)
            elif index.dtype in (torch.bool, torch.uint8):
                _wait("bool index")
    if name.startswith(WAITS):
        _wait(name)
    if name.startswith("aten._local_scalar_dense"):
        COUNTS.bytes_to_host += args[0].nbytes
        return
    if name == "aten.repeat_interleave.Tensor" and kwargs.get("output_size") is None:
        _wait(name)
    if not func.is_view and not name.startswith(ALLOCATES):
        COUNTS.kernels[name] += 1


def _transfer(what: str, size: int, to_device: bool, non_blocking: bool) -> None:
    if to_device:
        COUNTS.bytes_to_device += size
    else:
        COUNTS.bytes_to_host += size
    if not (to_device and non_blocking):
        _wait(what)


def _wait(what: str) -> None:
    if _graph is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
    COUNTS.waits[what] += 1


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute torch's attention in one kernel if CUDA has such a kernel."""
    grouped = enable_gqa and query.shape[1] != key.shape[1]
    sizes = {query.shape[-1], key.shape[-1], value.shape[-1]}
    if dropout_p or len(sizes) > 1 or (grouped and attn_mask is not None):
        output: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return output
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
    result: Tensor = _FusedAttention.apply(query, key, value, attn_mask, is_causal, scale)  # type: ignore[no-untyped-call]
    return result


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _FusedAttention(torch.autograd.Function):
    """Attention in one kernel, and its gradient in one."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
    ) -> Tensor:
        options = {"attn_mask": mask, "scale": scale}
        output, total = _call_kernel("attention", _flash, (query, key, value, 0.0, causal), options)
        ctx.save_for_backward(query, key, value, mask, output, total)
        ctx.causal, ctx.scale = causal, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, output, total = ctx.saved_tensors
        arguments = (gradients[0], query, key, value, output, total, 0.0, ctx.causal)
        options = {"attn_mask": mask, "scale": ctx.scale}
        found = _call_kernel("gradient of attention", _flash_backward, arguments, options)
        return *found, None, None, None


def _call_kernel(name: str, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
    COUNTS.kernels[name] += 1
    raw_args, raw_kwargs = (tree_map(_raw, each) for each in (args, kwargs))
    results = func(*raw_args, **raw_kwargs)
    if _graph is not None:
        _graph.record(func, raw_args, raw_kwargs, results)
    return tuple(_wrap(each) for each in results)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Graph:
    """The interface of `torch.cuda.CUDAGraph` on this device. A replay repeats the operations on the same memory."""

    def __init__(self) -> None:
        self._operations: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self._made: list[Tensor] = []

    def record(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._operations.append((func, args, kwargs, results))
        known = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        self._made += [each for each in results if _memory(each) not in known and each.is_floating_point()]

    def invalidate(self) -> None:
        """Overwrite the results, because a capture on CUDA does not compute them."""
        for result in self._made:
            result.fill_(math.nan)

    @torch.no_grad()
    def replay(self) -> None:
        """Repeat the captured operations. Their results overwrite the results of the capture."""
        COUNTS.kernels["replay of a graph"] += 1
        for func, args, kwargs, results in self._operations:
            found = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for old, new in zip(results, found, strict=True):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)


@contextmanager
def _capture(graph: Graph, pool: object = None, capture_error_mode: str = "global") -> Iterator[None]:
    """Record the operations within. As on CUDA, a wait is an error, and results are valid only after a replay."""
    global _graph
    if _graph is not None:
        raise RuntimeError("a graph is already being captured")
    _graph = graph
    try:
        yield
    finally:
        _graph = None
        graph.invalidate()


class _DeviceModule:
    """The part of `torch.cuda`'s interface that torch and transformers use on any device."""

    device_count = staticmethod(lambda: 1)
    is_available = staticmethod(lambda: False)
    """False, so that only tests that name the device use it."""
    is_initialized = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    synchronize = staticmethod(lambda device=None: _wait("synchronize"))
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    device = staticmethod(lambda index: nullcontext())
    CUDAGraph = Graph
    graph = staticmethod(_capture)
    graph_pool_handle = staticmethod(object)
    current_stream = staticmethod(lambda: None)
    stream = staticmethod(lambda stream: nullcontext())
    max_memory_allocated = staticmethod(lambda device=None: COUNTS.peak)
    memory_allocated = staticmethod(lambda device=None: COUNTS.allocated)

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        COUNTS.peak = COUNTS.allocated


_libraries: list[torch.library.Library] = []


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return False

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> torch.device:
    """Register the device in this process, once, and return it.

    Call it before the first backward pass of the process, because torch then creates a thread for each device.
    """
    if not _libraries:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_DeviceModule(), hook=_Hook())
        _libraries.extend(torch.library.Library(name, "IMPL") for name in ("_", "aten"))
        _libraries[0].fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
        _libraries[1].impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
        for module in (_foreach_utils, sys.modules["torch.optim.optimizer"]):
            module._foreach_supported_types.append(PretendTensor)  # type: ignore[attr-defined]
        _device_constructors()  # it remembers torch's own function, which `with torch.device(…)` looks for
        torch.tensor = _make_tensor
    return torch.device(NAME, 0)


_torch_tensor = torch.tensor


def _make_tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """Replace `torch.tensor`, which raises an internal assertion for a device that Python defines (torch 2.13)."""
    if device is None or torch.device(device).type != NAME:
        return _torch_tensor(data, device=device, requires_grad=requires_grad, **options)
    return _torch_tensor(data, **options).to(device).requires_grad_(requires_grad)


@contextmanager
def count() -> Iterator[Counts]:
    """Count from 0 within."""
    COUNTS.reset()
    yield COUNTS
