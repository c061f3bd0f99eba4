"""How busy a host is: by files as the kernel writes them, and by a library in the form of ``pynvml``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_ext.agent.load import MISSING, Gpus, Usage


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_a_machine_is_as_busy_as_all_of_its_cores(tmp_path: Path) -> None:
    write(tmp_path, stat="cpu  100 0 100 800 0 0 0 0\n", meminfo="MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    usage = Usage(str(tmp_path / "none"), str(tmp_path), cores=2)
    assert usage.look(0.0) == {"memory": 0.75}
    write(tmp_path, stat="cpu  600 0 600 9000 0 0 0 0\n")
    assert usage.look(10.0) == {"cpu": pytest.approx(0.5), "memory": 0.75}


def test_a_container_with_limits_is_measured_by_those(tmp_path: Path) -> None:
    write(tmp_path, cpu_max="400000 100000\n", cpu_stat="usage_usec 1000000\nuser_usec 5\n")
    write(tmp_path, memory_max="1000\n", memory_current="700\n", memory_stat="anon 1\ninactive_file 200\n")
    usage = Usage(str(tmp_path), str(tmp_path))
    assert usage.look(0.0) == {"memory": 0.5}
    write(tmp_path, cpu_stat="usage_usec 21000000\nuser_usec 5\n")
    assert usage.look(10.0)["cpu"] == pytest.approx(0.5)


def test_a_container_without_limits_is_measured_as_its_machine(tmp_path: Path) -> None:
    write(tmp_path, cpu_max="max 100000\n", memory_max="max\n", memory_current="700\n")
    write(tmp_path, stat="cpu  0 0 0 0 0 0 0 0\n", meminfo="MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert Usage(str(tmp_path), str(tmp_path)).look(0.0) == {"memory": pytest.approx(0.1)}


@pytest.mark.parametrize("text", ["", "garbage", "cpu x y z", "cpu", "0 0\n", "1 2 3\n"])
def test_files_that_make_no_sense_give_no_value(tmp_path: Path, text: str) -> None:
    write(tmp_path, stat=text, meminfo=text, cpu_max=text, cpu_stat=text, memory_max=text, memory_current=text)
    usage = Usage(str(tmp_path), str(tmp_path))
    assert usage.look(0.0) == {}
    assert usage.look(1.0) == {}


def test_this_machine_has_both() -> None:
    usage = Usage()
    usage.look(0.0)
    found = usage.look(1.0)
    assert found.keys() == {"cpu", "memory"}
    assert all(0.0 <= share <= 1.0 for share in found.values())


# --- how busy GPUs are, by a library of this form: ``pynvml`` itself needs a driver ----------------------


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
