"""Copies many tensors at once into existing memory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.worker.commits.memory import Side

log = logging.getLogger(__name__)

_HUGE: Final = 2 << 20
"""Bytes of a huge page, on x86-64 and most arm64."""


Streams = list[Any]
"""Streams on which copies are still under way."""


def copy_batch(targets: Sequence[Tensor], sources: Sequence[Tensor], *, later: Streams | None = None) -> None:
    """Copy each source into its target. All copies are done on return; with ``later``, when its streams have finished.

    Between the host and CUDA devices, copies run on a stream of their own and are queued without waiting. With pinned
    host memory (:func:`pin`) they use the full speed of the bus, and no further copy of the model on the device.
    """
    if not targets:
        return
    with torch.no_grad():
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch._foreach_copy_(list(targets), list(sources))
            return
        pairs = list(zip(targets, sources, strict=True))
        devices = {t.device for t in (*targets, *sources) if t.is_cuda}
        for device in devices:
            _copy_cuda([pair for pair in pairs if device in (pair[0].device, pair[1].device)], device, later)
        rest = [pair for pair in pairs if not (pair[0].is_cuda or pair[1].is_cuda)]
        if rest:
            torch._foreach_copy_([target for target, _ in rest], [source for _, source in rest])


def advise_huge(tensor: Tensor) -> Tensor:
    """Ask for huge pages under a large new tensor, and return it.

    The first write to hundreds of megabytes is then several times as fast. That matters when a newcomer creates
    its optimizer's state, because all other ranks wait for it.
    """
    start = -(-tensor.data_ptr() // _HUGE) * _HUGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // _HUGE * _HUGE
    if tensor.device.type == "cpu" and length > 0:
        # This is only advice: a kernel without huge pages refuses it, without harm.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return tensor


def _copy_cuda(pairs: Sequence[tuple[Tensor, Tensor]], device: torch.device, later: Streams | None = None) -> None:
    with on_own_stream(device, later):
        for target, source in pairs:
            target.copy_(source, non_blocking=True)


@contextlib.contextmanager
def on_own_stream(device: torch.device, later: Streams | None = None) -> Iterator[None]:
    """Run the copies of the context after the pending work of the present stream, without waiting for other streams.
    They are done at its end. With ``later``, only the present stream waits, and their stream is added to ``later``.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    present = torch.cuda.current_stream(device)
    stream.wait_stream(present)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        # Also after an exception: a copy that is still under way must not write into a later commit.
        if later is None:
            stream.synchronize()
        else:
            later.append(stream)
            present.wait_stream(stream)


@contextlib.contextmanager
def awaited() -> Iterator[Streams]:
    """Give a list for ``later``; all copies are done at the end of the context, also after an exception."""
    later: Streams = []
    try:
        yield later
    finally:
        for stream in later:
            stream.synchronize()


def pin(side: Side, tensors: Sequence[Tensor]) -> None:
    """Pin a side's memory, once for each mapping, if any of ``tensors`` is on a CUDA device. This only saves time."""
    if side.pinned or not torch.cuda.is_initialized() or not any(tensor.is_cuda for tensor in tensors):  # type: ignore[no-untyped-call]
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    mapping = side.bytes.untyped_storage()  # from its first byte: by it torch judges whether a tensor is pinned
    address = mapping.data_ptr()
    error = int(runtime.cudaHostRegister(address, mapping.nbytes(), 0))
    if error:
        _forget_error()
        log.warning("commit memory is not pinned, commits will be slower: CUDA error %d", error)
    # After an error there is nothing to undo, and no second attempt.
    side.pin(_nothing if error else partial(_unpin, runtime, address))


def _unpin(runtime: Any, address: int) -> None:
    if int(runtime.cudaHostUnregister(address)):
        _forget_error()


def _nothing() -> None:
    pass


def _forget_error() -> None:
    """Clear CUDA's last error, which would otherwise be attributed to the next kernel of the training."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # after this kernel, torch reads and clears the last error
