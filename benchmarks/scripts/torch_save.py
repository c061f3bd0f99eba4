"""Saves tensors with `torch.save` and `fsync`, and loads them again: ``torch_save.py FOLDER BYTES TIMES``.

Prints the seconds of each as a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch


def main() -> None:
    folder, length, times = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tensors = {name: torch.randn(length // 12) for name in ("weights", "first moments", "second moments")}
    measured: dict[str, list[float]] = {"save": [], "load": []}
    for _ in range(times):
        os.sync()
        path = folder / "saved.pt"
        begun = time.monotonic()
        with path.open("wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        measured["save"].append(time.monotonic() - begun)
        begun = time.monotonic()
        torch.load(path, weights_only=True)
        measured["load"].append(time.monotonic() - begun)
        path.unlink()
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
