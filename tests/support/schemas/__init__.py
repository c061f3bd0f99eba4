"""The schemas of operators' own kinds of objects: JSON schemas, reduced from their CRDs. See NOTICE."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent

MPI_JOB: Final = "mpijob-v2beta1-0.8.2.json"
OLD_MPI_JOB: Final = "mpijob-v2beta1-0.4.0.json"
"""The last release whose MPIJob does not have native sidecars."""
TRAINING_JOB: Final = "trainingjob-v1alpha1.json"

PYTORCH_JOB: Final = "pytorchjob-v1.json"
SCALED_OBJECT: Final = "scaledobject-v1alpha1.json"


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """Read a schema by its file name."""
    read: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return read
