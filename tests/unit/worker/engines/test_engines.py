"""Programs that stand by in a slot for torchrun and mpirun, and what they hand over."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.engines import RESTARTING
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.core.messages.slot_protocol import (
    COMMITS,
    ENGINE,
    GENERATION,
    JOB,
    MARK,
    PROGRAM,
    RANK,
    START_AGAIN,
    TERMINATED,
)
from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh
from hvd_elastic_ext.launcher.job import mpirun
from hvd_elastic_ext.worker.engines import mpirun_rank, slot_program, torchrun_slot
from hvd_elastic_ext.worker.engines.mpirun_slot import Handover, address, receive_handover, send_handover
from hvd_elastic_ext.worker.engines.slot_standby import LauncherLink, LinkClosed
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import Standby
from tests.support import marks
from tests.support.waiting import wait_until

PLACE = Place(3, 5, 1, 2, 0, 2)
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


class Agent:
    """The agent's side of one slot: a link, and the rendezvous proxy."""

    def __init__(self) -> None:
        self.link, self.theirs = socket.socketpair()
        self.said = self.link.makefile("rb")
        self.proxy = socket.create_server(("127.0.0.1", 0))
        self.keys: dict[str, str] = {}
        self.asked: list[str] = []
        self.place: Place | None = PLACE
        self.status = 200
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.proxy.shutdown(socket.SHUT_RDWR)
        for each in (self.proxy, self.said, self.link, self.theirs):
            each.close()

    def tell(self, what: str, **more: Any) -> None:
        self.link.sendall(json.dumps({"tell": what, **more}).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.said.readline())
        return said

    def environment(self, engine: str) -> dict[str, str]:
        names = {ENGINE: engine, JOB: "job", MARK: f"mark-{os.getpid()}", "HVD_ELASTIC_LINK": str(self.theirs.fileno())}
        ours = {
            "HVD_ELASTIC_RENDEZVOUS_PORT": str(self.proxy.getsockname()[1]),
            "HOROVOD_HOSTNAME": "a",
            "HOROVOD_ELASTIC": "1",
        }
        return {"PATH": os.environ["PATH"], **names, **ours, "SECRET": "s3cret"}

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.proxy.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = connection.recv(1 << 16).decode()
        method, path, *_ = head.split(" ")
        self.asked.append(path)
        status, body = self.status, ""
        if method == "PUT" and status == 200:
            self.keys[path] = head.partition("\r\n\r\n")[2]
        elif path.startswith("/rank_and_size/"):
            status, body = 200, self.place.text() if self.place else ""
        elif status == 200:
            status, body = (200, self.keys[path]) if path in self.keys else (404, "")
        connection.sendall(f"HTTP/1.1 {status} OK\r\n\r\n{body}".encode())


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture
def started(agent: Agent) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the slot's program with a command; end it after the test."""
    running: list[subprocess.Popen[str]] = []

    def start(engine: str, *command: str, fds: tuple[int, ...] = (), env: Mapping[str, str] = {}) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, *command],
            env={**agent.environment(engine), **env},
            pass_fds=(agent.theirs.fileno(), *fds),
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def joins(agent: Agent) -> None:
    """Let the slot's program into the fourth world."""
    assert agent.hear() == {"say": "parked"}
    agent.tell("go", generation=4, env={"HOROVOD_GLOO_IFACE": "lo"})
    agent.tell("world", generation=4)


def test_a_slot_can_enter_the_worlds_of_every_engine_that_restarts() -> None:
    assert sorted(slot_program.RUN) == sorted(RESTARTING)


