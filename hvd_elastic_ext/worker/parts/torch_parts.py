"""The parts of torch's objects: models, optimizers, gradient scalers, generators, and whatever else has a
``state_dict``.

A captured tree holds the live tensors; the commit buffer copies them once. A part restores from tensors in the commit's
memory, or from copies of them (``takes_views``). Where only torch's own code saves and loads an object, its tensors are
copied in place, and nothing is loaded.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn, optim

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.copying import copy_batch
from hvd_elastic_ext.worker.data.shares import MeasuredShares
from hvd_elastic_ext.worker.optim.averaging import drop_step
from hvd_elastic_ext.worker.parts import InPlace, Part, tensor_trees
from hvd_elastic_ext.worker.parts.sharded import demand_whole
from hvd_elastic_ext.worker.parts.tensor_trees import Reserve
from hvd_elastic_ext.worker.stock import HorovodInternalError, HostsUpdatedInterrupt

DDP: Final = "module."
"""The prefix that torch's DistributedDataParallel adds to every name."""
MAX_NAMED: Final = 3
"""Most names in one error message."""
_COMMON: Final = {
    "params", "lr", "weight_decay", "decoupled_weight_decay", "foreach", "maximize", "capturable", "differentiable",
    "fused",
}  # fmt: skip
"""Arguments that do not identify a class of optimizer: several have them, or only some versions of torch."""


@runtime_checkable
class Stateful(Protocol):
    """An object that returns and loads its state: schedulers, gradient scalers, samplers, objects of the user."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class StatefulPart(Part):
    """An object with ``state_dict`` and ``load_state_dict``."""

    reload = True

    def __init__(self, value: Stateful) -> None:
        self.value = value

    @property
    def class_name(self) -> str | None:
        """The class name of a torch scheduler. None for others: a renamed class may still load the state."""
        return type(self.value).__name__ if isinstance(self.value, optim.lr_scheduler.LRScheduler) else None

    def capture(self) -> Any:
        """Return its ``state_dict()``."""
        return self.value.state_dict()

    def fitted(self, given: Any) -> Any:
        """Return ``given``: only its ``load_state_dict`` knows what fits."""
        return given

    def restore(self, tree: Any) -> None:
        """Give ``tree`` to its ``load_state_dict``. Raises :class:`StateError` if that fails."""
        with _loading(self.value):
            self.value.load_state_dict(tree)

    @property
    def shares(self) -> MeasuredShares | None:
        """The shares of a sampler or stream."""
        shares = getattr(self.value, "shares", None)
        return shares if isinstance(shares, MeasuredShares) else None


class GeneratorPart(Part):
    """A random generator of the user's own, for example that of a loader. It stays the same object. All ranks have the
    same state."""

    def __init__(self, value: torch.Generator) -> None:
        self.value = value

    def capture(self) -> Any:
        """Return the generator's state, one tensor."""
        return self.value.get_state()

    def fitted(self, given: Any) -> Any:
        """Return ``given``: only ``set_state`` knows what fits."""
        return given

    def restore(self, tree: Any) -> None:
        """Set the generator's state to the tensor ``tree``."""
        with _loading(self.value, RuntimeError):
            self.value.set_state(tree)


class ScalerPart(StatefulPart):
    """A gradient scaler. It drops its results for the gradients of an interrupted step."""

    value: torch.amp.GradScaler

    def restore(self, tree: Any) -> None:
        """Load the state; an enabled scaler stays as it is if ``tree`` is the empty state of a disabled one."""
        if tree or not self.value.is_enabled():  # a disabled one has no state
            super().restore(tree)

    def settle(self) -> None:
        """Clear what the scaler has recorded for each optimizer in the present step."""
        states = getattr(self.value, "_per_optimizer_states", None)
        if isinstance(states, defaultdict):
            states.clear()


