"""One job of the chaos trainee's: its list of hosts, its launchers one after the other, and what is seen of it."""

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
    """A job in a folder of its own. Leaving the block ends everything of it by force."""

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
        for folder in self.agent_folders():  # of agents that were ended by force
            shutil.rmtree(folder, ignore_errors=True)

    # What is done to it

    def start(self) -> None:
        """Start a launcher: the first one, or one that follows."""
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
        """Put another list in the place of the last one, at once."""
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._hosts)

    def set_goal(self, more: int) -> int:
        """Let training end so many steps after the newest one; say after which.

        The newest is not always the furthest: training whose holders are all lost begins again.
        """
        step = self.newest_step() + more
        draft = self.folder / "goal.new"
        draft.write_text(f"{step}\n")
        draft.replace(self.folder / "goal")
        return step

    def hosts_command(self, *words: str) -> RunningProcess:
        """Begin ``hvd-elastic hosts …``."""
        command = [*ELASTIC, "hosts", *words, "--job", self.name]
        return self._ends.enter_context(run_process(command, env=self._env, cwd=self.folder))

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """Send a process of this job a signal; False if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            if marks.environment(pid).get(MARK) == self.name:
                os.kill(pid, number)
                return True
        return False

    # What is seen of it

    @property
    def launcher(self) -> RunningProcess:
        return self.launchers[-1]

    @property
    def ended(self) -> int | None:
        """Exit code of the launcher, if there is one that has ended by itself."""
        return None if not self.launchers or self.launcher.returncode == -signal.SIGKILL else self.launcher.returncode

    def processes(self) -> list[lines.Process]:
        """Training processes that live, in the order of their hosts."""
        return [each for each in lines.processes(self.traces) if marks.environment(each.pid).get(MARK) == self.name]

    def entries(self) -> list[lines.Line]:
        """Each entry of a process to a world, in the order of time."""
        found = (line for each in lines.processes(self.traces) for line in each.lines if line.kind == "enter")
        return sorted(found, key=lambda line: line.at)

    def last_step(self, *, size: int | None = None, since: float = 0.0, until: float = math.inf) -> int:
        """The furthest step of that time (mono), of a world of ``size`` if it is given; 0 if there is none."""
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
        """The step that was done last, whatever its number; 0 if there is none."""
        steps = (line for each in lines.processes(self.traces) for line in each.lines if line.kind == "step")
        newest = max(steps, key=lambda line: line.at, default=None)
        return 0 if newest is None else newest.number

    def records(self, *events: str) -> list[Record]:
        """What the journal has of some events."""
        return evidence.records(self.folder, *events)

    def seen(self, *, goal: int | None = None) -> Seen:
        """Everything that is known, for the checker."""
        return evidence.seen(self.folder, goal=goal)

    def wait_for(self, what: str, found: Callable[[], object], *, timeout: float = 90.0) -> None:
        """Wait until ``found`` is true, watching all the while. ``AssertionError`` if the job ends before."""

        def look() -> object:
            self.watch.look()
            value = found()
            assert value or self.ended is None, f"the job ended ({self.ended}) before {what} came\n{self.details()}"
            return value

        wait_until(look, what=what, timeout=timeout, interval=LOOK_S, show=self.details)

    def wait(self, timeout: float) -> int:
        """Wait for the end of the job; its exit code. ``AssertionError`` if it does not come."""
        self.wait_for("the end", lambda: self.launcher.returncode is not None, timeout=timeout)
        return self.launcher.wait()

    def agent_folders(self) -> list[Path]:
        """Where this job's agents have their sockets and notice files."""
        bases = {Path("/tmp"), Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))}
        return [path for base in bases for path in base.glob(f"hvd-elastic-{os.geteuid()}/{self.name}.*")]

    def left_behind(self) -> list[str]:
        """Processes of the job, and folders of its agents, some time after its end."""
        deadline = time.monotonic() + 5.0
        while (left := self._left_behind()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return left

    def _left_behind(self) -> list[str]:
        there = [pid for pid in marks.marked(MARK, self.name.__eq__) if marks.start_time(pid) is not None]
        found = [f"process {pid}: {marks.command_line(pid)}" for pid in there]
        excused = {f"{host}.sock{end}" for host in self.watch.ended_by_force() for end in ("", NOTICE)}
        for folder in self.agent_folders():
            with contextlib.suppress(FileNotFoundError):  # it has just been taken away
                names = {path.name for path in folder.iterdir()}
                if names - excused or not names:
                    found.append(f"folder {folder}: {', '.join(sorted(names - excused))}")
        return found

    def details(self) -> str:
        """Of use in a failure: what the launchers said, the journal but for steps, and the last lines of each trace."""
        told = [line for launcher in self.launchers for line in launcher.output.splitlines()]
        sampled = ('"stepped"', '"committed"')
        journal = self.journal.read_text().splitlines() if self.journal.exists() else []
        journal = [line for line in journal if not any(word in line for word in sampled)]
        traces = [f"{each} ({each.agent}): {each.lines[-1]}" for each in lines.processes(self.traces) if each.lines]
        return "\n".join([*told[-80:], *journal[-80:], *traces])
