"""The demo's job, a real ``hvd-elastic run`` in a child process, and the demo's folder.

The job must not outlive the demo. So the launcher runs under the agent that it uses for its workers, which depends on
a pipe: when the demo ends, even by ``SIGKILL``, the pipe closes and the agent ends the launcher and its descendants,
gently first. A short shell script between the two restarts a killed launcher.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import shlex
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
from hvd_elastic_ext.core.journal import FOLDERS
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.demo.observed import Worker
from hvd_elastic_ext.io import process_tree
from hvd_elastic_ext.io.replaced_file import replace

GRACE_S: Final = 8.0
"""Seconds for the launcher to end its workers before it is killed."""
RESTART_LOOP: Final = """
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
"""Restarts a killed launcher, as systemd or a pod's restart policy would. After a signal it waits
for the launcher, which got it, too.
"""
NOTICE: Final = "spot instance is taken back"
NEEDED: Final = ("torch", "horovod", "sklearn", "matplotlib")


@dataclass(frozen=True, slots=True)
class Training:
    """The parameters of the example; see its ``--help``."""

    epochs: int
    step_delays_s: tuple[float, ...]
    """With one worker, with two, and so on."""
    commit_every: int = 5
    batch_size: int = 32
    seed: int = 42

    def command(self, script: Path, report: Path, *, hurry: Path) -> list[str]:
        """The command line of one worker."""
        return [
            sys.executable,
            str(script),
            f"--epochs={self.epochs}",
            f"--step-delay={','.join(map(str, self.step_delays_s))}",
            f"--commit-every={self.commit_every}",
            f"--batch-size={self.batch_size}",
            f"--hurry={hurry}",
            f"--seed={self.seed}",
            f"--report={report}",
        ]


