"""Starts of agents that are under way: one a host; a newer one replaces an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hvd_elastic_ext.io.code.files import NO_CODE, Code
from hvd_elastic_ext.launcher.agents.transports.transports import Launch, LaunchResult, Transport


class Launches:
    """``remark`` takes what the agent of a host writes outside the control port."""

    def __init__(self, remark: Callable[[str, str], None]) -> None:
        self._remark = remark
        self._running: dict[str, Launch] = {}
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        """Those that have not begun."""
        self._in_line: set[str] = set()
        self._needless: set[str] = set()
        self._begun: dict[Launch, str] = {}
        """Those that have not ended, given up or not, each with its host."""

    def put(self, host: str, task: asyncio.Task[Any]) -> None:
        """Register a task that will call :meth:`run`."""
        self.drop(host)
        self._needless.discard(host)
        self._waiting[host] = task

    async def run(self, transport: Transport, host: str, line: bytes, *, code: Code = NO_CODE) -> LaunchResult | None:
        """Start an agent, with ``code``, and wait for the end of the launch; None if it is no longer needed."""
        if host in self._needless:
            self._waiting.pop(host, None)
            return None
        self._in_line.add(host)
        try:
            launch = await transport.start(host, line, remark=lambda text: self._remark(host, text), code=code)
        finally:
            self._in_line.discard(host)
        self._waiting.pop(host, None)
        self._running[host] = launch
        self._begun = {each: name for each, name in self._begun.items() if not each.over}
        self._begun[launch] = host
        ended = await launch.wait()
        return ended if self._running.get(host) is launch else None

    def agent_joined(self, host: str) -> None:
        """An agent has connected: a start that has not begun is not needed."""
        if host in self._waiting:
            self._needless.add(host)
        if host in self._in_line and (task := self._waiting.pop(host, None)) is not None:
            task.cancel()

    def drop(self, host: str) -> None:
        """Give up a start. An agent that runs continues."""
        task, launch = self._waiting.pop(host, None), self._running.pop(host, None)
        if task is not None:
            task.cancel()
        if launch is not None:
            launch.close()

    async def ended(self, *, within_s: float) -> None:
        """Wait for what was started to end by itself, so that nothing of it outlives the launcher."""
        ends = [asyncio.ensure_future(launch.wait()) for launch in self._begun]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=within_s)
        for end in late:
            end.cancel()

    async def close(self) -> list[str]:
        """Give up all starts. Agents that run continue: return their hosts. The launcher waits for none of them."""
        for host in [*self._waiting, *self._running]:
            self.drop(host)
        begun, self._begun = self._begun, {}
        run_on = await asyncio.gather(*(launch.leave() for launch in begun))
        return [host for host, runs in zip(begun.values(), run_on, strict=True) if runs]
