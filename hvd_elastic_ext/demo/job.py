"""The job that the demo drives: a real ``hvd-elastic run`` in a child process, and the demo's folder.

Whatever happens to the demo, the job must not outlive it. So the launcher runs
under the same agent that it uses for its workers, which lives on a pipe: when
the demo ends, even by ``SIGKILL``, the pipe closes, and the agent ends the
launcher and everything under it, gently first. Between the two there is a few
lines' shell script that starts a killed launcher again.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from hvd_elastic_ext.core.commands import agent_command
from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.demo.processes import ancestors, family, holder_of, kill_at_once
from hvd_elastic_ext.demo.progress import Worker

GRACE_S: Final = 8.0
"""How long the launcher may take to end its workers before it is killed."""
KEEPER: Final = """
told=
trap told=1 TERM INT HUP
"$@"
code=$?
while [ "$code$told" = 137 ]; do
    sleep 1
    "$@"
    code=$?
done
exit "$code"
"""
"""Starts the launcher again whenever it was killed, as systemd or a pod's restart policy would. Told to end, it
waits for the launcher's own end, which has been told, too."""
NOTICE: Final = "spot instance is taken back"
NEEDED: Final = ("torch", "horovod", "sklearn", "matplotlib")


@dataclass(frozen=True, slots=True)
class Training:
    """How the example is trained; see its ``--help``."""

    epochs: int
    step_delay_s: float
    commit_every: int = 5
    batch_size: int = 32
    seed: int = 42

    def command(self, script: Path, report: Path, *, hurry: Path) -> list[str]:
        """The command line of one worker."""
        return [
            sys.executable,
            str(script),
            f"--epochs={self.epochs}",
            f"--step-delay={self.step_delay_s}",
            f"--commit-every={self.commit_every}",
            f"--batch-size={self.batch_size}",
            f"--hurry={hurry}",
            f"--seed={self.seed}",
            f"--report={report}",
        ]


