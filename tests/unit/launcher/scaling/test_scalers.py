"""What adds and removes hosts: the values of ``--scale-with``, and the input of programs and files."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.process_tree import stat_of
from hvd_elastic_ext.launcher.scaling.scalers import FileScaler, NotScaled, ProgramScaler, ScaleWith, read
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("recommend", ScaleWith("recommend")),
        ("file:/tmp/x", ScaleWith("file", "/tmp/x")),
        ("exec:sh -c 'true; false'", ScaleWith("exec", "sh -c 'true; false'")),
        ("statefulset/digits", ScaleWith("statefulset", "digits")),
        ("deployment/digits", ScaleWith("deployment", "digits")),
    ],
)
def test_what_it_names_is_read(text: str, found: ScaleWith) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nobody", "--scale-with 'nobody': write recommend, file:PATH, exec:COMMAND or KIND/NAME"),
        ("exec:", "--scale-with 'exec:': write exec:COMMAND"),
        ("exec:'", '--scale-with "exec:\'": No closing quotation'),
        ("statefulsets/digits", "did you mean 'statefulset'?"),
        ("statefulset/", "--scale-with 'statefulset/' does not name an object"),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert error in str(caught.value)


def test_only_workloads_with_numbered_pods_choose_who_goes() -> None:
    assert read("statefulset/digits").ordered
    assert not read("deployment/digits").ordered
    assert not read("trainingjob/digits").ordered
    assert not read("exec:true").ordered


def test_a_file_is_replaced_as_a_whole_and_says_what_somebody_else_wrote(tmp_path: Path) -> None:
    scaler = FileScaler(tmp_path / "wanted.json")
    assert scaler.asked_for() is None
    scaler.scale(4, ["h3"], 'says "more"')
    assert json.loads((tmp_path / "wanted.json").read_text()) == {
        "hosts": 4,
        "leaving": ["h3"],
        "reason": 'says "more"',
    }
    (tmp_path / "wanted.json").write_text('{"hosts": 7}')
    assert scaler.asked_for() == 7
    (tmp_path / "wanted.json").write_text('{"hosts": "many"}')
    with pytest.raises(NotScaled, match="does not say"):
        scaler.asked_for()


def test_a_program_gets_names_and_reasons_in_its_environment_only(tmp_path: Path) -> None:
    script = tmp_path / "scale"
    script.write_text(
        f'#!/bin/sh\necho "$#:$HVD_ELASTIC_HOSTS:$HVD_ELASTIC_LEAVING:$HVD_ELASTIC_REASON" > {tmp_path}/log\n'
    )
    script.chmod(0o700)
    ProgramScaler((str(script),)).scale(2, ["a", "b"], "$(reboot); `x`")
    assert (tmp_path / "log").read_text() == "0:2:a,b:$(reboot); `x`\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sh", "-c", "echo first; echo 'no quota' >&2; exit 3"), "sh ended with exit code 3: no quota"),
        (("/no/such/program",), "/no/such/program cannot be run: No such file or directory"),
    ],
)
def test_a_program_that_fails_says_why(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(NotScaled) as caught:
        ProgramScaler(words).scale(2, [], "")
    assert str(caught.value) == why


def test_what_a_program_prints_without_end_takes_no_memory(tmp_path: Path) -> None:
    script = f"{sys.executable} -c \"import sys; sys.stderr.write('x' * 50_000_000 + chr(10) + 'no quota')\"; exit 3"
    tracemalloc.start()
    try:
        with pytest.raises(NotScaled, match="sh ended with exit code 3: no quota"):
            ProgramScaler(("sh", "-c", script)).scale(2, [], "")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    program = hanging(tmp_path)
    with pytest.raises(NotScaled, match=r"sh did not end within 1 s, and was killed"):
        ProgramScaler(program, within_s=1.0).scale(2, [], "")
    wait_until(lambda: not living(tmp_path), what="the end of the children", timeout=60)


def test_a_program_that_runs_when_the_job_ends_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    scaler, failed = ProgramScaler(hanging(tmp_path)), list[str]()

    def scale() -> None:
        try:
            scaler.scale(2, [], "")
        except NotScaled as error:
            failed.append(str(error))

    thread = threading.Thread(target=scale)
    thread.start()
    wait_until(lambda: len(living(tmp_path)) == 2, what="two children", timeout=60)
    scaler.close()
    thread.join(60)
    assert failed
    wait_until(lambda: not living(tmp_path), what="the end of the children", timeout=60)


def hanging(folder: Path) -> tuple[str, ...]:
    """A program with a child in its group and one in a session of its own, which write their numbers."""
    sleeps = "echo $$ > {folder}/{name}; exec sleep 3600"
    one, other = (sleeps.format(folder=folder, name=name) for name in ("child", "session"))
    return ("sh", "-c", f"sh -c '{one}' & setsid sh -c '{other}' & wait; true")


def living(folder: Path) -> list[int]:
    """The children that have written their numbers, and live."""
    pids = [int(path.read_text() or 0) for name in ("child", "session") if (path := folder / name).exists()]
    return [pid for pid in pids if pid and Path(f"/proc/{pid}").exists() and b"Z" not in stat_of(pid)[:1]]


def test_children_that_hold_the_pipes_of_a_program_are_not_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    ProgramScaler(("sh", "-c", f"sleep 50 & echo $! > {tmp_path}/child")).scale(2, [], "")
    took = time.monotonic() - begun
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert took < 40
