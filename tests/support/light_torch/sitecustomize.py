"""Delays the import of torch's compiler until something uses it.

The first optimizer of a process imports it, which takes half of the CPU time of the process's start. Eager optimizers
only use it to name functions that it must not compile.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

COMPILER = "torch._dynamo"


def disable(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
    return function


def graph_break() -> None:
    pass


def of_the_compiler(name: str) -> object:
    """Return an attribute of the compiler, which is imported now."""
    if name.startswith("__") and name != "__path__":  # code that looks through all modules does not use the compiler
        raise AttributeError(name)
    if _stub in sys.meta_path:
        sys.meta_path.remove(_stub)
        del sys.modules[COMPILER], vars(sys.modules["torch"])["_dynamo"]
    return getattr(import_module(COMPILER), name)


class _Stub:
    """Finds a small module in place of the compiler."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == COMPILER else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__file__=__file__, disable=disable, graph_break=graph_break, __getattr__=of_the_compiler)


_stub = _Stub()
sys.meta_path.insert(0, _stub)
