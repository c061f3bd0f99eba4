"""Tests that need TensorFlow, and a Horovod that was built for it, have the mark ``needs_tensorflow``.

``scripts/matrix-tensorflow`` finds their files by the import of this module. They import TensorFlow in a fixture or a
test: other processes collect them, too, and its import takes seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

MISSING: Final = "needs TensorFlow: make test WITH=tensorflow"
KERAS_3_MISSING: Final = "needs Keras 3: make test WITH=tensorflow"
STAMP: Final = "hvd-setup.json"
"""What scripts/setup writes into the environment that it makes."""


def is_there() -> bool:
    """Whether there are TensorFlow and the library that Horovod loads into it. Imports neither."""
    return importlib.util.find_spec("tensorflow") is not None and any(_libraries())


def is_keras_3_there() -> bool:
    """Whether there is Keras 3, which may be without TensorFlow. Does not import it."""
    try:
        return int(metadata.version("keras").partition(".")[0]) >= 3
    except metadata.PackageNotFoundError:
        return False


def has_mpi() -> bool:
    """Whether that library was built with MPI, too."""
    return any(b"libmpi" in library.read_bytes() for library in _libraries())


def _libraries() -> Iterator[Path]:
    for place in _places("horovod"):
        yield from (Path(place) / "tensorflow").glob("mpi_lib*.so")


def _places(package: str) -> Iterable[str]:
    found = importlib.util.find_spec(package)
    return [] if found is None else found.submodule_search_locations or []


def left_out(environment: Path = Path(sys.prefix)) -> bool:
    """Whether this environment was set up without TensorFlow, so that a test without it is not a surprise.

    False for any other environment: who made it by other means knows what is in it.
    """
    try:
        return not json.loads((environment / STAMP).read_text())["options"]["tensorflow"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


needs_tensorflow: Final = pytest.mark.skipif(not is_there(), reason=MISSING)


def load() -> Any:
    """Return TensorFlow with Keras 2, in a process that may also run tests of Keras 3 on torch.

    Horovod's module for TensorFlow imports ``keras``, too, which has one backend in a process: so it is loaded first.
    TensorFlow and Keras warn of themselves while they are loaded.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}.items():
            patch.setenv(name, value)
        if importlib.util.find_spec("keras") is not None and importlib.util.find_spec("tf_keras") is not None:
            importlib.import_module("keras")  # without tf_keras, it is TensorFlow's own
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.keras.layers.Dense  # noqa: B018 (loads Keras)
    if folder := os.environ.get("TMPDIR"):  # where translated functions are written, and stay as bytecode
        loader: Any = importlib.import_module("tensorflow.python.autograph.pyct.loader")
        loader.tempfile = SimpleNamespace(NamedTemporaryFile=partial(tempfile.NamedTemporaryFile, dir=folder))
    return tensorflow
