"""How busy GPUs are, by a library of this form: ``pynvml`` itself needs a driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_ext.agent.load import MISSING, Gpus


class Failed(Exception):
    """What the library raises."""


class Library:
    """Two devices. ``fails``: a function, and what it says."""

    NVMLError = Failed

    def __init__(self, **busy: int) -> None:
        self.busy = busy
        self.begun = 0
        self.fails: tuple[str, str] | None = None

    def __call__(self) -> Library:
        return self

    def _may_fail(self, name: str) -> None:
        if self.fails is not None and self.fails[0] == name:
            raise Failed(self.fails[1])

    def nvmlInit(self) -> None:
        self._may_fail("nvmlInit")
        self.begun += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid.replace("GPU-", "gpu")

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._may_fail("rates")
        return SimpleNamespace(gpu=self.busy[handle], memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=1000, used=10 * self.busy[handle], free=0)


@pytest.mark.parametrize(("names", "said"), [("0,1", 0.5), ("GPU-1", 0.8), ("1, 0", 0.5), ("0", 0.2)])
def test_a_host_is_as_busy_as_its_devices_on_average(names: str, said: float) -> None:
    library = Library(gpu0=20, gpu1=80)
    gpus = Gpus(names, library)
    assert [gpus.report(), gpus.report()] == [{"gpu": said, "gpu_memory": said}] * 2
    assert library.begun == 1


def test_without_devices_the_library_is_not_loaded() -> None:
    def library() -> Any:
        pytest.fail("loaded")

    assert Gpus("", library).report() == {}


def test_without_the_library_it_is_said_why_and_not_tried_again() -> None:
    tried = []

    def library() -> Any:
        tried.append(1)
        raise ImportError("no pynvml")

    gpus = Gpus("0", library)
    assert [gpus.report(), gpus.report()] == [{"gpu_unknown": MISSING}] * 2
    assert len(tried) == 1


@pytest.mark.parametrize("where", ["nvmlInit", "rates"])
def test_what_the_library_refuses_is_said_until_it_does_not(where: str) -> None:
    library = Library(gpu0=30)
    library.fails = where, "Not Supported"
    gpus = Gpus("0", library)
    assert gpus.report() == {"gpu_unknown": "NVML: Not Supported"}
    library.fails = None
    assert gpus.report() == {"gpu": 0.3, "gpu_memory": 0.3}
    assert gpus.problem == ""
