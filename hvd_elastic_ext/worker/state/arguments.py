"""Checks the arguments that a training script gives to a State or a decorator. Each error is one line that says what
to do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import nn, optim
from torch.utils.data import DataLoader

from hvd_elastic_ext.core.errors import StateError, UsageError
from hvd_elastic_ext.worker.state.user_files import Checkpoint

METHODS = ("sync", "restore", "on_reset")
"""Attributes of every State, Horovod's and ours."""
_SCALARS = str | int | float
"""Types that can be neither a model nor an optimizer; a dict of tensors may be one."""
_OPTIONS: Mapping[str, type] = {"rng": bool, "comms": str, "checkpoint": Checkpoint}
"""Options of a State, which are not values to keep, with their types."""
_LAUNCHERS = ("commit_every", "checkpoint_every", "checkpoint_dir")
"""Options of ``hvd-elastic run`` that users may take for options of a State."""


def check_names(kind: type, unnamed: Sequence[object]) -> None:
    """Check that all arguments except the model and the optimizer have names. Raises :class:`StateError`."""
    if unnamed:
        raise StateError(
            f"{kind.__name__}(…): {_a(unnamed[0])} is given without a name; name what the State is to keep: "
            f"{kind.__name__}(model=model, optimizer=optimizer, name=value, …)"
        )


def check_values(kind: type, given: Mapping[str, Any]) -> None:
    """Check the named values for a State of class ``kind``. Raises :class:`StateError`."""
    made = f"{kind.__name__}(…)"
    model, optimizer = given.get("model"), given.get("optimizer")
    if isinstance(model, optim.Optimizer) and isinstance(optimizer, nn.Module):
        raise StateError(f"{made}: model and optimizer are swapped; write {kind.__name__}(model, optimizer, …)")
    for name, value in given.items():
        if isinstance(value, type):
            raise StateError(f"state.{name} is the class {value.__name__}; give an object of it: {_made(value)}")
        if isinstance(value, DataLoader) and not hasattr(value, "state_dict"):
            raise StateError(f"state.{name} is a DataLoader, which has no state to keep; give its sampler instead")
        if callable(getattr(kind, name, None)) or name.startswith("_"):
            raise StateError(f"state.{name} is a part of every State; give this value another name")
    if isinstance(model, optim.Optimizer | _SCALARS):
        raise StateError(f"state.model is {_a(model)}; give a torch.nn.Module there, and other values by other names")
    if isinstance(optimizer, nn.Module | _SCALARS):
        raise StateError(
            f"state.optimizer is {_a(optimizer)}; give a torch.optim.Optimizer there, and other values by other names"
        )


def check_options(kind: type, given: Mapping[str, Any]) -> None:
    """Check that no value to keep is an option with a mistake in its name. Raises :class:`StateError`.

    A value counts as such an option only if it has the option's type. Not for scripts that were written for Horovod's
    State.
    """
    for name, value in given.items():
        for right, of in _OPTIONS.items():
            if _is_slip(name, right) and isinstance(value, of):
                raise StateError(
                    f"{kind.__name__}(…): {name} is not an option; did you mean {right}? If it is a value to keep, "
                    "give it another name"
                )
        for right in _LAUNCHERS:
            if (name == right or _is_slip(name, right)) and isinstance(value, _SCALARS):
                raise StateError(
                    f"{kind.__name__}(…): {name} is not an option of a State; give --{right.replace('_', '-')} to "
                    "`hvd-elastic run`. If it is a value to keep, give it another name"
                )


def _is_slip(name: str, right: str) -> bool:
    """Whether ``name`` is ``right`` with one letter missing, too many, wrong, in another case, or with two swapped."""
    if name == right:
        return False
    word = name.lower()
    if len(word) == len(right):
        wrong = [at for at in range(len(right)) if word[at] != right[at]]
        if len(wrong) != 2:
            return len(wrong) < 2
        first, second = wrong
        return second == first + 1 and (word[first], word[second]) == (right[second], right[first])
    short, long = sorted((word, right), key=len)
    return len(long) == len(short) + 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def unknown(owner: object, name: str, names: Collection[str]) -> AttributeError:
    """Return the error of a State without an attribute ``name``. ``names``: the attributes that it has."""
    has = f"it has {', '.join(sorted(names))}" if names else "it was given no values"
    return AttributeError(f"{type(owner).__name__} has no attribute {name!r}{_nearest(name, names)}; {has}")


def not_kept(name: str, names: Collection[str]) -> str:
    """Return a warning about an attribute that was set on a State, but not given when the State was made."""
    return (
        f"state.{name} is not kept: it was not given when the State was made{_nearest(name, names)}; "
        f"it is neither committed nor restored, and new ranks do not get it"
    )


def check_mixin(kind: type, mixin: type, stock: type, face: type) -> None:
    """Check the bases of a class that uses ``mixin``. ``stock``: Horovod's State; ``face``: the methods of our States.

    Raises :class:`StateError`.
    """
    order = kind.__mro__
    if any(issubclass(base, face) and issubclass(base, stock) and not issubclass(base, mixin) for base in order):
        raise StateError(f"class {kind.__name__}: elastic.TorchState needs no ElasticMixin; leave the mixin out")
    states = [base for base in order if issubclass(base, stock) and not issubclass(base, mixin)]
    if states and order.index(states[0]) < order.index(mixin):
        old = states[0].__name__
        raise StateError(
            f"class {kind.__name__}: ElasticMixin comes after {old}, which would go first; "
            f"write class {kind.__name__}(ElasticMixin, {old})"
        )


def check_has_state(kind: type, stock: type) -> None:
    """Check that there is a State behind the mixin. Raises :class:`StateError`."""
    if not issubclass(kind, stock):
        raise StateError(
            f"class {kind.__name__} has an ElasticMixin, but no State of Horovod's behind it; "
            f"write class {kind.__name__}(ElasticMixin, MyState), or use elastic.TorchState"
        )


def check_function(train: object) -> None:
    """Check what ``elastic.run`` decorates. Raises :class:`UsageError`."""
    if isinstance(train, type) or not callable(train):
        what = f"the class {train.__name__}" if isinstance(train, type) else _a(train)
        raise UsageError(f"@elastic.run was given {what}; decorate the training function or method, as @elastic.run")


def state_among(train: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the State among the arguments of a training function or method. Raises :class:`UsageError` without one."""
    for given in (*args[:2], kwargs.get("state")):
        if all(callable(getattr(given, name, None)) for name in METHODS) and not isinstance(given, type):
            return given
    named = getattr(train, "__name__", "the training function")
    if classes := [given for given in (*args[:2], kwargs.get("state")) if _is_class_of_state(given)]:
        made = _made(classes[0])
        raise UsageError(f"{named} was called with the class {classes[0].__name__}; give an object of it: {made}")
    first = type(args[0]).__name__ if args else "nothing"
    raise UsageError(
        f"{named} was called with {first} as its first argument; it takes a State there: elastic.TorchState, or one of "
        "Horovod's"
    )


def _is_class_of_state(given: object) -> bool:
    return isinstance(given, type) and all(callable(getattr(given, name, None)) for name in METHODS)


def _made(kind: type) -> str:
    """Return how to make an object of a class, as far as known: with or without arguments."""
    try:
        needs = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return f"{kind.__name__}(…)"
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    none = all(parameter.kind in optional or parameter.default is not parameter.empty for parameter in needs)
    return f"{kind.__name__}()" if none and not issubclass(kind, optim.Optimizer) else f"{kind.__name__}(…)"


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _a(value: object) -> str:
    return f"a value of type {type(value).__name__}"