class ModelPart(Part):
    """A module: parameters, buffers and extra state."""

    takes_views = True

    def __init__(self, value: nn.Module) -> None:
        self.value = value
        # With keep_vars parameters stay parameters, and so differ from buffers. A user's state_dict may not accept it.
        self._options: dict[str, Any] = {"keep_vars": True} if _takes(value.state_dict, "keep_vars") else {}

    def capture(self) -> Any:
        """Return its state dict. It contains the parameters themselves if ``state_dict`` accepts ``keep_vars``."""
        return self.value.state_dict(**self._options)

    def in_place(self) -> InPlace | None:
        """The state dict, if only torch's loader loads it and it contains only the model's own tensors."""
        modules = list(self.value.modules())
        if not all(map(_loads_as_torch_does, modules)) or any(map(_runs_after_loading, modules)):
            return None
        tree, own = self.capture(), _own_tensors(self.value)
        return InPlace(tree) if all(own.get(key) is value for key, value in tree.items()) else None

    def restore(self, tree: Any) -> None:
        """Load the committed state dict. A loader of the user's own gets copies of the tensors.

        Raises :class:`StateError` if the commit is of another model.
        """
        own = {}
        if all(map(_loads_as_torch_does, self.value.modules())):
            _fit_buffers(self.value, tree)
            own = _own_tensors(self.value)
        if own:
            _demand_same_tensors(self.capture(), tree, keys=own.keys())
        with _loading(self.value, RuntimeError):
            if own and own.keys() >= tree.keys() and not any(map(_runs_after_loading, self.value.modules())):
                copy_batch([own[key] for key in tree], list(tree.values()))  # at once; loading copies one by one
            else:
                given = {key: value if key in own else tensor_trees.copied(value) for key, value in tree.items()}
                self.value.load_state_dict(given)

    def fitted(self, given: Any) -> Any:
        """Return a ``state_dict`` with the names and forms of the live one. A prefix of all its names may be DDP's."""
        live = self.capture()
        if not isinstance(given, Mapping):
            raise StateError("it is not a state_dict")
        if given and all(str(key).startswith(DDP) for key in given) and not all(key.startswith(DDP) for key in live):
            given = {key.removeprefix(DDP): value for key, value in given.items()}
        if foreign := [str(key) for key in given if key not in live]:
            raise StateError(f"the model has no {listed(foreign)}")
        if absent := [key for key in live if key not in given]:
            raise StateError(f"there is no {listed(absent)}")
        for key, value in live.items():
            here, there = _form(value), _form(given[key])
            # Loading fits a buffer of another size.
            if here != there and (isinstance(value, nn.Parameter) or here[1:] != there[1:]):
                raise StateError(f"{key!r} is {_shape(given[key])}, and {_shape(value)} in the model")
        return given

    def settle(self) -> None:
        """Set all gradients to None."""
        for parameter in self.value.parameters():
            parameter.grad = None


