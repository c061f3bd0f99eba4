"""Common code of all ``Comms``: divides tensors into pieces, and converts them to types that a library can sum."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished result, in place of a pending one."""

    number: int

    def wait(self) -> int:
        """Return the number at once."""
        return self.number


def pieces(data: Tensor, longest: int) -> Iterator[Tensor]:
    """Yield views of ``data`` of at most ``longest`` bytes.

    Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
    """
    if data.dtype != torch.uint8 or data.dim() != 1 or data.device.type != "cpu" or not data.is_contiguous():
        shape = "×".join(map(str, data.shape))
        raise UsageError(
            f"broadcast: a {data.dtype} tensor of shape {shape} on {data.device} cannot be sent; "
            "give a flat, contiguous uint8 tensor on the CPU"
        )
    for start in range(0, data.numel(), longest):
        yield data[start : start + longest]


def reducible(data: Tensor, native: Collection[torch.dtype], *, device: str = "cpu") -> Tensor:
    """Return the tensor to sum: ``data`` itself, or a copy on ``device`` in a type with at least the same range.

    Raises :class:`UsageError` for a sparse tensor.
    """
    if data.layout != torch.strided:
        raise UsageError(f"sum: a tensor of layout {data.layout} cannot be added up; give it as .to_dense()")
    detached = data.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached.resolve_conj())
    wider = torch.float32 if detached.dtype.is_floating_point else torch.int64
    kind = detached.dtype if detached.dtype in native else wider
    where = detached.device if detached.device.type == device else torch.device(device)
    return detached.to(where, kind).contiguous()


def copy_back(carried: Tensor, data: Tensor) -> None:
    """Copy the result back, unless it is ``data`` itself."""
    with torch.no_grad():
        if data.is_complex():
            carried = torch.view_as_complex(carried)
        if carried.data_ptr() != data.data_ptr() or carried.dtype != data.dtype:
            data.copy_(carried)
