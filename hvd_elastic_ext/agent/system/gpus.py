"""How busy the GPUs of this host are, by NVML through ``nvidia-ml-py``, where that is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

MISSING = "nvidia-ml-py is not installed there (pip install nvidia-ml-py)"


class Gpus:
    """``names``: of devices, as ``CUDA_VISIBLE_DEVICES`` has them. The library is loaded at the first look.

    ``problem``: why there is no value; "" if nothing has failed.
    """

    def __init__(self, names: str, library: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._names = [name.strip() for name in names.split(",") if name.strip()]
        self._library = library
        self._nvml: Any = None
        self.problem = ""

    def look(self) -> float | None:
        """The share of the last moments (up to 1 s) in which a GPU computed, mean of all; None if it is not known."""
        if not self._names or self.problem == MISSING:
            return None
        try:
            nvml = self._nvml or self._library()
        except ImportError:
            self.problem = MISSING
            return None
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            used: list[int] = [nvml.nvmlDeviceGetUtilizationRates(self._device(name)).gpu for name in self._names]
        except nvml.NVMLError as error:  # parts of a GPU have no such figure, for one
            self.problem = f"NVML: {error}"
            return None
        self.problem = ""
        return min(1.0, max(0.0, sum(used) / len(used) / 100))

    def said(self) -> dict[str, Any]:
        """For the launcher: ``gpu``, or ``gpu_unknown``, why not; nothing for a host without GPUs."""
        used = self.look()
        if used is not None:
            return {"gpu": round(used, 4)}
        return {"gpu_unknown": self.problem} if self.problem else {}

    def _device(self, name: str) -> Any:
        """A device by its number or UUID."""
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
