"""Functions that the scripts share."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch


def library(side: str) -> Any:
    """Return a side's module that has ``TorchState``."""
    return importlib.import_module("hvd_elastic_ext.torch" if side == "ours" else "horovod.torch.elastic")


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def together(action: Callable[[], object]) -> float:
    """Return the seconds until ``action`` is done on every rank."""

    def on_every_rank() -> None:
        action()
        barrier()

    barrier()
    return timed(on_every_rank)


def barrier() -> None:
    """Wait for every rank."""
    hvd.allreduce(torch.zeros(1), name="barrier")


def tensors(value: Any) -> list[torch.Tensor]:
    """Return every tensor in a state dict."""
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in inner for tensor in tensors(item)]


def resident_mb() -> float:
    """Return the memory of this process that is in use now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def tell(path: str, figures: dict[str, list[float]]) -> None:
    """Write the figures to a file, atomically."""
    fresh = Path(f"{path}.new")
    fresh.write_text(json.dumps(figures))
    fresh.replace(path)
