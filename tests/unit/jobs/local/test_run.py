"""``hvd_elastic_ext.run`` takes what ``horovod.run`` takes; the launcher is replaced by a list of its words."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import hvd_elastic_ext
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.local import run as local
from hvd_elastic_ext.launcher.cli import run_options
from tests.unit.jobs.local import made_here


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the launcher is called with, before its own folder."""
    given: list[str] = []

    def launched(command: list[str], folder: Path) -> None:
        start = command.index("run") + 1
        given.extend(command[start : command.index("--state-dir")])
        run_options.split(command[start:])  # raises for an option that is none

    monkeypatch.setattr(local, "_launched", launched)
    monkeypatch.setattr(local, "_results", lambda _: [])
    return given


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"np": 2}, ["-np", "2"]),
        ({"num_proc": 2, "min_num_proc": 1, "max_num_proc": 4}, ["-np", "2", "--min-np", "1", "--max-np", "4"]),
        ({"hosts": "localhost:2"}, ["-H", "localhost:2"]),
        ({"hosts": "localhost:2,127.0.0.2:1", "np": 3}, ["-np", "3", "-H", "localhost:2,127.0.0.2:1"]),
        ({"hostfile": "/h"}, ["--hostfile", "/h"]),
        ({"host_discovery_script": "/d.sh", "np": 1}, ["-np", "1", "--host-discovery-script", "/d.sh"]),
        ({"np": 1, "cooldown_range": (5, 60)}, ["-np", "1", "--blacklist-cooldown-range", "5", "60"]),
        ({"np": 1, "network_interfaces": ["lo", "eth0"]}, ["-np", "1", "--network-interfaces", "lo,eth0"]),
        ({"np": 1, "slots": 2, "use_gloo": True, "verbose": 1}, ["-np", "1", "--slots-per-host", "2"]),
        ({"np": 1, "use_mpi": False, "mpi_args": None}, ["-np", "1"]),
    ],
)
def test_arguments_of_horovod_are_options_of_the_launcher(
    words: list[str], arguments: dict[str, Any], expected: list[str]
) -> None:
    hvd_elastic_ext.run(made_here.train, (1,), {"more": 2}, **arguments)
    assert words == expected


def test_arguments_may_come_in_horovods_order(words: list[str]) -> None:
    hvd_elastic_ext.run(made_here.train, (1,), {"more": 2}, 2)
    assert words == ["-np", "2"]


def test_every_argument_of_horovods_is_taken_or_refused_with_the_reason() -> None:
    horovod = pytest.importorskip("horovod.runner")
    known = {*local._OPTIONS, *local._SIZES, *local._SIZES.values(), *local._WITHOUT, *local._NOTHING_TO_DO}
    assert {*inspect.signature(horovod.run).parameters} <= known | {"func", "args", "kwargs", "hosts"}


def test_hosts_may_still_be_a_file(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost:1\n")
    for given in (path, str(path)):
        hvd_elastic_ext.run(made_here.train, (1,), hosts=given)
    assert words == ["--hosts-file", str(path)] * 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hosts": "hosts.txt"}, "hosts='hosts.txt' is not a file, nor a list of hosts, such as localhost:2"),
        ({"hosts": "a:1,"}, "is not a file, nor a list of hosts"),
        ({"hosts": "a:1", "hostfile": "/h"}, "give one of hosts, hostfile and host_discovery_script"),
        ({"np": 1, "use_mpi": True}, "use_mpi: only Gloo can form a new world"),
        ({"np": 1, "num_proc": 2}, "give one of them"),
        ({"np": 1, "nproc": 2}, "there is no argument nproc"),
        ({"np": 1, "options": "--verbose"}, "options='--verbose': give a list of words"),
    ],
)
def test_what_makes_no_sense_is_told(words: list[str], arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        hvd_elastic_ext.run(made_here.train, (1,), **arguments)
    assert words == []


def test_a_function_may_have_the_name_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts: list[Path] = []
    monkeypatch.setattr(local, "_launched", lambda command, _: scripts.append(Path(command[-2])))
    monkeypatch.setattr(local, "_results", lambda _: [])
    hvd_elastic_ext.run(made_here.train, (1,), np=1)
    assert scripts[0].suffix == ".py"
    assert not scripts[0].stem.isidentifier()  # else "import train" in it means the script
