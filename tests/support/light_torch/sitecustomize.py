"""Delays imports of torch that a training process does without, until something uses them.

* The compiler, which the first optimizer of a process imports. Eager optimizers only use it to name functions that it
  must not compile.
* What operators do to tensors without data, in Python, which only the compiler and its tracers ask for.

Together they take more than half of the CPU time of the start of a process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

COMPILER, SHAPES = "torch._dynamo", "torch._meta_registrations"


def disable(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
    return function


def graph_break() -> None:
    pass


def generators() -> None:
    """The stub of the operators leaves out one thing that others need: torch's generators get their type there."""
    torch = sys.modules["torch"]
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(import_module("torch._opaque_base").OpaqueBaseMeta)


class _Stub:
    """Finds a small module in place of ``name``. The first use of anything else imports the real one, and those of
    ``needs`` before."""

    def __init__(self, name: str, *needs: str, **present: object) -> None:
        self._name, self._needs, self._present = name, needs, present

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self._name else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        if self._name == SHAPES:
            generators()
        vars(module).update(__file__=__file__, __getattr__=self._real, **self._present)

    def _real(self, attribute: str) -> object:
        """Return an attribute of the real module, which is imported now."""
        if attribute.startswith("__") and attribute != "__path__":  # code that looks through all modules uses nothing
            raise AttributeError(attribute)
        for need in self._needs:
            getattr(import_module(need), "__path__", None)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            package, _, last = self._name.rpartition(".")
            del sys.modules[self._name], vars(sys.modules[package])[last]
        return getattr(import_module(self._name), attribute)


sys.meta_path[:0] = [_Stub(COMPILER, SHAPES, disable=disable, graph_break=graph_break), _Stub(SHAPES)]
