"""Writes Keras' own files, ``.weights.h5`` and ``.keras``, of a model in a checkpoint.

The same Keras writes them that the job trained with, so it must be installed here. It builds the model from the
configuration in the checkpoint, or a function of the user's does. A checkpoint may come from anywhere: Keras' safe mode
stays on, and nothing is built that is not on a list of what only computes. Keras itself takes any name from any module.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.checkpoint.format.descriptions import RUNS_CODE, Description
from hvd_elastic_ext.core.errors import Permanent, UsageError

if TYPE_CHECKING:
    from torch import Tensor

WHOLE: Final = ".keras"
WEIGHTS: Final = ".weights.h5"
ENDINGS: Final = (WHOLE, WEIGHTS)
MODEL: Final = "model"
"""The name of the model in the State of Keras."""

_REMEDY: Final = "give --model FILE.py:FUNCTION, a function of yours that returns the model, built"
_OWN: Final = "_hvd_elastic_model_of_"
"""Before the name of the user's file, the name of its module."""
_TORCH: Final = "_torch_params."
"""In the ``state_dict`` of a Keras model on torch: what comes before the path of each of its variables."""

_PURE: Final = re.compile(
    r"(compat\.v1\.)?((math|nn|linalg|signal|image|bitwise|sparse|strings|__operators__)\.[a-z]\w*|"
    r"abs|add|argmax|argmin|boolean_mask|broadcast_to|cast|clip_by_norm|clip_by_value|concat|cos|cumsum|divide|einsum|"
    r"equal|exp|expand_dims|floor|gather|gather_nd|greater|greater_equal|identity|less|less_equal|logical_and|"
    r"logical_not|logical_or|matmul|maximum|minimum|multiply|negative|norm|not_equal|one_hot|ones_like|pad|pow|range|"
    r"rank|reduce_\w+|repeat|reshape|reverse|roll|round|shape|sigmoid|sign|sin|size|slice|split|sqrt|square|squeeze|"
    r"stack|stop_gradient|subtract|tanh|tensordot|tile|transpose|truediv|unstack|where|zeros_like)"
)
"""Functions of TensorFlow that a layer may be of (``TFOpLambda``): they compute."""

_OPERATIONS: Final = frozenset({"TFOpLambda", "SlicingOpLambda"})
_KINDS: Final[Mapping[str, str]] = {
    "keras.layers": "Layer",
    "keras.initializers": "Initializer",
    "keras.regularizers": "Regularizer",
    "keras.constraints": "Constraint",
}
"""Public modules of Keras, and the class of it that what is built from them has to be of."""

_CLASSES: Final = frozenset(
    {("keras", "Sequential"), ("keras", "Model"), ("keras", "DTypePolicy"), ("keras.mixed_precision", "Policy")}
    | {("keras.random", "SeedGenerator"), ("keras.src.models.functional", "Functional")}
    | {(f"{package}.src.engine.functional", "Functional") for package in ("keras", "tf_keras")}
    | {(f"{package}.src.layers.core.tf_op_layer", name) for package in ("keras", "tf_keras") for name in _OPERATIONS}
    | {("keras.src.ops.core", name) for name in ("Cast", "SaturateCast", "StopGradient", "Unstack")}
)
"""Other classes that Keras 2 and 3 write for ordinary models: some of them it has only in modules of its own."""

_OPS: Final = frozenset(f"keras.src.ops.{name}" for name in ("numpy", "nn", "math", "linalg", "image"))
"""Modules of Keras 3 for the operations between layers."""

_VALUES: Final = frozenset({"__tensor__", "__numpy__", "__bytes__", "__keras_tensor__", "__slice__", "__ellipsis__"})
_ACTIVATIONS: Final = frozenset({"keras.activations", "builtins"})
"""Modules that Keras names for its activations."""

_NOT_ACTIVATIONS: Final = frozenset({"get", "serialize", "deserialize"})
"""Functions among the activations that are not activations."""


def write(
    content: Mapping[str, Any], descriptions: Mapping[str, Description], path: Path, *, given: str | None = None
) -> int:
    """Write the Keras model in the ``content`` of a State, and return the number of its variables.

    ``path``: ends with one of :data:`ENDINGS`. ``given``: ``FILE.py:FUNCTION``, a function that returns the built
    model, which is called instead of reading how to build it. Raises :class:`UsageError` and :class:`Permanent`.
    """
    name = _model_in(content, descriptions)
    description, kept = descriptions.get(name, Description()), content[name]
    of_torch = isinstance(kept, Mapping)
    if of_torch:
        kept = [kept.get(f"{_TORCH}{each}") for each in description.names]
    keras = _keras(torch=of_torch)
    model = _built(keras, description, name) if given is None else _returned(given)
    variables = [*model.variables, *([] if of_torch else _states(model))]
    for variable, tensor in zip(variables, _ordered(variables, kept, description, name), strict=True):
        variable.assign(tensor if of_torch else _array(tensor, variable))
    try:
        (model.save if path.name.endswith(WHOLE) else model.save_weights)(str(path))
    except OSError:
        raise
    except Exception as error:  # the user's get_config may raise anything
        raise Permanent(f"{name}: Keras cannot save this model: {_first(error)}") from error
    return len(model.variables)


