"""States as users write them, careful and sloppy. Each holds a model, an optimizer, a counter and a list."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import horovod.torch as hvd
from horovod.common.elastic import ObjectState
from horovod.common.elastic import State as StockState
from horovod.torch.elastic import state as stock


class Own(StockState):
    """A careful one: copies what it saves, broadcasts everything from rank 0."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.model = model
        self.optimizer = optimizer
        self.rank = hvd.rank()
        self.batch = values.pop("batch", 0)
        self.history = values.pop("history", [])
        self.synced = 0

    def state(self) -> dict[str, Any]:
        return {"batch": self.batch, "history": self.history, "optimizer": self.optimizer.state_dict()}

    def take(self, state: dict[str, Any]) -> None:
        self.batch, self.history = state["batch"], state["history"]
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        self._weights = copy.deepcopy(self.model.state_dict())
        self._rest = copy.deepcopy(self.state())

    def restore(self) -> None:
        self.model.load_state_dict(self._weights)
        self.take(self._rest)

    def sync(self) -> None:
        self.synced += 1
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.take(hvd.broadcast_object(self.state(), root_rank=0))


class Sloppy(Own):
    """Saves the live tensors and the live list themselves: its own roll-back changes nothing."""

    def save(self) -> None:
        self._weights = self.model.state_dict()
        self._rest = self.state()


@dataclasses.dataclass
class Kept:
    history: list[Any] = dataclasses.field(default_factory=list)


class InPlace(Own):
    """Changes what it saved last, instead of assigning something new; equal to what is live at first."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        super().__init__(model, optimizer, **values)
        self._rest = {"batch": self.batch}
        self._kept = Kept()

    def save(self) -> None:
        self._weights = copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])
        self._rest["batch"] = self.batch
        self._kept.history = self.history

    def restore(self) -> None:
        self.model.load_state_dict(self._weights[0])
        self.optimizer.load_state_dict(self._weights[1])
        self.batch = self._rest["batch"]
        self.history = self._kept.history


class Hasty(Sloppy):
    """Saves itself before it is complete."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        StockState.__init__(self, bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.batch, self.history, self.synced = 0, [], 0
        self.model = model
        self.save()
        super().__init__(model, optimizer, **values)

    def state(self) -> dict[str, Any]:
        return super().state() if hasattr(self, "optimizer") else {"batch": self.batch, "history": self.history}


class KeepsAModel(Own):
    """Keeps a copy of the whole model and of the optimizer's state."""

    def save(self) -> None:
        self._copy = copy.deepcopy(self.model)
        self._rest = copy.deepcopy(self.state())

    def restore(self) -> None:
        self.model.load_state_dict(self._copy.state_dict())
        self.take(self._rest)


class Plain(ObjectState):
    """Horovod's State for plain objects, with a model beside it that it knows nothing of but the weights."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        self.model, self.optimizer = model, optimizer
        values = {"batch": 0, "history": [], **values}
        super().__init__(hvd.broadcast_object, hvd.rank, weights=self.live(), **values)

    def live(self) -> list[Any]:
        return [self.model.state_dict(), self.optimizer.state_dict()]

    def save(self) -> None:
        self.weights = self.live()
        super().save()

    def restore(self) -> None:
        super().restore()
        self.model.load_state_dict(self.weights[0])
        self.optimizer.load_state_dict(self.weights[1])


class Stock(hvd.elastic.TorchState):
    """Horovod's own State, with a handler of the user's in its registry: see :func:`with_handlers`."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        super().__init__(model, optimizer, **{"batch": 0, "history": [], "average": Average(), **values})


class Average:
    """A running average, of a type that only the user's own handler knows."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value


class AverageHandler(stock.StateHandler):
    def __init__(self, value: Average) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self.kept = self.value.value

    def restore(self) -> None:
        self.value.value = self.kept

    def sync(self) -> None:
        self.value.value = hvd.broadcast_object(self.value.value, root_rank=0)


class with_handlers:
    """Registers the handler with Horovod for as long as it is entered."""

    def __enter__(self) -> None:
        self._before = stock.get_handler_registry()
        stock.set_handler_registry([(Average, AverageHandler), *self._before])

    def __exit__(self, *_: object) -> None:
        stock.set_handler_registry(self._before)


OLD: dict[str, Any] = {
    "own": Own,
    "sloppy": Sloppy,
    "in_place": InPlace,
    "hasty": Hasty,
    "keeps_a_model": KeepsAModel,
    "object_state": Plain,
    "torch_state": Stock,
}
