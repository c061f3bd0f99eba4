"""One agent of a host: what killed ones have left goes in time, and nothing that is in use."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.claim import OLD_S, HandoverServer, _bases, remove_stale
from hvd_elastic_ext.agent.descriptors import Act, DescriptorLoop
from hvd_elastic_ext.agent.orders import End, Join
from hvd_elastic_ext.agent.ports import PAUSE_S
from hvd_elastic_ext.launcher.cli.doctor import PROBE, Steps, steps_in
from tests.support.clock import ManualClock

NOW = 1_000_000_000.0


def job(base: Path, name: str, *, age_s: float) -> Path:
    """A job's folder in which nothing was done for so long: with the notice and the socket of a killed agent."""
    folder = base / name
    folder.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "h1.sock"))
    (folder / "h1.sock.notice").touch()
    os.utime(folder, (NOW - age_s, NOW - age_s))
    return folder


def test_what_is_older_than_a_day_goes(tmp_path: Path) -> None:
    old, young = job(tmp_path, "old", age_s=OLD_S + 1), job(tmp_path, "young", age_s=OLD_S - 1)
    remove_stale(str(tmp_path), now=NOW)
    assert not old.exists()
    assert {each.name for each in young.iterdir()} == {"h1.sock", "h1.sock.notice"}


def test_an_agent_that_lives_keeps_its_socket_and_its_notice(tmp_path: Path) -> None:
    folder = job(tmp_path, "old", age_s=0.0)
    with socket.socket(socket.AF_UNIX) as existing:
        existing.bind(str(folder / "h2.sock"))
        existing.listen()
        (folder / "h2.sock.notice").touch()
        os.utime(folder, (NOW - 2 * OLD_S, NOW - 2 * OLD_S))
        remove_stale(str(tmp_path), now=NOW)
        assert {each.name for each in folder.iterdir()} == {"h2.sock", "h2.sock.notice"}


@pytest.mark.parametrize("foreign", ["file", "link"])
def test_what_is_no_folder_of_a_job_is_left_alone(tmp_path: Path, foreign: str) -> None:
    target = job(tmp_path / "elsewhere", "old", age_s=2 * OLD_S)
    base = tmp_path / "base"
    base.mkdir()
    if foreign == "file":
        (base / "notes").write_text("mine")
    else:
        (base / "notes").symlink_to(target)
    remove_stale(str(base), now=NOW)
    assert (base / "notes").exists()
    assert (target / "h1.sock").exists()


def test_what_no_agent_has_made_stays(tmp_path: Path) -> None:
    folder = job(tmp_path, "old", age_s=0.0)
    (folder / "thesis.tex").write_text("years of work")
    os.utime(folder, (NOW - 2 * OLD_S, NOW - 2 * OLD_S))
    remove_stale(str(tmp_path), now=NOW)
    assert [each.name for each in folder.iterdir()] == ["thesis.tex"]


def test_nothing_is_swept_behind_a_link_that_stands_in_the_place_of_the_folder(tmp_path: Path) -> None:
    old = job(tmp_path / "elsewhere", "old", age_s=2 * OLD_S)
    (tmp_path / "base").symlink_to(tmp_path / "elsewhere")
    remove_stale(str(tmp_path / "base"), now=NOW)
    assert (old / "h1.sock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another user")
def test_a_runtime_directory_of_another_users_is_no_place_to_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root has it after `su`: whoever it belongs to could put another folder, or a link, in the place of ours."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _bases()[0].startswith(str(tmp_path))
    os.chown(tmp_path, 65534, 65534)
    assert _bases()[0] == "/tmp/hvd-elastic-0"


USER = 54321
AS_THAT_USER = """
import os
from hvd_elastic_ext.agent.claim import claim
os.setuid(54321)
first = claim("job", "h1", b"k" * 32)
print(os.readlink(f"/proc/self/fd/{first.folder}"))
print(first.problem)
second = claim("job", "h1", b"k" * 32)
print(second.existing is not None)
second.existing.close()
first.release()
"""


def test_where_somebody_else_has_made_the_folder_in_tmp_first_agents_meet_in_the_home_directory() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    planted = Path(f"/tmp/hvd-elastic-{USER}")
    home = Path(tempfile.mkdtemp(dir="/tmp"))  # what leads to tmp_path is root's alone
    try:
        planted.mkdir(mode=0o700)
        os.chown(planted, 65534, 65534)
        os.chown(home, USER, USER)
        environ = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": ""}
        command = [sys.executable, "-c", AS_THAT_USER]
        told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
        assert told.returncode == 0, told.stderr
        folder, problem, adopted = told.stdout.splitlines()
        assert folder.startswith(f"{home}/hvd-elastic-{USER}/job.")
        assert problem == f"{planted} is not a folder that only its user can enter; remove it"
        assert adopted == "True"
        assert not list(home.iterdir())
        (step,) = [facts for name, facts in steps_as_that_user(environ).items() if name == "python"]
        assert step["taken"] == str(planted)
    finally:
        planted.rmdir()
        shutil.rmtree(home)


def steps_as_that_user(environ: dict[str, str]) -> Steps:
    """What the doctor's probe says there. It becomes that user after its imports: Python may be root's to read."""
    imports, following, rest = PROBE.partition("\ndef say(")
    assert imports.splitlines()[-1].startswith("import "), imports
    only = following + rest.partition('attempt("hvd-elastic-ext"')[0]
    command = [sys.executable, "-c", f"import encodings.idna\n{imports}\nos.setuid({USER})\n{only}"]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 0, told.stderr
    return steps_in(told.stdout)


def test_a_home_directory_that_others_may_write_to_is_no_place_to_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _bases()[-1].startswith(str(tmp_path))
    tmp_path.chmod(0o777)
    assert not _bases()[-1].startswith(str(tmp_path))


# --- an agent without a free descriptor cannot accept a handover, and tries again ------------------------


class Loop(DescriptorLoop):
    """With a clock of its own; ``acts`` is how often there was something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = 0
        self.clock = ManualClock()

    def now(self) -> float:
        return self.clock.mono()

    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None:
        def counted() -> None:
            self.acts += 1
            act()

        super().watch(descriptor, counted, output=output)


def apply(order: Join | End) -> str:
    raise AssertionError("nobody said anything")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_with_no_descriptor_left_an_agent_looks_again_in_a_second_and_not_all_the_time(listener: socket.socket) -> None:
    loop = Loop()
    server = HandoverServer(loop, listener, b"k" * 32, apply=apply)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(listener.getsockname())
        last = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, usual[1]))
        try:
            for _ in range(100):
                loop.look(0.0)
            assert loop.acts == 1
            assert server.due() == loop.now() + PAUSE_S
            loop.clock.advance(PAUSE_S)
            server.tick()
            for _ in range(100):
                loop.look(0.0)
            assert loop.acts == 2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            os.close(last)
        loop.clock.advance(PAUSE_S)
        server.tick()
        loop.look(0.0)
        assert b"nonce" in peer.recv(4096)
        loop.clock.advance(60)
        server.tick()  # it has said nothing
        assert server.due() is None
    server.close()
