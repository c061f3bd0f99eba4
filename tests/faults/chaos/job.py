"""One job of the chaos trainee: its host list, its launchers one after the other, and the observations of it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from hvd_elastic_ext.agent.notices.files import NOTICE
from hvd_elastic_ext.core.journal import Record
from tests.faults.chaos import evidence, lines
from tests.faults.chaos.checker import Seen
from tests.faults.chaos.watch import MARK, Watch
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

TRAINEE: Final = Path(__file__).with_name("trainee.py")
ELASTIC: Final = (sys.executable, "-m", "hvd_elastic_ext.cli")
COMMIT_EVERY: Final = 2
"""Steps from one commit to the next."""
LOOK_S: Final = 0.05


class Job:
    """A job in a folder of its own. At the end of the context all its processes are killed."""

    def __init__(self, folder: Path, name: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.name = folder, name
        self.journal = folder / evidence.JOURNAL
        self.traces = folder / evidence.TRACES
        self.traces.mkdir()
        self.launchers: list[RunningProcess] = []
        self.watch = Watch(name, folder / evidence.WATCHED)
        self._hosts = folder / "hosts"
        self._ends = contextlib.ExitStack()
        self._options = options
        self._env = {"HVD_ELASTIC_SAMPLE": "0.5", "OMP_NUM_THREADS": "1", "COMMIT_EVERY": str(COMMIT_EVERY)}
        self._env.update({MARK: name, **(env or {})})

    def __enter__(self) -> Job:
        self._ends.callback(self.watch.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ends.close()
        for folder in self.agent_folders():  # folders of agents that were killed
            shutil.rmtree(folder, ignore_errors=True)

    # Actions

    def start(self) -> None:
        """Start a launcher: the first one, or the next one."""
        source = ("--hosts-file", str(self._hosts), "--journal", str(self.journal), "--job", self.name)
        command = [*ELASTIC, "run", *source, *self._options, sys.executable, str(TRAINEE), str(self.folder)]
        launcher = self._ends.enter_context(run_process(command, env=self._env, cwd=self.folder))
        self.launchers.append(launcher)
        self.watch.note("launcher", launcher.pid)

    def kill_launcher(self) -> None:
        self.watch.note("no_launcher", self.launcher.pid)
        self.launcher.kill()
        self.launcher.wait()

    def set_hosts(self, text: str) -> None:
        """Replace the host list as a whole."""
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._hosts)

    def set_goal(self, more: int) -> int:
        """Let training end ``more`` steps after the newest step. Return the step of the end.

        The newest step is not always the highest: if all holders of commits are lost, training starts again.
        """
        step = self.newest_step() + more
        draft = self.folder / "goal.new"
        draft.write_text(f"{step}\n")
        draft.replace(self.folder / "goal")
        return step

    def hosts_command(self, *words: str) -> RunningProcess:
        """Start ``hvd-elastic hosts …``."""
        command = [*ELASTIC, "hosts", *words, "--job", self.name]
        return self._ends.enter_context(run_process(command, env=self._env, cwd=self.folder))

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal to a process of this job. Return False if the process does not exist any more."""
        with contextlib.suppress(ProcessLookupError):
            if marks.environment(pid).get(MARK) == self.name:
                os.kill(pid, number)
                return True
        return False

    # Observations

    @property
    def launcher(self) -> RunningProcess:
        return self.launchers[-1]

    @property
    def ended(self) -> int | None:
        """Exit code of the launcher; None if there is none, or if it was killed."""
        return None if not self.launchers or self.launcher.returncode == -signal.SIGKILL else self.launcher.returncode

    def processes(self) -> list[lines.Process]:
        """Return the living training processes, in the order of their hosts."""
        return [each for each in lines.processes(self.traces) if marks.environment(each.pid).get(MARK) == self.name]

    def entries(self) -> list[lines.Line]:
        """Return each entry of a process into a world, in the order of time."""
        found = (line for each in lines.processes(self.traces) for line in each.lines if line.kind == "enter")
        return sorted(found, key=lambda line: line.at)

    def last_step(self, *, size: int | None = None, since: float = 0.0, until: float = math.inf) -> int:
        """Return the highest step within these times (mono), only of worlds of ``size`` if that is given; 0 if there is
        none."""
        return max(
            (
                line.number
                for each in lines.processes(self.traces)
                for line in each.lines
                if line.kind == "step" and since <= line.at < until and size in (None, line.number_of("size"))
            ),
            default=0,
        )

    def newest_step(self) -> int:
        """Return the step that was done last, whatever its number; 0 if there is none."""
        steps = (line for each in lines.processes(self.traces) for line in each.lines if line.kind == "step")
        newest = max(steps, key=lambda line: line.at, default=None)
        return 0 if newest is None else newest.number

    def records(self, *events: str) -> list[Record]:
        """Return the journal records of these events."""
        return evidence.records(self.folder, *events)

    def seen(self, *, goal: int | None = None) -> Seen:
        """Return all observations, for the checker."""
        return evidence.seen(self.folder, goal=goal)

    def wait_for(self, what: str, found: Callable[[], object], *, timeout: float = 90.0) -> None:
        """Wait until ``found`` is true, and let the watch look meanwhile. Raises ``AssertionError`` if the job ends
        before."""

        def look() -> object:
            self.watch.look()
            value = found()
            assert value or self.ended is None, f"the job ended ({self.ended}) before {what} came\n{self.details()}"
            return value

        wait_until(look, what=what, timeout=timeout, interval=LOOK_S, show=self.details)

    def wait(self, timeout: float) -> int:
        """Wait for the end of the job. Return its exit code. Raises ``AssertionError`` after ``timeout`` seconds."""
        self.wait_for("the end", lambda: self.launcher.returncode is not None, timeout=timeout)
        return self.launcher.wait()

    def agent_folders(self) -> list[Path]:
        """Return the folders with the sockets and notice files of this job's agents."""
        bases = {Path("/tmp"), Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))}
        return [path for base in bases for path in base.glob(f"hvd-elastic-{os.geteuid()}/{self.name}.*")]

    def left_behind(self) -> list[str]:
        """Return what is left some seconds after the job's end: its processes, and the folders of its agents."""
        deadline = time.monotonic() + 5.0
        while (left := self._left_behind()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return left

    def _left_behind(self) -> list[str]:
        there = [pid for pid in marks.marked(MARK, self.name.__eq__) if marks.start_time(pid) is not None]
        found = [f"process {pid}: {marks.command_line(pid)}" for pid in there]
        excused = {f"{host}.sock{end}" for host in self.watch.ended_by_force() for end in ("", NOTICE)}
        for folder in self.agent_folders():
            with contextlib.suppress(FileNotFoundError):  # it has just been removed
                names = {path.name for path in folder.iterdir()}
                if names - excused or not names:
                    found.append(f"folder {folder}: {', '.join(sorted(names - excused))}")
        return found

    def details(self) -> str:
        """Return details for a failure: output of the launchers, the journal without steps, the last line of each
        trace."""
        told = [line for launcher in self.launchers for line in launcher.output.splitlines()]
        sampled = ('"stepped"', '"committed"')
        journal = self.journal.read_text().splitlines() if self.journal.exists() else []
        journal = [line for line in journal if not any(word in line for word in sampled)]
        traces = [f"{each} ({each.agent}): {each.lines[-1]}" for each in lines.processes(self.traces) if each.lines]
        return "\n".join([*told[-80:], *journal[-80:], *traces])
