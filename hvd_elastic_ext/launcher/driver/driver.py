"""The launcher's one loop: an event changes the state, planners decide by the state, the executor acts.

No threads, no sockets, no waiting: :class:`Driver` is told of events and looks at the clock it was given. Whatever was
lost on the way, a message or a whole launcher, is made up for at the next look: desired is compared with actual each
time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentUnfit, Event
from hvd_elastic_ext.launcher.driver.executor import Executor, Hands
from hvd_elastic_ext.launcher.driver.reduce import reduce
from hvd_elastic_ext.launcher.planners.health import silence
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.rules.membership.custody import Stored
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.rules import Rules


class Driver:
    """Drives one job. Whoever tells it of an event has it look soon after; of many events, once.

    ``changed`` is called when something is new that should outlive the launcher. For the rest see :meth:`JobState.new`.
    """

    def __init__(
        self,
        rules: Rules,
        hands: Hands,
        *,
        journal: Journal,
        clock: Clock,
        ledger: HealthLedger | None = None,
        generation: int = 0,
        expects: str | None = None,
        commits: Iterable[Any] = (),
        stored: Stored | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        known: dict[str, Any] = {"ledger": ledger, "generation": generation, "expects": expects}
        errands = secrets.randbelow(1 << 48)
        self.job = JobState.new(rules, clock.mono(), errands=errands, commits=commits, stored=stored, **known)
        self.executor = Executor(hands, journal, facts_of=self._facts_of, save=changed)
        self._hands, self._clock = hands, clock

    def tell(self, event: Event) -> None:
        """Take in what has happened."""
        self.job.now = self._clock.mono()
        reduce(self.job, event)
        if isinstance(event, AgentJoined):
            self._see_whether_fit(event.host)
        self.executor.do(self.job.take_actions())

    def look(self) -> float | None:
        """Compare desired with actual and act; when to look again at the latest (mono), None if all is over."""
        self.job.now = self._clock.mono()
        again_at = plan.look(self.job)
        self.executor.do(self.job.take_actions())
        return again_at

    @property
    def over(self) -> bool:
        """The job has ended: with :attr:`outcome`, or well if that is None."""
        return self.job.outcome.over

    @property
    def outcome(self) -> JobFailed | None:
        """Why the job ends; None if nothing but the end of training ends it."""
        return self.job.outcome.failure

    def next_silence(self) -> float | None:
        """When the next host will have been silent for too long, unless it speaks (mono)."""
        return silence.next_silence(self.job)

    def too_silent(self) -> bool:
        """Whether a look now would find a host or a process that was silent for too long."""
        self.job.now = self._clock.mono()
        return silence.too_silent(self.job)

    def _see_whether_fit(self, name: str) -> None:
        agent = self.job.roster.agents.get(name)
        host: Host | None = None if agent is None else agent.host
        if agent is not None and host is not None:
            problem = self._hands.unfit(host, agent.facts)
            if problem is not None:
                reduce(self.job, AgentUnfit(name, problem))

    def _facts_of(self, host: str) -> Mapping[str, Any]:
        agent = self.job.roster.agents.get(host)
        return {} if agent is None else agent.facts
