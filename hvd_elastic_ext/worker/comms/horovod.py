"""Horovod's collectives behind the ``Comms`` port. The only importer of ``horovod.torch`` below the public face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.fence import Fence

_PREFIX = "hvd_elastic_ext"

StockSampler = hvd.elastic.ElasticSampler


class HorovodComms:
    """The world that ``hvd.init()`` joined.

    Every operation has a name of its own: Horovod's automatic names count
    calls, and a newcomer has made fewer of them.
    """

    def rank(self) -> int:
        return int(hvd.rank())

    def size(self) -> int:
        return int(hvd.size())

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        if self.size() == 1:
            return value
        return hvd.broadcast_object(value, root_rank=0, name=f"{_PREFIX}.{name}")

    def broadcast_tensors(self, tensors: Sequence[Tensor], *, name: str) -> None:
        if self.size() == 1:
            return
        started = []
        for index, tensor in enumerate(tensors):
            if tensor.numel():
                data = _bytes_of(tensor)
                started.append((tensor, data, hvd.broadcast_async_(data, 0, f"{_PREFIX}.{name}.{index}")))
        for tensor, data, handle in started:
            hvd.synchronize(handle)
            if not tensor.is_contiguous():
                tensor.copy_(data.view(tensor.dtype).view(tensor.shape))

    def max(self, number: int, *, name: str) -> int:
        if self.size() == 1:
            return number
        return int(hvd.allreduce(torch.tensor([number]), op=hvd.Max, name=f"{_PREFIX}.{name}").item())

    def reset(self) -> None:
        hvd.shutdown()
        try:
            hvd.init()
        except ValueError as error:
            # Horovod reports a world that did not form as a wrong value; it is a lost peer like any other.
            raise HorovodInternalError(f"joining the next world failed: {error}") from error


def _bytes_of(tensor: Tensor) -> Tensor:
    """View a tensor's memory as bytes, so that any type can be sent; a copy if it is not contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def fence_horovod() -> Fence:
    """From now on the connections of every world that ``hvd.init()`` joins are known; the fence that knows them.

    The function is replaced where users and Horovod's own loop look it up.
    Calling this again gives the same fence.
    """
    known: Fence | None = getattr(hvd.init, "hvd_elastic_fence", None)
    if known is not None:
        return known
    fence = Fence()
    watched: Any = fence.watching(hvd.init)
    watched.hvd_elastic_fence = fence
    hvd.init = hvd.elastic.init = watched
    return fence


def horovod_comms() -> Comms:
    return HorovodComms()
