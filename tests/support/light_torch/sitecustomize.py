"""Delays imports of torch that a training process does without, until something uses them.

* The compiler, which the first optimizer of a process imports. Eager optimizers only use it to name functions that it
  must not compile.
* What operators do to tensors without data, in Python, which only the compiler and its tracers ask for.
* What traces functions, and what few models use.

Nor does the garbage collector look through the modules of torch again and again. Together this takes more than half of
the CPU time of the start of a process.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

COMPILER, SHAPES, EXPORT = "torch._dynamo", "torch._meta_registrations", "torch.export"
OPS, FUNC, REGIONS = "torch._higher_order_ops", "torch.func", "torch._higher_order_ops.invoke_subgraph"
TRACERS = (OPS, REGIONS, FUNC, "torch.nested", "torch.distributions", "torch.masked", "torch.quantization")
"""All of them need the tracer of torch, which comes with ``torch.export``."""


def disable(function: Callable[..., object] | None = None, *_: object, **__: object) -> Callable[..., object]:
    return disable if function is None else function


def graph_break() -> None:
    pass


class Part:
    """A module of the compiler: what torch asks it without compiling anything, and else the real one."""

    def __init__(self, name: str, **present: object) -> None:
        vars(self).update(present, part=name)

    def __getattr__(self, name: str) -> object:
        getattr(import_module(COMPILER), "real", None)
        return getattr(import_module(f"{COMPILER}.{self.part}"), name)


PARTS: dict[str, object] = {
    "utils": Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),  # DistributedDataParallel: the default
    "trace_rules": Part("trace_rules", clear_lru_cache=lambda: None),  # a new process group: there is no cache yet
}


def generators() -> None:
    """The stub of the operators leaves out one thing that others need: torch's generators get their type there."""
    torch = sys.modules["torch"]
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(import_module("torch._opaque_base").OpaqueBaseMeta)


class _Stub:
    """Finds a small module in place of ``name``. The first use of anything else imports the real one, and those of
    ``needs`` before. ``package``: modules in it can be imported without it."""

    def __init__(self, name: str, *needs: str, package: bool = False, **present: object) -> None:
        self._name, self._needs, self._package, self._present = name, needs, package, present

    def find_spec(self, name: str, path: Iterable[str] = (), target: object = None) -> ModuleSpec | None:
        if name != self._name:
            if name == "torch" and self._name == SHAPES:
                gc.disable()
            return None
        spec = ModuleSpec(name, self)  # type: ignore[arg-type]
        if self._package:
            spec.submodule_search_locations = [f"{folder}/{name.rpartition('.')[2]}" for folder in path]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        if self._name == SHAPES:
            generators()
            import_module("torch.fx.passes")  # else its modules import one another in an order that fails
            gc.enable()
            gc.freeze()
        vars(module).update(__file__=__file__, __getattr__=self._real, **self._present)

    def _real(self, attribute: str) -> object:
        """Return an attribute of the real module, which is imported now."""
        if attribute.startswith("__") and attribute != "__path__":  # code that looks through all modules uses nothing
            raise AttributeError(attribute)
        for need in self._needs:
            getattr(import_module(need), "real", None)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            package, _, last = self._name.rpartition(".")
            stub = sys.modules.pop(self._name)
            vars(sys.modules[package]).pop(last, None)
            real = import_module(self._name)
            for name, value in vars(stub).items():  # modules of a package that were imported without it
                if f"{self._name}.{name}" in sys.modules:
                    vars(real).setdefault(name, value)
        return getattr(import_module(self._name), attribute)


def later(module: str, name: str) -> Callable[..., object]:
    """A function of a module, the real one of which is imported when the function is called."""

    def call(*words: object, **named: object) -> object:
        getattr(import_module(module), "real", None)
        return getattr(import_module(module), name)(*words, **named)

    return call


FUNCTIONS: dict[str, dict[str, object]] = {
    OPS: {"cond": later(OPS, "cond"), "while_loop": later(OPS, "while_loop")},
    REGIONS: {"NestedCompileRegionOptions": object},
    FUNC: {"vmap": later(FUNC, "vmap")},
}
"""What torch itself imports by name from modules that are not there yet."""
sys.meta_path[:0] = [
    _Stub(COMPILER, SHAPES, EXPORT, *TRACERS, disable=disable, graph_break=graph_break, **PARTS),
    _Stub(SHAPES),
    _Stub(EXPORT, package=True),
    *(_Stub(name, EXPORT, package=True, **FUNCTIONS.get(name, {})) for name in TRACERS),
]