def _model_in(content: Mapping[str, Any], descriptions: Mapping[str, Description]) -> str:
    """Return the name of the State's Keras model. An older checkpoint does not describe any."""
    models = [name for name, each in descriptions.items() if each.keras and name in content]
    if MODEL in models or (not models and not descriptions and isinstance(content.get(MODEL), list)):
        return MODEL
    if len(models) == 1:
        return models[0]
    if models:
        raise UsageError(
            f"the State holds several models ({', '.join(sorted(models))}), and none is called {MODEL}; "
            "export it to .safetensors or .pt"
        )
    raise UsageError("the State holds no model of Keras; export it to .safetensors or .pt")


def _keras(*, torch: bool) -> Any:
    """Return the installed Keras: Keras 3 on torch, or Keras 2 on TensorFlow. On the CPU: a job may use the GPUs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # these are read when they are loaded
    if torch:
        os.environ.setdefault("KERAS_BACKEND", "torch")
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
        if (keras := _imported("keras", "3")) is not None:
            return keras
        raise UsageError("this file is written by Keras 3, which is not installed here; pip install keras")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    if (keras := _imported("tf_keras", "2") or _imported("keras", "2")) is not None:
        with contextlib.suppress(RuntimeError):  # it is in use already
            sys.modules["tensorflow"].config.set_visible_devices([], "GPU")
        return keras
    raise UsageError(
        "this file is written by TensorFlow's Keras 2, which is not installed here; pip install tensorflow tf-keras, "
        "or run the command where the job trains"
    )


def _imported(package: str, version: str) -> Any:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        found = importlib.import_module(package)
    except ImportError:  # tf_keras without TensorFlow
        return None
    return found if str(getattr(found, "__version__", "")).startswith(f"{version}.") else None


def _built(keras: Any, description: Description, name: str) -> Any:
    """Build a model from its configuration."""
    if not description.keras:
        raise UsageError(f"{name}: the checkpoint does not say how it is built; {_REMEDY}")
    if not description.config:
        raise UsageError(
            f"{name}: Keras cannot build it by itself (it is subclassed, or it has a Lambda or layers that are not "
            f"Keras' own); {_REMEDY}"
        )
    library: Any = importlib.import_module(f"{keras.__name__}.src.saving.serialization_lib")
    try:
        config = json.loads(description.config)
        problem = foreign(config, keras)
        if problem is None:
            with library.ObjectSharingScope():
                return library.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # each version of Keras has errors of its own
        raise Permanent(f"{name}: Keras {keras.__version__} cannot build it: {_first(error)}; {_REMEDY}") from error
    raise UsageError(f"{name}: it is built with {problem}, which is not done from a checkpoint; {_REMEDY}")


def foreign(config: Any, keras: Any) -> str | None:
    """Return what in a configuration is not to be built, as a phrase: all that is not a layer, a model, an activation
    and the like of this ``keras``, or that runs code, reads files, or is more than its variables."""
    rest = [config]
    while rest:
        each = rest.pop()
        if isinstance(each, list):
            rest += each
        if not isinstance(each, dict):
            continue
        rest += each.values()
        if problem := _problem(each, keras):
            return problem
    return None


def _problem(found: dict[str, Any], keras: Any) -> str | None:
    if isinstance(found.get("vocabulary"), str):  # a path, or a URL
        return "a vocabulary from a file"
    if found.get("compile_config"):
        return "what it was compiled with"
    if "class_name" not in found:
        return None
    kind, module, inner = found["class_name"], found.get("module"), found.get("config")
    if kind in RUNS_CODE or kind == "__lambda__":
        return f"a {kind}"
    if kind in _VALUES and found.keys() <= {"class_name", "config"}:
        return None
    name: Any = inner if kind == "function" else kind
    # where a module lacks the name, Keras 2 takes the registered one
    known = isinstance(name, str) and name.isidentifier() and found.get("registered_name") in (None, name)
    if not (known and (_is_activation if kind == "function" else _is_class)(module, name, keras)):
        return f"{name!r:.80}" + ("" if module is None else f" of {module!r:.80}")
    function = inner.get("function") if kind in _OPERATIONS and isinstance(inner, dict) else None
    if kind in _OPERATIONS and not (isinstance(function, str) and _PURE.fullmatch(function)):
        return repr(f"tf.{function!s:.80}")
    return None


def _is_activation(module: Any, name: str, keras: Any) -> bool:
    return module in _ACTIVATIONS and name not in _NOT_ACTIVATIONS and callable(vars(keras.activations).get(name))


def _is_class(module: Any, name: str, keras: Any) -> bool:
    """Whether a class may be built from a checkpoint: as for a commit, one with more than variables may not be."""
    if (module, name) in _CLASSES:
        return True
    if module in _OPS and hasattr(keras, "Operation"):
        found = vars(importlib.import_module(module)).get(name)
        return isinstance(found, type) and found.__module__ == module and issubclass(found, keras.Operation)
    if module not in _KINDS:
        return False
    public: Any = getattr(keras, module.rpartition(".")[2])
    found = vars(public).get(name)
    base = getattr(public, _KINDS[module])
    return isinstance(found, type) and issubclass(found, base) and not hasattr(found, "save_assets")


def _returned(given: str) -> Any:
    """Return the result of the function that ``FILE.py:FUNCTION`` names."""
    file, _, name = given.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"--model {given}: there is no file {file or given}; write FILE.py:FUNCTION")
    # under a name of its own: a json.py or keras.py must not replace the library
    own = f"{_OWN}{path.stem}"
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--model {given}: {file} has no function {name}")
    model = function()
    if not getattr(model, "built", False):
        raise UsageError(f"--model {given}: it returned a {type(model).__name__}, not a Keras model that is built")
    return model


def _states(model: Any) -> list[Any]:
    """What stateful layers remember, which a commit has after the variables (``worker/parts/tensorflow_parts.py``).
    Keras saves none of it."""
    layers = [layer for layer in model.submodules if getattr(layer, "stateful", False) is True]
    found = sys.modules["tensorflow"].nest.flatten([getattr(layer, "states", None) for layer in layers])
    return list({id(each): each for each in found if hasattr(each, "assign")}.values())


def _ordered(variables: Sequence[Any], kept: Any, description: Description, name: str) -> list[Tensor]:
    """Return the content of each variable: by names if both have the same, else by place."""
    if not isinstance(kept, list) or not all(hasattr(each, "dtype") for each in kept):
        raise UsageError(f"{name}: the checkpoint does not hold its variables; export it to .safetensors or .pt")
    names, here = description.names, [getattr(variable, "path", variable.name) for variable in variables]
    tensors: list[Tensor] = kept
    if len(set(names)) == len(names) == len(tensors) == len(here) and set(names) == set(here):
        by_name = dict(zip(names, tensors, strict=True))
        tensors = [by_name[each] for each in here]
    _demand(len(tensors) == len(variables), f"has {len(variables)} variables, and the checkpoint {len(tensors)}", name)
    for shown, variable, tensor in zip(here, variables, tensors, strict=True):
        mine, theirs = _form(variable), _form(tensor)
        _demand(_fits(mine, theirs), f"has {shown!r} of {_text(mine)}, and the checkpoint {_text(theirs)}", name)
    return tensors


def _form(value: Any) -> tuple[Sequence[int | None], str]:
    """Shape and type of a tensor, or of a variable of either Keras, whose dimensions may be open (None)."""
    dtype = getattr(value.dtype, "name", None) or str(value.dtype).removeprefix("torch.")
    return tuple(value.shape), dtype


def _fits(mine: tuple[Sequence[int | None], str], theirs: tuple[Sequence[int | None], str]) -> bool:
    (shape, kind), (other, its_kind) = mine, theirs
    return (
        kind == its_kind and len(shape) == len(other) and all(a in (None, b) for a, b in zip(shape, other, strict=True))
    )


def _text(form: tuple[Sequence[int | None], str]) -> str:
    return f"{'x'.join(map(str, form[0])) or 'scalar'} {form[1]}"


def _demand(fits: bool, why: str, name: str) -> None:
    if not fits:
        raise UsageError(f"{name}: the model that was built {why}; {_REMEDY}")


def _array(tensor: Tensor, variable: Any) -> Any:
    """Return the content as NumPy data of the variable's type; NumPy itself does not know bfloat16."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(variable.dtype.as_numpy_dtype)
    return tensor.numpy()


def _first(error: Exception) -> str:
    """The beginning of an error, on one line: Keras puts whole configurations into them."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
