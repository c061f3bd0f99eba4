"""The parts of a State whose ranks train alone between two averages: the averaging itself, and its inner optimizer.

A commit of such a State is made at an average and holds the outer state. What a rank has of its own since then (its
weights, its optimizer's state) is in no commit, and a sync does not change it. Beside the commit, in its own slot's
memory, is what the inner optimizer's state was at that average, for the next process of the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.data.rounds import Round
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.local_sgd import Averager, averages_by_itself
from hvd_elastic_ext.worker.parts import Part, tensor_trees
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, OptimizerPart, ParameterNames
from hvd_elastic_ext.worker.stock import ElasticSampler as StockSampler


class InnerOptimizerPart(OptimizerPart):
    """The optimizer of the steps between two averages: its groups and settings. Its state stays in its slot."""

    def capture(self) -> Any:
        """Return its settings by group, and the names of its parameters."""
        tree = super().capture()
        return {**tree, "state_dict": {**tree["state_dict"], "state": {}}}

    def in_place(self) -> None:
        """Loading is always needed: it keeps the live state."""

    def restore(self, tree: Any) -> None:
        """Load the settings, and keep the live state. Raises :class:`StateError` as for other optimizers."""
        self._regroup(tree["state_dict"]["param_groups"], tree["names"])
        groups = tensor_trees.copied(tree["state_dict"]["param_groups"])
        self._load_options({"state": {}, "param_groups": groups})

    def make_ready(self) -> list[Tensor]:
        """Nothing: no sync brings its state."""
        return []

    def state(self) -> Any:
        """Return its state by the number of each parameter, such as moments."""
        return super().capture()["state_dict"]["state"]

    def put_back_state(self, state: Any) -> None:
        """Make its state equal to a result of :meth:`state`, and keep the settings."""
        super().restore({"state_dict": {**self.value.state_dict(), "state": state}, "names": self._group_names()})


class AveragingPart(Part):
    """LocalSGD or DiLoCo: what the State's other parts have to be with it, and the state of its outer optimizer."""

    firm = True

    def __init__(self, value: Averager, names: ParameterNames) -> None:
        self.value = value
        self._names = names
        self._outer = None if value.outer is None else OptimizerPart(value.outer, names)
        self._parts: Mapping[str, Part] = {}

    def join(self, parts: Mapping[str, Part]) -> None:
        """Have the State keep only settings of the inner optimizer. Raises :class:`StateError` for parts that cannot be
        averaged, and :class:`UsageError` if the optimizer averages by itself."""
        self._parts = parts
        self.value.demand_alone()
        self.value.buffers = self._buffers
        name = next(name for name, part in parts.items() if part is self)
        if "" in parts:
            raise StateError(f"state.{name}: {type(self.value).__name__} needs elastic.TorchState, not ElasticMixin")
        for other, part in list(parts.items()):
            self._demand_fit(name, other, part)
            if isinstance(part, OptimizerPart) and part.value is self.value.inner:
                parts[other] = InnerOptimizerPart(part.value, self._names)  # type: ignore[index]
        models = [part.value for part in parts.values() if isinstance(part, ModelPart)]
        held = {id(parameter) for model in models for parameter in model.parameters()}
        if not held.issuperset(map(id, self.value.parameters())):
            raise StateError(
                f"state.{name} averages parameters that are in no model of this State; give the State the model"
            )
        self.samplers()

    def samplers(self) -> dict[str, ElasticSampler]:
        """Return the State's samplers, by name. From now on each knows that ranks train alone."""
        values = {name: getattr(part, "value", None) for name, part in self._parts.items()}
        found = {name: value for name, value in values.items() if isinstance(value, ElasticSampler)}
        for sampler in found.values():
            if sampler.round is None:
                sampler.round = Round()
                sampler.assign()
        return found

    @property
    def inner(self) -> InnerOptimizerPart | None:
        """The part of the inner optimizer; None if the State does not have it."""
        return next((part for part in self._parts.values() if isinstance(part, InnerOptimizerPart)), None)

    def capture(self) -> Any:
        """Return the state of the outer optimizer, if there is one."""
        return None if self._outer is None else self._outer.capture()

    def restore(self, tree: Any) -> None:
        """Restore the outer optimizer."""
        if self._outer is not None:
            self._outer.restore(tree)

    @property
    def class_name(self) -> str:
        """LocalSGD or DiLoCo, and the class of the outer optimizer."""
        outer = "" if self._outer is None else f" with {self._outer.class_name}"
        return type(self.value).__name__ + outer

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return the inner optimizer: its steps are the job's steps."""
        return {name: self.value.inner}

    def settle(self) -> None:
        """Drop gradients of the outer optimizer."""
        if self._outer is not None:
            self._outer.settle()

    def assigning(self, name: str) -> None:
        """Refuse it."""
        raise UsageError(
            f"state.{name} cannot be replaced: {type(self.value).__name__} averages what this State was built with; "
            "build another State, or change the object that is there"
        )

    def _buffers(self) -> Iterator[Tensor]:
        """Buffers of the models, each once, and all of models that the inner optimizer does not train, such as a mean
        of the weights: the script changes them on each rank."""
        models = [part.value for part in self._parts.values() if isinstance(part, ModelPart)]
        trained = set(map(id, self.value.parameters()))
        own = [model for model in models if not trained.isdisjoint(map(id, model.parameters()))]
        known = trained.union(id(parameter) for model in own for parameter in model.parameters())
        for model in models:
            for tensor in (*model.buffers(), *model.parameters()):
                if id(tensor) not in known:
                    known.add(id(tensor))
                    yield tensor

    def _demand_fit(self, name: str, other: str, part: Part) -> None:
        kind = type(self.value).__name__
        value = getattr(part, "value", None)
        own = (self.value.inner, self.value.outer)
        if isinstance(part, AveragingPart) and part is not self:
            raise StateError(f"state.{name} and state.{other} both average; give the State one of them")
        if isinstance(part, OptimizerPart) and not any(value is each for each in own):
            raise StateError(
                f"state.{other} is not the optimizer of state.{name}, and its steps would never be averaged; give the "
                f"State only the optimizer that {kind} has, neither wrapped nor another one"
            )
        if isinstance(part, ModelPart) and averages_by_itself(value):
            raise StateError(
                f"state.{other} averages gradients in each step (DistributedDataParallel); give {kind} the plain model"
            )
        if isinstance(value, ElasticStream):
            raise StateError(
                f"state.{other} is an ElasticStream, whose ranks read in step; with {kind} use elastic.ElasticSampler"
            )
        if isinstance(value, StockSampler) and not isinstance(value, ElasticSampler):
            raise StateError(
                f"state.{other} is Horovod's sampler, whose ranks step together; with {kind} use elastic.ElasticSampler"
            )
        if part.has_sync:
            raise StateError(
                f"state.{other} has a sync of its own, for ranks that are equal; with {kind} they are so only at an "
                "average: leave it out of the State"
            )


def part_for(value: object, names: ParameterNames) -> Part | None:
    """Return the part that keeps LocalSGD and DiLoCo; None for anything else."""
    if isinstance(value, type) and issubclass(value, Averager):
        raise UsageError(f"the State was given the class {value.__name__}; give an object of it")
    return AveragingPart(value, names) if isinstance(value, Averager) else None


def among(parts: Sequence[Part]) -> AveragingPart | None:
    """Return the part that averages, if there is one."""
    return next((part for part in parts if isinstance(part, AveragingPart)), None)