class Folder:
    """Where the demo puts everything, and the only place where it writes. Held by one demo at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.hosts = self.path / "hosts"
        self.journal = self.path / "journal.jsonl"
        self.report = self.path / "report.json"
        self.log = self.path / "workers.log"
        self.enough = self.path / "enough"
        self.checkpoints = self.path / "demo-checkpoints"
        self.png = self.path / "picture.png"
        self.html = self.path / "picture.html"
        self.temporary = self.path / "tmp"
        self._lock = -1

    def __enter__(self) -> Folder:
        """Make it, lock it, and remove what an earlier demo wrote. Raises :class:`UsageError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for old in (self.hosts, self.journal, self.report, self.log, self.enough, self.png, self.html):
                old.unlink(missing_ok=True)
            if self.checkpoints.exists():
                shutil.rmtree(self.checkpoints)  # or the job would go on from them
            self.log.touch()
            self.temporary.mkdir(exist_ok=True)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(
                f"another demo is running in {self.path}; give this one its own folder: --out DIR"
            ) from None
        except OSError as error:
            raise UsageError(
                f"{error.filename or self.path}: {error.strerror}; give a folder that can be written: --out DIR"
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._lock)

    def publish(self, text: str) -> None:
        """Replace the hosts file so that no reader ever sees half of it."""
        new = self.hosts.with_suffix(".new")
        new.write_text(text)
        new.replace(self.hosts)

    def accuracy(self) -> float | None:
        """What the training reported, if it did."""
        try:
            told = json.loads(self.report.read_text())["accuracy"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return float(told) if isinstance(told, int | float) and math.isfinite(told) else None


def example_script(package: Path, prefix: Path) -> Path:
    """The training script: beside ``package`` in a source tree, else where ``prefix`` has data files.

    Raises :class:`UsageError` if it is at neither place.
    """
    name = Path("examples/01-digits/train.py")
    places = [package.parent / name, prefix / "share/hvd-elastic-ext" / name]
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"the example is at neither {places[0]} nor {places[1]}; install hvd-elastic-ext again")


def check_installed() -> None:
    """Raises :class:`UsageError` naming what the demo needs and is not there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs {', '.join(missing)}, not installed for {sys.executable}; "
            "`make demo` in a clone sets everything up, `hvd-elastic doctor` says more"
        )


def run_command(folder: Folder, *, cooldown_s: tuple[int, int], size: tuple[int, int]) -> list[str]:
    """``hvd-elastic run`` as a user would type it, up to the training command."""
    smallest, largest = size
    # No clock makes a checkpoint: only a notice that leaves too few hosts does.
    saved = ("--checkpoint-dir", folder.checkpoints.name, "--checkpoint-every", "notice")
    return [
        sys.executable,
        *("-m", "hvd_elastic_ext.cli", "run"),
        # By name alone, as the job runs in its folder: messages that name them stay short.
        *("--hosts-file", folder.hosts.name, "--journal", folder.journal.name),
        # No other job on this machine has this name, whatever else is trained there, or demonstrated.
        *("--job", f"demo-{os.getpid()}"),
        *("-np", str(smallest), "--min-np", str(smallest), "--max-np", str(largest)),
        *("--blacklist-cooldown-range", *map(str, cooldown_s)),
        *saved,
        *("--below-min", "sleep", "--sleep-after", "2"),
        *("--elastic-timeout", "60", "--settle", "1", "--orphan-grace", "10"),
    ]


def job_environ(environ: Mapping[str, str], *, temporary: Path) -> dict[str, str]:
    """The demo's own environment, without options of ``run`` that a user has set for other jobs.

    ``temporary`` is where the job puts what else would stay in ``/tmp``: torch leaves a folder there.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("HVD_ELASTIC_")}
    # Every step in the journal; one thread a worker, as they share the machine.
    return {**kept, "HVD_ELASTIC_SAMPLE": "0", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


class Job:
    """A launcher under an agent. Also the hands of the script: see :class:`hvd_elastic_ext.demo.player.Hands`."""

    def __init__(self, folder: Folder, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._notices: dict[str, Path] = {}
        with folder.log.open("ab") as log:
            # A group of its own, so that Ctrl-C reaches the demo alone, which then ends the job in order.
            self._agent = subprocess.Popen(
                agent_command(sys.executable),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # its news; what the job writes goes to its standard error
                stderr=log,
                env=dict(environ),
                start_new_session=True,
            )
        argv = ["sh", "-c", KEEPER, "sh", *command]
        start = {"do": "start", "slot": 0, "argv": argv, "cwd": str(folder.path), "grace_s": GRACE_S}
        orders = ({**start, "output": "stderr", "commits": 0}, {"do": "finish"})
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `ended` will say so
            self._agent.stdin.write(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
            self._agent.stdin.flush()

    def publish(self, text: str) -> None:
        self._folder.publish(text)

    def kill(self, worker: Worker) -> None:
        self._kill(worker.pid, f"process {worker.pid} of {worker.host} is not there")

    def kill_launcher(self, pid: int) -> None:
        self._kill(pid, f"the launcher, process {pid}, is not there")

    def _kill(self, pid: int, absent: str) -> None:
        """``kill -9``. Raises :class:`Transient` unless the pid is a process of this very job."""
        if self._agent.pid not in ancestors(pid):
            raise Transient(absent)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def notify(self, hosts: Sequence[str], *, in_s: float) -> None:
        """As docs/health.md has it, "A notice in a file". Raises :class:`Transient` if a host has no agent just now."""
        text = json.dumps({"reason": NOTICE, "deadline": time.time() + in_s})
        files = {host: self._agent_of(host)[1] for host in hosts}
        for host, path in files.items():
            draft = path.with_name(f".{path.name}.demo")
            draft.write_text(text)
            draft.replace(path)
            self._notices[host] = path

    def take_away(self, hosts: Sequence[str]) -> None:
        """Nothing is left of these hosts, nor of their notices: on machines of their own those would go with them."""
        lost: list[int] = []
        for host in hosts:
            with contextlib.suppress(Transient):  # it has ended by itself
                lost += family(self._agent_of(host)[0])
        kill_at_once(lost)
        for host in hosts:
            if (notice := self._notices.pop(host, None)) is not None:
                notice.unlink(missing_ok=True)
                notice.with_suffix("").unlink(missing_ok=True)  # the agent's socket

    def _agent_of(self, host: str) -> tuple[int, Path]:
        """A host's agent and the file where it looks for notices: it has that open, so that it can be found."""
        found = holder_of(f"{host}.sock.notice", among=family(self._agent.pid))
        if found is None:
            raise Transient(f"there is no agent on {host} just now")
        return found

    def hurry(self) -> None:
        self._folder.enough.touch()

    def ended(self) -> int | None:
        return self._agent.poll()

    def end(self) -> None:
        """End the job, gently first; return when nothing of it is left."""
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._agent.stdin.close()
        try:
            self._agent.wait(timeout=3 * GRACE_S + 2)
        except subprocess.TimeoutExpired:
            self._agent.kill()  # the kernel kills the launcher with it, and the workers follow the launcher
            self._agent.wait()
