"""Run the agent of this host until the launcher disconnects or everything is done. See the package."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from hvd_elastic_ext.agent.descriptors import Outbox, signals_as_bytes
from hvd_elastic_ext.agent.loop import Agent
from hvd_elastic_ext.agent.orders import End, Join
from hvd_elastic_ext.agent.slots.supervisor import STOP_SIGNALS
from hvd_elastic_ext.core.messages.slot_protocol import STDIN
from hvd_elastic_ext.io import core_dumps, file_limits, process_tree

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.job import JoinedJob


def _join(agent: Agent, order: Join | End) -> JoinedJob:
    # Signing takes milliseconds to load, and an agent that has no connection needs none.
    from hvd_elastic_ext.agent.job import join

    return join(agent, order)


def main() -> int:
    """Serve, and return the exit code."""
    core_dumps.forbid()
    wake = signals_as_bytes((*STOP_SIGNALS, signal.SIGCHLD))
    process_tree.become_subreaper()
    file_limits.raise_limit(file_limits.AGENT)
    return Agent(0, Outbox(1), wake=wake, clock=time.monotonic, joining=_join, stdin=_stdin()).run()


def _stdin() -> int | None:
    """The launcher's standard input, for one process; no process inherits it or its variable otherwise."""
    text = os.environ.pop(STDIN, "")
    if not text.isdecimal():
        return None
    try:
        os.set_inheritable(int(text), False)
    except OSError:  # the variable is of another agent
        return None
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
