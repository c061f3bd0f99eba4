"""Reads a file of `torch.save` as plain values and tensors.

Uses torch's weights-only mode, whatever the environment says: nothing named in the file is run.
"""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import StateError

_UNREADABLE: Final = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, MemoryError,
)  # fmt: skip
"""Errors of torch for an invalid file."""

_SAFE: Final = (2, 6)
"""First safe version of torch: before it, a crafted file could run code in weights-only mode (CVE-2025-32434)."""


def import_torch_save(path: Path) -> Any:
    """Return the content of the file, with tensors in memory of their own on the CPU. Raises :class:`StateError` for a
    file that cannot be read, is not such a checkpoint, or contains other things than tensors and plain values, such as
    a whole model or objects of the user; and for every file with a torch before 2.6.
    """
    import torch

    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is None or (int(version[1]), int(version[2])) < _SAFE:
        raise StateError(
            f"{path}: torch {torch.__version__} may run code that such a file holds (CVE-2025-32434); "
            "install torch 2.6 or later to load it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error
    except _UNREADABLE as error:
        held = re.search(r"GLOBAL ([\w.]+)|type (?:<class ')?([\w.]+)(?:'>)? ", str(error))
        if held is not None and "nsupported" in str(error):
            name = held[1] or held[2]
            why = (
                f"it holds {name}, which is not a plain value; load it with your own program once, and save state dicts"
            )
        else:
            why = "it is not a checkpoint of torch.save, or it is damaged"
        raise StateError(f"{path}: {why}") from error
