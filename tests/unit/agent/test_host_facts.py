"""Facts of a host that its agent reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent import host_facts
from hvd_elastic_ext.agent.host_facts import LONGEST, devices


def test_versions_are_read_from_what_installers_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "torch-2.13.0+cpu.dist-info"),
        (first, "Hvd.Elastic-ext-0.1.0.dist-info"),
        (first, "hvd_elastic_ext-0.1.0.dist-info"),
        (second, "torch-1.0.dist-info"),  # hidden by the first
        (second, "horovod-0.28.1-py3.11.egg-info"),
        (second, "broken.dist-info"),
    ):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(first), str(tmp_path / "none"), str(second)])
    versions = {"torch": "2.13.0+cpu", "hvd-elastic-ext": "0.1.0", "horovod": "0.28.1", "numpy": None}
    assert host_facts.versions() == versions


def test_a_connection_leaves_through_the_interface_that_has_its_address() -> None:
    known = {"lo": "127.0.0.1", "eth0": "10.0.0.2"}
    assert host_facts.through("10.0.0.2", known) == "eth0"
    assert host_facts.through("127.0.0.5", known) == "lo"
    assert host_facts.through("10.0.0.3", known) is None


# --- which devices an agent finds on its host, without any library of their maker's ----------------------


def gpu(root: Path, bus: str, minor: int, *, uuid: str | None = None, model: str = "NVIDIA H100 80GB HBM3") -> None:
    """What the driver shows of one GPU."""
    folder = root / "proc/driver/nvidia/gpus" / bus
    folder.mkdir(parents=True)
    name = uuid or f"GPU-0000{minor}"
    folder.joinpath("information").write_text(
        f"Model: \t\t {model}\nIRQ:   \t\t 42\nGPU UUID: \t {name}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
    )


def node(root: Path, *names: str) -> None:
    root.joinpath("dev").mkdir(exist_ok=True)
    for name in names:
        root.joinpath("dev", name).touch()


def test_gpus_are_named_in_the_order_of_their_bus(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:87:00.0", 0)
    gpu(tmp_path, "0000:07:00.0", 1)
    node(tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null")
    assert devices({}, root=str(tmp_path)) == "GPU-00001,GPU-00000"


def test_gpus_that_are_not_in_this_container_are_not_named(tmp_path: Path) -> None:
    for minor in range(4):
        gpu(tmp_path, f"0000:0{minor}:00.0", minor)
    node(tmp_path, "nvidia2", "nvidia3")
    assert devices({}, root=str(tmp_path)) == "GPU-00002,GPU-00003"


@pytest.mark.parametrize(
    ("second", "environ", "found"),
    [
        ({"model": "NVIDIA A100"}, {}, "0,1"),
        ({"model": "NVIDIA A100"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-00000,GPU-00001"),
        ({"uuid": "GPU-????????-????"}, {}, "0,1"),
    ],
)
def test_where_names_say_too_little_there_are_numbers(
    tmp_path: Path, second: dict[str, str], environ: dict[str, str], found: str
) -> None:
    gpu(tmp_path, "0000:01:00.0", 0)
    gpu(tmp_path, "0000:02:00.0", 1, **second)
    node(tmp_path, "nvidia0", "nvidia1")
    assert devices(environ, root=str(tmp_path)) == found


def test_without_a_word_of_the_driver_there_are_as_many_as_device_files(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-caps", "nvidia")
    assert devices({}, root=str(tmp_path)) == "0,1,2"


def test_a_host_without_any_has_none(tmp_path: Path) -> None:
    assert devices({}, root=str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, "4,5"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "HVD_ELASTIC_DEVICES": "a,b,c"}, "a,b,c"),
        ({"HVD_ELASTIC_DEVICES": "x" * (LONGEST + 1)}, ""),
    ],
)
def test_what_the_environment_says_goes_first(tmp_path: Path, environ: dict[str, str], found: str) -> None:
    node(tmp_path, "nvidia0")
    assert devices(environ, root=str(tmp_path)) == found