class OptimizerPart(Part):
    """An optimizer: state, parameter groups, and which state belongs to which parameter.

    A roll-back removes groups that were added, and adds groups that were removed. A newcomer gets its groups by the
    names of their parameters.
    """

    firm = True
    takes_views = True

    def __init__(self, value: optim.Optimizer, names: ParameterNames) -> None:
        self.value = value
        self._names = names
        self._reserve = Reserve()
        self._named: list[list[Tensor]] = []
        self._group_names_known: list[list[str | None]] = []

    @property
    def class_name(self) -> str:
        """The class name of the optimizer. A wrapper makes a subclass with the same name."""
        return type(self.value).__name__

    def capture(self) -> Any:
        """Return the optimizer's state dict, and the names of its parameters by group."""
        return {"state_dict": self.value.state_dict(), "names": self._group_names()}

    def in_place(self) -> InPlace | None:
        """The result of :meth:`capture`, if only torch's own methods save and load it."""
        if not _saves_as_torch_does(self.value) or not _loads_state_as_torch_does(self.value):
            return None
        parameters = [p for group in self.value.param_groups for p in group["params"]]
        if not {key for key in self.value.state if isinstance(key, Tensor)} <= set(parameters):
            return None  # torch cannot save the state of a parameter that is in no group any more
        return InPlace(self.capture(), parameters)

    def align(self, live: str, committed: str) -> bool:
        """Load the committed options, such as a learning rate, if nothing else differs and they contain no tensor."""
        state, mark, options = committed.partition(_GROUPS)
        before, _, present = live.partition(_GROUPS)
        if not mark or before != state or _GROUPS in options or _TENSOR in options or _TENSOR in present:
            return False
        tree = read(f'{{"state_dict":{{{mark[1:]}{options}', _no_tensor)
        groups, here = tree["state_dict"]["param_groups"], self.value.param_groups
        sizes = [[len(group["params"]) for group in some] for some in (groups, here)]
        if tree["names"] != self._group_names() or sizes[0] != sizes[1] or not _are_placed_alike(here, groups):
            return False
        self._load_options({"state": {}, "param_groups": groups})
        return True

    def restore(self, tree: Any) -> None:
        """Copy the committed state into the live tensors where it fits, and load it with the committed groups.

        Raises :class:`StateError` if groups must be rebuilt and a committed parameter is in none of the State's models.
        """
        committed = tree["state_dict"]
        self._regroup(committed["param_groups"], tree["names"])
        parameters = [p for group in self.value.param_groups for p in group["params"]]
        pairs = tensor_trees.Pairs(parameters)
        own = {index: self.value.state.get(p) for index, p in enumerate(parameters)}
        state = {
            index: tensor_trees.settle(entry, own.get(index), pairs, new=self._reserve.like)
            for index, entry in committed["state"].items()
        }
        groups = tensor_trees.settle(committed["param_groups"], None, pairs)
        copy_batch([target for target, _ in pairs], [source for _, source in pairs])
        self._load({**committed, "state": state, "param_groups": groups}, parameters)

    def settle(self) -> None:
        """Drop gradients, pending reductions, and the tensors of :meth:`make_ready` that were not used."""
        drop_step(self.value)
        self._reserve.drop()

    def fitted(self, given: Any) -> Any:
        """Return a ``state_dict`` with the names of the live parameters. It must be of as large groups, and of the same
        class of optimizer, as far as its settings tell."""
        if not isinstance(given, Mapping) or not {"state", "param_groups"} <= given.keys():
            raise StateError("it is not a state_dict of an optimizer")
        try:
            there = [len(group["params"]) for group in given["param_groups"]]
        except (TypeError, KeyError):
            raise StateError("it is not a state_dict of an optimizer") from None
        self._demand_same_class(given["param_groups"])
        here = [len(group["params"]) for group in self.value.param_groups]
        if there != here:
            raise StateError(f"its groups have {there} parameters, and those of the State's optimizer {here}")
        return {"state_dict": given, "names": self._group_names()}

    def _demand_same_class(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuse groups with the settings of another class of torch: its first step would fail.

        A state_dict does not name its class. So classes with equal settings, such as Adam and AdamW, are not told
        apart.
        """
        settings_of = {
            name: inspect.signature(kind).parameters.keys() - _COMMON
            for name, kind in vars(optim).items()
            if isinstance(kind, type) and kind is not optim.Optimizer
        }
        settings = set[str]().union(*settings_of.values())
        here, there = (settings.intersection(*some[:1]) for some in (self.value.param_groups, groups))
        fitting = [name for name, own in settings_of.items() if own == there]
        if fitting and here != there:
            raise StateError(
                f"it is of the class {' or '.join(sorted(fitting))}, and the State's optimizer of {self.class_name}; "
                "make the same optimizer, or leave it out of names={…}"
            )

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return the optimizer by its name in the State."""
        return {name: self.value}

    def expected(self) -> list[Tensor]:
        """For each tensor that the first step will create, the parameter of the same size, as far as known; empty after
        that step."""
        if self.value.state:
            return []
        return [
            parameter
            for group in self.value.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
            for _ in range(_tensors_each(self.value, group))
        ]

    def make_ready(self) -> list[Tensor]:
        """Allocate tensors for the expected state, and return them."""
        return self._reserve.stock(self.expected())

    def _load(self, state_dict: dict[str, Any], parameters: list[Tensor]) -> None:
        if self._is_in_place(state_dict, parameters):
            self._load_options({**state_dict, "state": {}})
            return
        with _loading(self.value):
            self.value.load_state_dict(state_dict)
        # Loading converts state to the type of its parameter; the committed state may have another type.
        for index, entry in state_dict["state"].items():
            live = self.value.state.get(parameters[index], {}) if isinstance(index, int) else {}
            for key, value in entry.items() if isinstance(entry, dict) else ():
                if isinstance(value, Tensor) and isinstance(live.get(key), Tensor) and live[key].dtype != value.dtype:
                    live[key] = value.to(live[key].device)

    def _load_options(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict without state; the live state stays."""
        state = self.value.state
        with _loading(self.value):
            self.value.load_state_dict(state_dict)
        self.value.state = state

    def _is_in_place(self, state_dict: Mapping[str, Any], parameters: Sequence[Tensor]) -> bool:
        """Whether the optimizer already has the state objects of ``state_dict``, on the devices of its parameters."""
        if not _are_placed_alike(self.value.param_groups, state_dict["param_groups"]):
            return False
        if not _loads_state_as_torch_does(self.value):
            return False
        live, state = self.value.state, state_dict["state"]
        if len(live) != len(state):
            return False
        parameter_of = dict(enumerate(parameters))
        return all(
            index in parameter_of
            and parameter_of[index] is parameter
            and type(own) is type(entry) is dict
            and list(own) == list(entry)
            and all(map(is_, own.values(), entry.values()))
            and {getattr(own[key], "device", None) for key in own if key != "step"} <= {parameter.device, None}
            for (parameter, own), (index, entry) in zip(live.items(), state.items(), strict=True)
        )

    def _group_names(self) -> list[list[str | None]]:
        groups = [list(group["params"]) for group in self.value.param_groups]
        if [list(map(id, group)) for group in groups] != [list(map(id, group)) for group in self._named]:
            self._named, self._group_names_known = groups, self._names(groups)
        return self._group_names_known

    def _regroup(self, groups: list[dict[str, Any]], names: list[list[str | None]]) -> None:
        """Give the optimizer the committed parameter groups, without their options."""
        live = self.value.param_groups
        wanted, present = ([len(group["params"]) for group in some] for some in (groups, live))
        moved = self._are_of_others(names)
        if present == wanted and not moved:
            return
        if present[: len(wanted)] == wanted and not moved:
            del live[len(wanted) :]
        else:
            chosen = self._chosen(names)
            live[:] = [{**options, "params": params} for options, params in zip(groups, chosen, strict=True)]
        kept = {id(parameter) for group in live for parameter in group["params"]}
        for parameter in [p for p in self.value.state if id(p) not in kept]:
            del self.value.state[parameter]

    def _are_of_others(self, names: list[list[str | None]]) -> bool:
        """Whether the first groups have other parameters than the committed ones, as far as names show."""
        if self._group_names()[: len(names)] == names:
            return False
        by_name = self._names.parameters()
        return all(name in by_name for group in names for name in group)

    def _chosen(self, names: list[list[str | None]]) -> list[list[Tensor]]:
        by_name = self._names.parameters()
        missing = [name for group in names for name in group if name not in by_name]
        if missing:
            raise StateError(
                f"the optimizer's commit has other parameter groups than this one, and {missing[0] or 'a parameter'} "
                "is not in any model of this State; give the State the model, and build the same optimizer on every "
                "rank"
            )
        return [[by_name[name] for name in group if name is not None] for group in names]


_GROUPS: Final = ',"param_groups":['
"""The text behind the state in an optimizer's state dict. It occurs in no string, whose quotes are escaped."""
_TENSOR: Final = '{"$tensor":'


def _are_placed_alike(live: Sequence[Mapping[str, Any]], committed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the options that determine the device of the state are the same in each group."""
    pairs = zip(live, committed, strict=True)
    return all(here.get(option) == there.get(option) for here, there in pairs for option in ("fused", "capturable"))


def _no_tensor(index: int, kind: str) -> Any:
    raise ValueError("it holds a tensor")


_TENSORS_EACH: Final[Mapping[str, int]] = {
    "Adadelta": 2, "Adam": 2, "AdamW": 2, "Adamax": 2, "ASGD": 1, "NAdam": 2, "RAdam": 2, "RMSprop": 1, "Rprop": 2,
}  # fmt: skip
"""Tensors of a parameter's size that a torch optimizer keeps for each parameter, without those for options."""


def _tensors_each(optimizer: optim.Optimizer, group: Mapping[str, Any]) -> int:
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    options = sum(bool(group.get(option)) for option in ("amsgrad", "momentum", "centered"))
    return options + next((_TENSORS_EACH[name] for name in names if name in _TENSORS_EACH), 0)


class ParameterNames:
    """Names of the parameters of all models of a State: "model.weight"."""

    def __init__(self) -> None:
        self.models: Callable[[], Mapping[str, nn.Module]] = dict
        """The State's models by name. The State sets this."""

    def __call__(self, groups: Sequence[Sequence[Tensor]]) -> list[list[str | None]]:
        """Return the names of the parameters in ``groups``; None for a parameter that is not in any model."""
        name_of = {id(parameter): name for name, parameter in self.parameters().items()}
        return [[name_of.get(id(parameter)) for parameter in group] for group in groups]

    def parameters(self) -> dict[str | None, Tensor]:
        """Return every parameter of every model by its name."""
        models = self.models().items()
        return {f"{name}.{key}": parameter for name, model in models for key, parameter in model.named_parameters()}


def part_for(value: object, names: ParameterNames) -> Part | None:
    """Return the part that keeps ``value``; None for a plain value. Raises :class:`StateError` for sharded models."""
    if isinstance(value, nn.Module | optim.Optimizer):
        demand_whole(value)
    if isinstance(value, nn.Module):
        return ModelPart(value)
    if isinstance(value, optim.Optimizer):
        return OptimizerPart(value, names)
    if isinstance(value, torch.amp.GradScaler):
        return ScalerPart(value)
    if isinstance(value, torch.Generator):
        return GeneratorPart(value)
    if isinstance(value, Stateful) and not isinstance(value, type):
        return StatefulPart(value)
    return None


@contextmanager
def _loading(value: object, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of ``value`` into :class:`StateError` if a commit of another object may cause them. ``more``: further
    types of such errors."""
    unfit: tuple[type[Exception], ...] = (LookupError, TypeError, ValueError, AttributeError, *more)
    try:
        yield
    except (HorovodInternalError, HostsUpdatedInterrupt):  # a user's loader may communicate with other ranks
        raise
    except unfit as error:
        what = "another model" if isinstance(value, nn.Module) else f"something other than this {type(value).__name__}"
        text = " ".join(str(error).split())
        shown = text if isinstance(error, RuntimeError) else f"{type(error).__name__}: {text}"
        raise StateError(f"the commit is of {what}: {shown}") from error


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        key: tensor
        for named in (model.named_parameters, model.named_buffers)
        for key, tensor in named(remove_duplicate=False)
    }


def _runs_after_loading(module: nn.Module) -> bool:
    return bool(getattr(module, "_load_state_dict_post_hooks", None))


def _loads_as_torch_does(module: nn.Module) -> bool:
    """Whether loading only copies from the tensors. A loader of the user's own may keep the tensors that it gets."""
    kind = type(module)
    own = next(base for base in kind.__mro__ if "_load_from_state_dict" in vars(base))
    hooks = getattr(module, "_load_state_dict_pre_hooks", None) or getattr(module, "_state_dict_hooks", None)
    patched = "load_state_dict" in vars(module) or kind.load_state_dict is not nn.Module.load_state_dict
    return not patched and own.__module__.startswith("torch.nn.") and not hooks


def _saves_as_torch_does(optimizer: optim.Optimizer) -> bool:
    """Whether ``state_dict()`` contains the live tensors."""
    own = "state_dict" in vars(optimizer) or type(optimizer).state_dict is not optim.Optimizer.state_dict
    return not own and not getattr(optimizer, "_optimizer_state_dict_post_hooks", None)


def _loads_state_as_torch_does(optimizer: optim.Optimizer) -> bool:
    """Whether loading only puts the state into its place, and does nothing else with it."""
    loaders = [
        vars(kind)[name]
        for kind in type(optimizer).__mro__
        for name in ("load_state_dict", "__setstate__")
        if name in vars(kind)
    ]
    hooks = (f"_optimizer_load_state_dict_{when}_hooks" for when in ("pre", "post"))
    return (
        all(loader.__module__.startswith(("torch.optim.", "horovod.torch.")) for loader in loaders)
        and "load_state_dict" not in vars(optimizer)
        and not any(getattr(optimizer, hook, None) for hook in hooks)
    )


def _fit_buffers(model: nn.Module, committed: Mapping[str, Any]) -> None:
    """Give buffers the committed size, if larger or smaller ones have replaced them since."""
    for key, buffer in list(model.named_buffers()):
        wanted = committed.get(key)
        if isinstance(wanted, Tensor) and wanted.shape != buffer.shape:
            owner, _, name = key.rpartition(".")
            module = model.get_submodule(owner)
            module._buffers[name] = torch.empty_like(wanted, device=buffer.device)


def _demand_same_tensors(live: Mapping[str, Any], committed: Mapping[str, Any], *, keys: Collection[str]) -> None:
    """Raise :class:`StateError` for tensors of another form. Loading gives less clear errors, and converts types."""
    for key in [key for key in {**committed, **live} if key in keys or (key in live) != (key in committed)]:
        here, there = live.get(key), committed.get(key)
        if isinstance(here, Tensor) and isinstance(there, Tensor):
            same = here.shape == there.shape and here.dtype == there.dtype
        else:
            same = key in live and key in committed and isinstance(here, Tensor) == isinstance(there, Tensor)
        if not same:
            shown = [_shape(tree[key]) if key in tree else "absent" for tree in (live, committed)]
            raise StateError(
                f"{key!r} is {shown[0]} here and {shown[1]} in the commit; build the same model on every rank"
            )


def _form(value: Any) -> tuple[Any, ...]:
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (None, None)


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "not a tensor"
    return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"


def listed(names: Sequence[str]) -> str:
    """Return names for an error message: the first few, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(repr, names[:MAX_NAMED])) + more


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
