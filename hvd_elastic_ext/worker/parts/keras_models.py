"""How a Keras model is built, for an export of its checkpoints. For Keras 2 and Keras 3: neither is imported here."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from typing import Any, Final, NoReturn

from hvd_elastic_ext.checkpoint.format.descriptions import RUNS_CODE, Description
from hvd_elastic_ext.core.json_text import to_text

log = logging.getLogger(__name__)

PACKAGES: Final = ("keras", "tf_keras")


def described(model: Any, *, names: tuple[str, ...] = ()) -> Description:
    """Return the description of a model, with ``names`` of its variables.

    There is no configuration for a subclassed model, nor for one with layers that are not Keras' own, that run code
    (:data:`RUNS_CODE`), or that have more than variables, such as a vocabulary; nor for one with NaN or infinity in it.
    """
    base = next((kind for kind in type(model).__mro__ if _package(kind) in PACKAGES), None)
    if base is None:
        return Description(names)
    package = _package(base)
    version = str(getattr(sys.modules.get(package), "__version__", ""))
    return Description(names, f"{package} {version}", _config(model, base))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _config(model: Any, base: type) -> str:
    """Return what Keras itself writes into a ``.keras`` file, but without what the model is compiled with: that may be
    of Horovod's or the user's own classes. ``base``: the first class of Keras'."""
    own = type(model).__mro__[: type(model).__mro__.index(base)]
    if base.__name__ not in ("Functional", "Sequential") or any(
        {"call", "__call__"} & vars(kind).keys() for kind in own
    ):
        return ""
    try:
        within = list(model._flatten_layers(include_self=False))
        if not all(map(_is_plain, within)):
            return ""
        library: Any = importlib.import_module(f"{_package(base)}.src.saving.serialization_lib")
        with warnings.catch_warnings(), library.ObjectSharingScope():
            warnings.simplefilter("ignore")
            config = library.serialize_keras_object(base.get_config(model))  # type: ignore[attr-defined]
            build = library.serialize_keras_object(model.get_build_config())
        if not {"layers", "name"} <= config.keys():
            return ""
        name = "Sequential" if base.__name__ == "Sequential" else "Model"
        found = {"module": "keras", "class_name": name, "config": config, "registered_name": None}
        return to_text(_uncompiled(found | ({"build_config": build} if build else {})), instead=_refuse)
    except Exception:  # each version of Keras has errors of its own; the commit is worth more than its export
        log.debug("Keras cannot describe %r", model, exc_info=True)
        return ""


def _uncompiled(config: Any) -> Any:
    """Return a configuration without what models within the model are compiled with."""
    if isinstance(config, dict):
        return {key: _uncompiled(value) for key, value in config.items() if key != "compile_config"}
    return [_uncompiled(value) for value in config] if isinstance(config, list | tuple) else config


def _refuse(number: float) -> NoReturn:
    raise ValueError(f"{number} is not JSON")


def _is_plain(layer: Any) -> bool:
    """Whether a layer is Keras' own, and its configuration and variables are all of it."""
    kind = type(layer)
    return _package(kind) in PACKAGES and kind.__name__ not in RUNS_CODE and not hasattr(layer, "save_assets")
