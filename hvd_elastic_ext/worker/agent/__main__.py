"""Be the agent of this host until the launcher leaves or all is done. See the package."""

from __future__ import annotations

import signal
import sys
import time

from hvd_elastic_ext.edges import cores
from hvd_elastic_ext.worker.agent import tree
from hvd_elastic_ext.worker.agent.agent import Agent
from hvd_elastic_ext.worker.agent.holder import STOP_SIGNALS
from hvd_elastic_ext.worker.agent.orders import End, Join
from hvd_elastic_ext.worker.agent.ways import Membership
from hvd_elastic_ext.worker.agent.wires import Outbox, signals_as_bytes


def _join(agent: Agent, order: Join | End) -> Membership:
    # Signing takes milliseconds to load, and an agent that has no connection needs none.
    from hvd_elastic_ext.worker.agent.membership import join

    return join(agent, order)


def main() -> int:
    """Serve; the exit code."""
    cores.forbid()
    wake = signals_as_bytes((*STOP_SIGNALS, signal.SIGCHLD))
    tree.become_subreaper()
    return Agent(0, Outbox(1), wake=wake, clock=time.monotonic, joining=_join).run()


if __name__ == "__main__":
    sys.exit(main())
