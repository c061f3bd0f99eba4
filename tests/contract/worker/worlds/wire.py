"""What may come from other ranks."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import horovod.torch as hvd

from tests.contract.worker.worlds.registry import check


@dataclasses.dataclass
class Best:
    """A class of the script."""

    loss: float = 0.5


@check
def a_class_that_only_the_root_has_is_refused(State: Any) -> dict[str, Any]:
    best = None
    if hvd.rank() == 0:
        Stranger = dataclasses.make_dataclass("Stranger", ["value"])
        Stranger.__module__ = __name__
        sys.modules[__name__].Stranger = Stranger
        best = Stranger(5)
    state = State(best=best)
    state.sync()
    return {"best": state.best.value}


@check
def dataclasses_of_the_script_come_in(State: Any) -> dict[str, Any]:
    state = State(best=Best(0.25) if hvd.rank() == 0 else None)
    state.sync()
    return {"best": state.best.loss}
