"""The load of this host's GPUs, from NVML through ``nvidia-ml-py``, if installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

MISSING = "nvidia-ml-py is not installed there (pip install nvidia-ml-py)"


class Gpu(NamedTuple):
    """One device. ``busy``: the share of the last moments (up to 1 s) in which it computed. Memory is in bytes."""

    name: str
    busy: float
    used: int
    memory: int


class Gpus:
    """``names``: the devices, as in ``CUDA_VISIBLE_DEVICES``. The library is loaded at the first look.

    ``problem``: why there is no value; "" if nothing has failed.
    """

    def __init__(self, names: str, library: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._names = [name.strip() for name in names.split(",") if name.strip()]
        self._library = library
        self._nvml: Any = None
        self.problem = ""

    def look(self) -> list[Gpu]:
        """Return every device; none if a value of one is unknown."""
        if not self._names or self.problem == MISSING:
            return []
        try:
            nvml = self._nvml or self._library()
        except ImportError:
            self.problem = MISSING
            return []
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            found = [self._one(name) for name in self._names]
        except nvml.NVMLError as error:  # for example, a part of a GPU has no such figure
            self.problem = f"NVML: {error}"
            return []
        self.problem = ""
        return found

    def report(self) -> dict[str, Any]:
        """Return the values for the launcher: ``gpu``, the mean load, and ``gpu_memory``, the share in use.

        Or ``gpu_unknown``, why these are not known; nothing for a host without GPUs.
        """
        if gpus := self.look():
            busy = sum(gpu.busy for gpu in gpus) / len(gpus)
            used = sum(gpu.used for gpu in gpus) / max(1, sum(gpu.memory for gpu in gpus))
            return {"gpu": round(min(1.0, max(0.0, busy)), 4), "gpu_memory": round(min(1.0, max(0.0, used)), 4)}
        return {"gpu_unknown": self.problem} if self.problem else {}

    def _one(self, name: str) -> Gpu:
        device, nvml = self._device(name), self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        return Gpu(name, nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100, memory.used, memory.total)

    def _device(self, name: str) -> Any:
        """A device by its number or UUID."""
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
