"""Makes each fault of a plan, and undoes it. Each fault returns a text about what it found and did."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.chaos.job import Job
from tests.faults.chaos.lines import Process
from tests.faults.chaos.plan import Do, Fault
from tests.faults.chaos.watch import Agent, family
from tests.support.processes import RunningProcess

GRACE_S: Final = 5.0
"""Seconds from an agent's SIGTERM until it ends its processes."""
SLACK_S: Final = 1.0
"""A host is excused this many seconds before its end: transfers take time, too."""
COMMAND_S: Final = 60.0
"""Longest time in seconds for a command on a busy machine."""
LOOKED_S: Final = 2.0
"""Longest time in seconds until an agent has noticed that its notice was withdrawn."""


class Later(NamedTuple):
    """The action that follows a fault after ``after_s`` seconds."""

    after_s: float
    act: Callable[[], str]


class Act(NamedTuple):
    """What was done, as text, and what follows."""

    said: str
    later: Later | None = None


class Acts:
    """Makes faults. ``listed``: the host list with all hosts."""

    def __init__(self, job: Job, listed: str) -> None:
        self._job, self._listed = job, listed
        self._notices: dict[str, int] = {}
        """By host, the number of notices so far: only the end of the newest one takes effect."""
        self._lists = 0
        self._stopped: set[int] = set()
        self._sent_away: set[int] = set()
        self._blocked: set[str] = set()
        self._commands: list[RunningProcess] = []
        self.down = False
        """Whether the launcher was killed and is not started again yet."""

    def make(self, fault: Fault) -> Act:
        """Make a fault."""
        return _HOW[fault.do](self, fault)

    def undo_all(self) -> None:
        """Undo all faults: every host is listed again, no notice stands, and no host is blocked by hand."""
        for pid in self._stopped:
            self._job.signal(pid, signal.SIGCONT)
        for host in list(self._notices):
            self._take_back(host)
        self._job.set_hosts(self._listed)
        if self.down:
            self._start_launcher()
        for command in self._commands:
            command.wait(COMMAND_S)
        for host in sorted(self._blocked):
            command = self._job.hosts_command("clear", host)
            code = command.wait(COMMAND_S)
            # A launcher that has just been started may not have the list yet: then a host without a block is unknown.
            nothing = "is published or on record" in command.output
            assert code == 0 or nothing, f"{host} could not be cleared: {command.output}"

    # Processes

    def _processes(self, fault: Fault) -> list[Process]:
        there = self._job.processes()
        return [there[which] for which in fault.which if which < len(there)] if fault.which else there

    def _signal(self, processes: list[Process], number: signal.Signals) -> str:
        sent = [str(each) for each in processes if self._job.signal(each.pid, number)]
        return ", ".join(sent) or "nobody was there"

    def kill(self, fault: Fault) -> Act:
        return Act(self._signal(self._processes(fault), signal.SIGKILL))

    def term(self, fault: Fault) -> Act:
        return Act(self._signal(self._processes(fault), signal.SIGTERM))

    def stop(self, fault: Fault) -> Act:
        return self._stop([each.pid for each in self._processes(fault)], fault.seconds)

    def _stop(self, pids: list[int], seconds: float) -> Act:
        sent = [pid for pid in pids if self._job.signal(pid, signal.SIGSTOP)]
        self._stopped.update(sent)

        def go_on() -> str:
            self._stopped.difference_update(sent)
            return f"SIGCONT to {[pid for pid in sent if self._job.signal(pid, signal.SIGCONT)]}"

        return Act(f"SIGSTOP to {sent}", Later(seconds, go_on)) if sent else Act("nobody was there")

    # Agents

    def _on_agent(self, fault: Fault, act: Callable[[Agent], Act]) -> Act:
        self._job.watch.look()
        agent = self._job.watch.on(fault.host)
        return Act("no agent was there") if agent is None else act(agent)

    def stop_agent(self, fault: Fault) -> Act:
        return self._on_agent(fault, lambda agent: self._stop_still(agent, [agent.pid], fault.seconds))

    def stop_host(self, fault: Fault) -> Act:
        return self._on_agent(fault, lambda agent: self._stop_still(agent, family(agent.pid), fault.seconds))

    def _stop_still(self, agent: Agent, pids: list[int], seconds: float) -> Act:
        self._job.watch.note("still", agent.pid, host=agent.host, until=time.monotonic() + seconds)
        return self._stop(pids, seconds)

    def kill_agent(self, fault: Fault) -> Act:
        return self._on_agent(fault, self._kill)

    def kill_agents(self, _: Fault) -> Act:
        self._job.watch.look()
        said = [self._kill(agent).said for agent in self._job.watch.living()]
        return Act("; ".join(said) or "no agent was there")

    def _kill(self, agent: Agent) -> Act:
        self._job.watch.kill(agent)
        return Act(f"agent {agent.pid} of {agent.host}, which held {agent.step}")

    def term_agent(self, fault: Fault) -> Act:
        return self._on_agent(fault, self._send_away)

    def _send_away(self, agent: Agent) -> Act:
        # A second signal ends an agent at once, and the first one may do so while there is no launcher.
        at = time.monotonic() + (0.0 if self.down or agent.pid in self._sent_away else GRACE_S - SLACK_S)
        self._sent_away.add(agent.pid)
        self._job.watch.note("excused", agent.pid, at=at, host=agent.host, until=math.inf)
        self._job.watch.signal(agent, signal.SIGTERM)
        return Act(f"agent {agent.pid} of {agent.host}, which holds {agent.step}")

    # Hosts

    def set_list(self, fault: Fault) -> Act:
        self._lists += 1
        number = self._lists
        self._job.set_hosts(fault.text)

        def all_again() -> str:
            if number != self._lists:
                return "another list has followed"
            self._job.set_hosts(self._listed)
            return "the list has all hosts again"

        return Act("", Later(fault.seconds, all_again))

    def notice(self, fault: Fault) -> Act:
        return self._on_agent(fault, lambda agent: self._give_notice(agent, fault))

    def _give_notice(self, agent: Agent, fault: Fault) -> Act:
        gone = fault.do is Do.NOTICE_GONE
        seconds = fault.deadline if gone else fault.seconds
        entry: dict[str, object] = {"reason": "chaos"}
        if fault.deadline:
            entry["deadline"] = time.time() + fault.deadline
            at, until = time.monotonic() + fault.deadline - SLACK_S, time.monotonic() + seconds + LOOKED_S
            if until > at:
                self._job.watch.note("excused", agent.pid, at=at, host=agent.host, until=until)
        path = self._notice_path(agent.host)
        if path is None:
            return Act("there is no place for it")
        draft = path.with_name(".draft")
        try:
            draft.write_text(json.dumps(entry))
            draft.replace(path)
        except FileNotFoundError:
            return Act("its place has just been taken away")
        number = self._notices[agent.host] = self._notices.get(agent.host, 0) + 1
        return Act(f"agent {agent.pid} holds {agent.step}", Later(seconds, self._end_of(agent, number, gone=gone)))

    def _end_of(self, agent: Agent, number: int, *, gone: bool) -> Callable[[], str]:
        def end() -> str:
            said = self._kill(agent).said if gone and not agent.gone else "the notice is taken back"
            if self._notices.get(agent.host) == number:
                self._take_back(agent.host)
            return said

        return end

    def _take_back(self, host: str) -> None:
        path = self._notice_path(host)
        if path is not None:
            with contextlib.suppress(OSError):
                path.write_text("")

    def _notice_path(self, host: str) -> Path | None:
        """Return the notice file of a host's agent, beside its socket; None if there is none."""
        found = [path for path in self._job.agent_folders() if (path / f"{host}.sock.notice").exists()]
        return found[0] / f"{host}.sock.notice" if found else None

    def block(self, fault: Fault) -> Act:
        self._blocked.add(fault.host)
        self._commands.append(self._job.hosts_command("block", fault.host, "--reason", "chaos"))

        def clear() -> str:
            self._commands.append(self._job.hosts_command("clear", fault.host))
            return f"{fault.host} is cleared"

        return Act("", Later(fault.seconds, clear))

    # The launcher

    def stop_launcher(self, fault: Fault) -> Act:
        return Act("there was none") if self.down else self._stop([self._job.launcher.pid], fault.seconds)

    def kill_launcher(self, fault: Fault) -> Act:
        if self.down:
            return Act("there was none")
        self.down = True
        self._job.kill_launcher()
        return Act(f"launcher {self._job.launcher.pid}", Later(fault.seconds, self._start_launcher))

    def _start_launcher(self) -> str:
        self.down = False
        self._job.start()
        return f"launcher {self._job.launcher.pid} is started"


_HOW: Final[Mapping[Do, Callable[[Acts, Fault], Act]]] = {
    Do.KILL: Acts.kill,
    Do.TERM: Acts.term,
    Do.STOP: Acts.stop,
    Do.STOP_AGENT: Acts.stop_agent,
    Do.STOP_HOST: Acts.stop_host,
    Do.STOP_LAUNCHER: Acts.stop_launcher,
    Do.KILL_AGENT: Acts.kill_agent,
    Do.KILL_AGENTS: Acts.kill_agents,
    Do.TERM_AGENT: Acts.term_agent,
    Do.LIST: Acts.set_list,
    Do.NOTICE: Acts.notice,
    Do.NOTICE_BACK: Acts.notice,
    Do.NOTICE_GONE: Acts.notice,
    Do.BLOCK: Acts.block,
    Do.KILL_LAUNCHER: Acts.kill_launcher,
}