def test_a_slots_program_becomes_the_command_with_torchruns_environment(agent: Agent, started: Any) -> None:
    agent.keys = {"/hvd_elastic/node.2": "1,2", "/hvd_elastic/master": "10.0.0.1:23456"}
    process = started("torchrun", sys.executable, "-c", SHOW, "--epochs", "3")
    joins(agent)
    assert agent.hear() == {"say": "entered", "generation": 4, "rank": 3, "size": 5}
    argv, env, _ = json.loads(process.communicate()[0])
    expected = {
        "RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456", "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "3", GENERATION: "4", "GLOO_SOCKET_IFNAME": "lo", "SECRET": "s3cret",
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert argv == ["--epochs", "3"]
    assert "HOROVOD_ELASTIC" not in env


def test_the_first_rank_says_where_it_listens(agent: Agent, started: Any) -> None:
    agent.place = Place(0, 1, 0, 1, 0, 1)
    process = started("torchrun", sys.executable, "-c", SHOW)
    joins(agent)
    agent.hear()
    _, env, _ = json.loads(process.communicate()[0])
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert int(env["MASTER_PORT"]) in torchrun_slot.PORTS


def test_messages_for_the_training_process_stay_on_the_link(agent: Agent, started: Any) -> None:
    agent.place = Place(0, 1, 0, 1, 0, 1)
    read = "import os, socket; print(socket.socket(fileno=int(os.environ['HVD_ELASTIC_LINK'])).recv(4096).decode())"
    process = started("torchrun", sys.executable, "-c", read)
    joins(agent)
    assert agent.hear()["say"] == "entered"
    agent.tell("keep", commit=[1, 2, 3])
    assert json.loads(process.communicate()[0]) == {"tell": "keep", "commit": [1, 2, 3]}


def test_a_slots_program_that_is_not_needed_ends_well(agent: Agent, started: Any) -> None:
    process = started("torchrun", "true")
    agent.hear()
    agent.tell("update", generation=4, leave=True, reason="it is not needed")
    assert process.wait(30) == 0


def test_an_abandoned_world_makes_the_program_start_again(agent: Agent, started: Any) -> None:
    agent.status = 500
    process = started("torchrun", "true")
    joins(agent)
    assert process.wait(30) == START_AGAIN


def test_without_an_agent_nothing_is_run() -> None:
    done = subprocess.run([sys.executable, "-m", PROGRAM, "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert done.stderr == "hvd-elastic: this program has no link to an agent; only `hvd-elastic run` starts it\n"


def test_the_world_of_an_unknown_engine_is_not_entered_as_another_ones(agent: Agent, started: Any) -> None:
    process = started("unknown", "true")
    assert process.wait(60) == 125
    assert agent.asked == []


def test_a_missing_command_is_named(agent: Agent, started: Any) -> None:
    agent.place = Place(0, 1, 0, 1, 0, 1)
    process = started("torchrun", "/nowhere/train")
    joins(agent)
    assert process.wait(30) == 125


# --- mpirun


def rank(mark: str, number: int) -> subprocess.Popen[str]:
    """The process that mpirun starts, with its variables."""
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    env |= {"OMPI_COMM_WORLD_RANK": str(number), "OTHER": "not passed on", MARK: mark}
    return subprocess.Popen([sys.executable, "-m", RANK, "4"], env=env, cwd="/", text=True)


@pytest.mark.parametrize(("code", "known"), [(7, 7), (-9, 137)])
def test_a_rank_gets_its_slots_resources_and_the_slot_ends_with_its_exit_code(
    agent: Agent, started: Any, tmp_path: Path, code: int, known: int
) -> None:
    memory = os.memfd_create("commits")
    os.write(memory, b"the last commit")
    end = f"sys.stdout.flush(); os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    read = f"print(os.pread(int(os.environ['{COMMITS}'].split(',')[0]), 99, 0).decode())"
    word = "os.write(int(os.environ['HVD_ELASTIC_LINK']), b'{\"say\": \"hello\"}\\n')"
    process = started(
        "mpirun",
        sys.executable,
        "-c",
        f"{SHOW}; {read}; {word}; {end}",
        fds=(memory,),
        env={COMMITS: f"{memory},{memory}"},
    )
    os.close(memory)
    joins(agent)
    with rank(f"mark-{os.getpid()}", PLACE.rank) as started_by_mpi:
        assert [agent.hear()["say"], agent.hear()["say"]] == ["entered", "hello"]
        shown, commit = process.communicate()[0].splitlines()
        assert started_by_mpi.wait(30) == known
    _, env, directory = json.loads(shown)
    assert (env["SECRET"], env["OMPI_COMM_WORLD_RANK"], directory) == ("s3cret", "3", os.fspath(Path.cwd()))
    assert "OTHER" not in env
    assert commit == "the last commit"
    assert process.wait(30) == known


@pytest.mark.parametrize(("which", "code"), [("rank", TERMINATED), ("slot", 137)])
def test_neither_a_slot_nor_its_rank_goes_on_when_the_other_is_killed(
    agent: Agent, started: Any, which: str, code: int
) -> None:
    slot = started("mpirun", "sh", "-c", "echo up; exec sleep 1000")
    joins(agent)
    with rank(f"mark-{os.getpid()}", PLACE.rank) as started_by_mpi:
        assert slot.stdout.readline() == "up\n"
        killed, other = (started_by_mpi, slot) if which == "rank" else (slot, started_by_mpi)
        killed.kill()
        assert other.wait(30) == code


def test_processes_that_a_rank_leaves_end_with_it(agent: Agent, started: Any) -> None:
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    process = started("mpirun", sys.executable, "-c", leaves)
    joins(agent)
    with rank(f"mark-{os.getpid()}", PLACE.rank) as started_by_mpi:
        left = int(process.stdout.readline())
        assert started_by_mpi.wait(30) == 0
    wait_until(lambda: marks.start_time(left) is None, what="the end of what was left", timeout=30)


def test_a_slot_forwards_sigterm_to_its_rank(agent: Agent, started: Any) -> None:
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print('up', flush=True); time.sleep(99)"
    )
    process = started("mpirun", sys.executable, "-c", script)
    joins(agent)
    with rank(f"mark-{os.getpid()}", PLACE.rank) as started_by_mpi:
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert started_by_mpi.wait(30) == 3
    assert process.wait(30) == 3


# --- parts


def test_messages_are_taken_off_the_link_one_by_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b'no object\n{"tell": "go"}\n{"tell": "world", "generation": 3}\n{"te')
        link = LauncherLink(os.dup(theirs.fileno()))
        assert link.receive() == {"tell": "go"}
        assert theirs.recv(4096, socket.MSG_PEEK).startswith(b'{"tell": "world"')
        assert link.receive() == {"tell": "world", "generation": 3}
        ours.close()
        with pytest.raises(LinkClosed):
            link.receive()
        link.close()


def test_commands_environments_and_descriptors_of_any_size_are_handed_over(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    file = (tmp_path / "file").open("w+")
    handover = Handover(["train", "ü" * 70000], {"X": "\udc80", "Y": "y" * 200000}, "/tmp", {"stdout": file.fileno()})
    with ours, theirs, file:
        thread = threading.Thread(target=send_handover, args=(ours, handover))
        thread.start()
        got = receive_handover(theirs)
        thread.join()
        os.write(got.descriptors["stdout"], b"hello")
        os.close(got.descriptors["stdout"])
        assert (tmp_path / "file").read_text() == "hello"
    assert got[:3] == handover[:3]


def test_a_rank_of_mpirun_gets_the_past_and_the_commits_of_its_slot(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; one = os.environ['HVD_ELASTIC_RESULTS_FD'];"
        "two = os.environ['HVD_ELASTIC_COMMIT_FDS'].split(',');"
        "print(*[os.fstat(int(each)).st_ino for each in (one, *two)])"
    )
    memory = [os.memfd_create(name) for name in ("past", "one", "two")]
    wanted = [os.fstat(each).st_ino for each in memory]
    out, ours = (tmp_path / "out").open("w"), os.open(os.devnull, os.O_RDWR)
    names = ("HVD_ELASTIC_RESULTS_FD", "HVD_ELASTIC_COMMIT_FDS.0", "HVD_ELASTIC_COMMIT_FDS.1")
    streams = {"stdout": os.dup(out.fileno()), "stderr": os.dup(2), "HVD_ELASTIC_LINK": ours}
    handover = Handover([sys.executable, "-c", code], {}, "/", {**streams, **dict(zip(names, memory, strict=True))})
    assert mpirun_rank._start(handover, {}).wait() == 0
    out.close()
    assert [int(each) for each in (tmp_path / "out").read_text().split()] == wanted


def test_slots_of_different_jobs_worlds_and_ranks_do_not_meet() -> None:
    assert len({address("a", 1, 0), address("b", 1, 0), address("a", 2, 0), address("a", 1, 1)}) == 4


def test_the_user_may_override_only_torchruns_thread_count() -> None:
    meeting = torchrun_slot.Rendezvous(0, 1, "127.0.0.1", 23456, restarts=0)
    env = torchrun_slot.torchrun_env({"OMP_NUM_THREADS": "4", "RANK": "9"}, PLACE, meeting, job="job")
    assert (env["OMP_NUM_THREADS"], env["RANK"]) == ("4", "3")
    assert torchrun_slot.torchrun_env({}, PLACE, meeting, job="job")["OMP_NUM_THREADS"] == "1"


def test_a_process_that_was_started_for_one_world_knows_its_number_and_does_not_park() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        process = Standby(Link(theirs), environ={ENGINE: "torchrun", GENERATION: "4"})
        process.start_fixed_world()
        assert process.fixed_world
        assert not process.parks
        assert process.generation == 4
        assert process.link.status.fresh
        assert json.loads(ours.makefile("rb").readline())["say"] == "beat"
        process.link.close()
    assert not Standby(Link(), environ={ENGINE: "torchrun", GENERATION: "4"}).fixed_world  # without a link


TAKE = """
import os, re, socket, sys
os.setuid(65534)
taken = []
shown = re.findall("@(hvd-elastic/\\S+)", open("/proc/net/unix").read())
words = {word for text in shown + sys.argv[1:] for word in text.split("/")}
for number in range(5):
    for name in [f"hvd-elastic/0/{word}/{number}/3" for word in words] + [text[:-1] + str(number) for text in shown]:
        taken.append(socket.socket(socket.AF_UNIX))
        try:
            taken[-1].bind("\\0" + name)
        except OSError:
            pass
print("taken", flush=True)
sys.stdin.read()
"""
"""Another user, who takes what names can be told from those that are there and from command lines."""


def test_another_user_cannot_take_the_address_of_a_coming_world(agent: Agent, started: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    mark = f"mark-{os.getpid()}"
    command = mpirun.command(Path("hosts"), 1, generation=4)
    with socket.socket(socket.AF_UNIX) as of_the_world_before:
        of_the_world_before.bind(address(mark, 3, PLACE.rank))
        with subprocess.Popen(
            [sys.executable, "-c", TAKE, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as thief:
            assert thief.stdout.readline() == "taken\n"
            process = started("mpirun", "sh", "-c", "echo up")
            joins(agent)
            with rank(mark, PLACE.rank) as started_by_mpi:
                assert process.stdout.readline() == "up\n"
                assert started_by_mpi.wait(30) == 0
            assert process.wait(30) == 0
            thief.communicate()


def test_the_mark_stands_on_no_command_line() -> None:
    ssh = Ssh(Path.cwd())
    assert mpirun.environment({}, ssh=ssh, interfaces=[], mark="secret")[MARK] == "secret"
    assert mpirun.command(Path("hosts"), 2, generation=7)[7:9] == ["-x", MARK]
