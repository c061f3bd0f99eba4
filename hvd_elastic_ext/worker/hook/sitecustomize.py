# ruff: noqa: PTH100, PTH118, PTH120 - pathlib is slow to import, and every Python program below an agent loads this
"""Python loads this at its start. It acts only in programs with a link to an agent: when Horovod is imported, and when
an error ends the program. It also loads the ``sitecustomize`` that it hides.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Finds Horovod's modules as usual, and patches them once they are loaded."""

    names = (
        "horovod.common.basics",
        "horovod.common.elastic",
        "horovod.torch",
        "horovod.tensorflow",
        "horovod.tensorflow.keras",
        "horovod.keras",
        "keras.src.optimizers.optimizer",
        "keras.src.optimizers.legacy.optimizer_v2",
        "tf_keras.src.optimizers.optimizer",
        "tf_keras.src.optimizers.legacy.optimizer_v2",
        "tensorflow.python.autograph.core.config",
        "tensorflow.python.training.monitored_session",
        *(("torch.distributed.distributed_c10d",) if "HVD_ELASTIC_COLLECTIVES" in os.environ else ()),
    )

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                _follow(spec)
                return spec
        return None


def _follow(spec: Any) -> None:
    """Patch a module right after its own code has run."""
    load = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        _hooks()[spec.name](module)

    spec.loader.exec_module = exec_module


class _Absent:
    """Finds our ``kubeai``. Python uses it last, so that another ``kubeai`` goes first."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != "kubeai":
            return None
        if importlib.util.find_spec("hvd_elastic_ext") is None:
            _make_importable()
        folder = os.path.join(os.path.dirname(_HERE), name)
        return importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def _hooks() -> Mapping[str, Callable[[ModuleType], None]]:
    """Return the patches by module."""
    try:
        if importlib.util.find_spec("hvd_elastic_ext") is None:
            _make_importable()
        from hvd_elastic_ext.worker.patches.horovod_hook import HOOKS
    except Exception as error:
        # Without the patches this process would train alone, unnoticed.
        raise ImportError(
            f"hvd-elastic: this Python ({sys.executable}) cannot load the hook that joins a process to its job "
            f"({type(error).__name__}: {error}); install hvd-elastic-ext into it"
        ) from error
    return HOOKS


def _make_importable() -> None:
    """Make our package importable in an environment where it is not installed, but no other package beside it."""
    package = os.path.dirname(os.path.dirname(_HERE))
    spec = importlib.util.spec_from_file_location(
        "hvd_elastic_ext", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hvd_elastic_ext"] = module
    spec.loader.exec_module(module)


def _report_uncaught_errors() -> None:
    """Report an error that ends this program, also before Horovod or our package is imported."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if os.environ.get("HVD_ELASTIC_LINK"):  # otherwise the process that has the link reports it
            try:
                if importlib.util.find_spec("hvd_elastic_ext") is None:
                    _make_importable()
                from hvd_elastic_ext.worker.process.standby import current

                current().failed(error)
            except Exception as problem:  # noqa: BLE001 (what happens here must not hide the error itself)
                sys.stderr.write(f"hvd-elastic: this error could not be reported to the launcher: {problem}\n")
        known = sys.modules.get("hvd_elastic_ext.worker.process.error_report")  # without it, the error is not ours
        short = known.for_the_user(error) if known is not None and before is sys.__excepthook__ else None
        if short is None:
            before(kind, error, trace)
        else:
            sys.stderr.write(short)

    sys.excepthook = report


def _load_shadowed() -> None:
    """Load the ``sitecustomize`` that this one hides."""
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("HVD_ELASTIC_LINK"):
    sys.meta_path.insert(0, _Finder())
    sys.meta_path.append(_Absent())
    _report_uncaught_errors()
_load_shadowed()
