"""How busy a host is, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.agent.load import Usage


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
