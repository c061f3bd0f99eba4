"""``DistributedDataParallel`` that lives through changes of the world: ``elastic.ddp(model)``.

A DDP belongs to the process group in which it was made. It cannot be given another one: after its second backward pass
it sends gradients in the order in which they came, and a newcomer does not know that order. So each world has a DDP of
its own around the same module. It is made by the first forward pass there, on all ranks.

A script that calls ``DistributedDataParallel(model)`` within its training function needs none of this, since the
function begins anew in each world.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world

_WHOLE: Final = (1 << 62) - 1
_NUMBERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of as many bytes."""


class ElasticDDP(nn.Module):
    """Averages the gradients of ``module`` over the ranks of the present world; ``options`` are those of DDP.

    Its ``state_dict`` is that of a DDP: every name begins with ``module.``. Attributes of the module are at ``module``.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        if "process_group" in options or "device_mesh" in options:
            raise UsageError("elastic.ddp(): leave process_group and device_mesh out; each world has its own")
        self.module = module
        self._options = options
        self._hook: tuple[object, Any] | None = None
        self._made: list[tuple[dist.ProcessGroup, DistributedDataParallel]] = []  # a list hides it from state_dict()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of the module; the first one with gradients makes the DDP of this world, on all ranks.

        Without gradients (``torch.no_grad()``) the module is called itself: one rank may evaluate alone.
        """
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        return self._of_this_world()(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """As DDP's: gradients of backward passes within it are added up, and averaged by the first pass after it."""
        return self._of_this_world().no_sync()

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """As DDP's; each world's DDP gets the hook."""
        self._hook = state, hook
        made = self._made_here()
        if made is not None:
            made.register_comm_hook(state, hook)

    def _of_this_world(self) -> DistributedDataParallel:
        if not dist.is_available() or not dist.is_initialized():
            raise UsageError(
                "elastic.ddp() averages by torch.distributed, and this process is in no world of it: "
                "start with --engine torch or with torchrun and call elastic.init(), or use elastic.wrap"
            )
        made = self._made_here()
        if made is None:
            world = dist.group.WORLD
            assert world is not None
            self._made.clear()
            # With the same values everywhere, as after the State's sync, DDP need not send them again.
            options = {"init_sync": not _is_equal_everywhere(self.module), **self._options}
            made = DistributedDataParallel(self.module, **options)
            if self._hook is not None:
                made.register_comm_hook(*self._hook)
            self._made.append((world, made))
        made.training = self.training  # only its own: parts of the module may be frozen
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Copies, such as a moving average of the model, are in no world yet."""
        return {**self.__dict__, "_made": []}

    def _made_here(self) -> DistributedDataParallel | None:
        """The DDP of the present world."""
        world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        return self._made[0][1] if self._made and self._made[0][0] is world else None


def ddp(module: nn.Module, **options: Any) -> ElasticDDP:
    """Return ``module`` with gradients that are averaged over the present world, in one world after another.

    ``options`` are those of ``DistributedDataParallel``, without ``process_group``. Raises :class:`UsageError` at the
    first forward pass if this process is in no world of ``torch.distributed``.
    """
    return ElasticDDP(module, **options)


def _is_equal_everywhere(module: nn.Module) -> bool:
    """Whether all ranks have the same parameters and buffers, by a sum over their bits."""
    comms = current_world.joined()
    mine = (
        sum((place + 1) * _bits(value) for place, value in enumerate([*module.parameters(), *module.buffers()]))
        & _WHOLE
    )
    return comms.max(mine, name="ddp.most") == -comms.max(-mine, name="ddp.least")


def _bits(value: Tensor) -> int:
    with torch.no_grad():
        flat = torch.view_as_real(value) if value.is_complex() else value
        return int(flat.detach().contiguous().view(_NUMBERS[flat.element_size()]).sum(dtype=torch.int64).item())