class Folder:
    """The demo's folder, the only place where it writes. One demo at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.hosts = self.path / "hosts"
        self.journal = self.path / "journal.jsonl"
        self.report = self.path / "report.json"
        self.log = self.path / "workers.log"
        self.fast = self.path / "enough"
        self.checkpoints = self.path / "demo-checkpoints"
        self.png = self.path / "picture.png"
        self.html = self.path / "picture.html"
        self.page = self.path / "page.html"
        self.output = self.path / "output"
        self.state = self.path / FOLDERS / f"demo-{os.getpid()}"  # a name of its own among the jobs of this machine
        self.temporary = self.path / "tmp"
        self._lock = -1

    def __enter__(self) -> Folder:
        """Create and lock it, and remove an earlier demo's files. Raises :class:`UsageError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = (self.hosts, self.journal, self.report, self.log, self.fast, self.png, self.html, self.page)
            for old in files:
                old.unlink(missing_ok=True)
            for kept in (self.checkpoints, self.output):  # the job would resume from them, and append to it
                if kept.exists():
                    shutil.rmtree(kept)
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
        """Replace the hosts file atomically."""
        replace(self.hosts, text)

    def accuracy(self) -> float | None:
        """The accuracy that the training reported, if any."""
        try:
            accuracy = json.loads(self.report.read_text())["accuracy"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return float(accuracy) if isinstance(accuracy, int | float) and math.isfinite(accuracy) else None


def check_installed() -> None:
    """Raise :class:`UsageError` for missing packages."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join({"sklearn": "scikit-learn"}.get(name, name) for name in missing)
        raise UsageError(
            f"the demo needs {', '.join(missing)}, not installed for {sys.executable}: pip install {packages}; "
            "horovod and torch as docs/install.md says. `make demo` in a clone sets everything up"
        )


def run_command(
    folder: Folder, *, cooldown_s: tuple[int, int], size: tuple[int, int], more: Sequence[str] = ()
) -> list[str]:
    """The command line of ``hvd-elastic run``, up to the training command."""
    smallest, largest = size
    # Only a notice that leaves too few hosts makes a checkpoint.
    saved = ("--checkpoint-dir", folder.checkpoints.name, "--checkpoint-every", "notice")
    return [
        sys.executable,
        *("-m", "hvd_elastic_ext.cli", "run"),
        # Relative names, as the job runs in its folder: messages stay short.
        *("--hosts-file", folder.hosts.name, "--journal", folder.journal.name),
        *("--job", folder.state.name, "--output-filename", folder.output.name),
        *("-np", str(smallest), "--min-np", str(smallest), "--max-np", str(largest)),
        *("--blacklist-cooldown-range", *map(str, cooldown_s)),
        *saved,
        *("--below-min", "sleep", "--sleep-after", "2"),
        *("--elastic-timeout", "60", "--settle", "1", "--orphan-grace", "10"),
        *more,
    ]


def sizing_options(folder: Folder, hosts: Sequence[str]) -> list[str]:
    """For a job that chooses its number of hosts, of these. Four changes, the last for no trial: once training hurries,
    there is none.
    """
    cloud = [sys.executable, "-m", "hvd_elastic_ext.demo.cloud", folder.hosts.name, *hosts]
    policy = "efficiency:batch=global,share=0.13,changes=4"
    heartbeats = ("--heartbeat-interval", "0.25")  # each tells of one step
    return ["--autoscale", policy, "--scale-with", f"exec:{shlex.join(cloud)}", *heartbeats]


def job_environ(environ: Mapping[str, str], *, temporary: Path) -> dict[str, str]:
    """Return the demo's environment without the user's options for ``run``. ``temporary`` replaces ``/tmp``, where
    torch leaves a folder.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("HVD_ELASTIC_")}
    # Every step in the journal; one thread per worker, since they share the machine.
    return {**kept, "HVD_ELASTIC_SAMPLE": "0", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


class Job:
    """A launcher under an agent, and what a scenario can do to it."""

    def __init__(self, folder: Folder, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._notices: dict[str, Path] = {}
        with folder.log.open("ab") as log:
            # Its own process group: Ctrl-C reaches only the demo, which ends the job in order.
            self._agent = subprocess.Popen(
                agent_command(sys.executable),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # its events; the job's output goes to standard error
                stderr=log,
                env=dict(environ),
                start_new_session=True,
            )
        argv = ["sh", "-c", RESTART_LOOP, "sh", *command]
        start = {"do": "start", "slot": 0, "argv": argv, "cwd": str(folder.path), "grace_s": GRACE_S}
        orders = ({**start, "output": "stderr", "commits": 0}, {"do": "finish"})
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `ended` reports it
            self._agent.stdin.write(b"".join(to_text(order).encode() + b"\n" for order in orders))
            self._agent.stdin.flush()

    def publish(self, text: str) -> None:
        """Replace the hosts file, atomically."""
        self._folder.publish(text)

    def kill(self, worker: Worker) -> None:
        """``kill -9``. Raises :class:`Transient` if it is not a process below the agent of this job."""
        self._kill(worker.pid, f"process {worker.pid} of {worker.host} does not exist")

    def kill_launcher(self, pid: int) -> None:
        """The same for the launcher, which restarts."""
        self._kill(pid, f"the launcher, process {pid}, does not exist")

    def _kill(self, pid: int, absent: str) -> None:
        if pid not in process_tree.descendants(self._agent.pid):
            raise Transient(absent)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def notify(self, hosts: Sequence[str], *, in_s: float) -> None:
        """Write notice files (docs/health.md). Raises :class:`Transient` if a host has no agent now."""
        text = to_text({"reason": NOTICE, "deadline": time.time() + in_s})
        files = {host: self._agent_of(host)[1] for host in hosts}
        for host, path in files.items():
            replace(path, text)
            self._notices[host] = path

    def take_away(self, hosts: Sequence[str]) -> None:
        """Kill everything on these hosts, and remove their notices, as the loss of real machines would."""
        lost: list[int] = []
        for host in hosts:
            with contextlib.suppress(Transient):  # ended already
                agent, _ = self._agent_of(host)
                lost += [agent, *process_tree.descendants(agent)]
        kill_at_once(lost)
        for host in hosts:
            if (notice := self._notices.pop(host, None)) is not None:
                notice.unlink(missing_ok=True)
                notice.with_suffix("").unlink(missing_ok=True)  # the agent's socket

    def _agent_of(self, host: str) -> tuple[int, Path]:
        """Return a host's agent and its notice file, which it has open as its forks have: parents come first."""
        name = f"{host}.sock.notice"
        for pid in process_tree.descendants(self._agent.pid):
            for path in map(Path, process_tree.open_files(pid)):
                if path.name == name:
                    return pid, path
        raise Transient(f"there is no agent on {host} at the moment")

    def run_fast(self) -> None:
        """Let training finish without delays: make the file that the script looks for."""
        self._folder.fast.touch()

    def ended(self) -> int | None:
        """The exit code of the agent, which takes over that of the launcher; None while the agent runs."""
        return self._agent.poll()

    def end(self) -> None:
        """End the job, gently first; return when nothing is left."""
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._agent.stdin.close()
        try:
            self._agent.wait(timeout=3 * GRACE_S + 2)
        except subprocess.TimeoutExpired:
            self._agent.kill()  # the kernel kills the launcher with it, and the workers follow
            self._agent.wait()


def kill_at_once(pids: Sequence[int]) -> None:
    """Stop all, then kill all, like a power loss: no process sees another one end."""
    process_tree.send(pids, signal.SIGSTOP)
    process_tree.send(pids, signal.SIGKILL)
