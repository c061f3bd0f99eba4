"""Leaves out of torch what eager training on a processor does not use, until somebody uses it.

The first optimizer of a process imports the compiler, which is half of the processor time of the process's start. All
that eager optimizers do with it is to tell it what not to compile. Kernels for tensors without data are a quarter of
the rest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def disable(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
    return function


def graph_break() -> None:
    pass


LATE: dict[str, dict[str, object]] = {
    "torch._meta_registrations": {},
    "torch._dynamo": {"disable": disable, "graph_break": graph_break},
}
"""Modules, and what is there of each before anything else is asked of one, which imports it and those before it."""


class _Late:
    """Finds a module in the place of one of these."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in LATE else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def of_the_module_itself(attribute: str) -> object:
            if attribute.startswith("__") and attribute != "__path__":  # what looks through all modules uses none
                raise AttributeError(attribute)
            for each in list(LATE):
                _let_in(each)
                if each == name:
                    break
            return getattr(import_module(name), attribute)

        vars(module).update(__file__=__file__, __getattr__=of_the_module_itself, **LATE[name])


def _let_in(name: str) -> None:
    del LATE[name]
    if sys.modules.pop(name, None) is not None:
        parent, _, last = name.rpartition(".")
        vars(sys.modules[parent]).pop(last, None)
    import_module(name)


sys.meta_path.insert(0, _Late())
