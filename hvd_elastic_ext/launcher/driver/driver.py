"""The launcher's one loop: an event changes the state, planners decide by the state, the executor acts.

No threads, no sockets, no waiting: :class:`Driver` gets events and a clock. Each look compares desired with actual, and
so repairs what was lost: a message, or a whole launcher.
"""

from __future__ import annotations

from collections.abc import Callable

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentUnfit, Event, Look
from hvd_elastic_ext.launcher.driver.executor import Executor, ExecutorBackend
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.recording import Recorder, error_text
from hvd_elastic_ext.launcher.driver.reduce import reduce


class Driver:
    """Drives one job. After events, the caller calls :meth:`look` soon, once for many events.

    ``changed`` is called when the state for the next launcher has to be saved. ``recorder`` records all events.
    """

    def __init__(
        self,
        job: JobState,
        backend: ExecutorBackend,
        *,
        journal: Journal,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
    ) -> None:
        self.job = job
        facts_of = job.roster.facts_of
        self.executor = Executor(backend, journal, facts_of=facts_of, save=changed)
        self._backend, self._clock, self._recorder = backend, clock, recorder

    def tell(self, event: Event) -> None:
        """Apply an event to the state, and do the actions that follow at once."""
        self.job.now = self._clock.mono()
        try:  # no context manager: there may be hundreds of heartbeats a second
            reduce(self.job, event)
        except Exception as error:
            self._record_defect(event, error)
            raise
        self._act(event)
        if isinstance(event, AgentJoined) and (problem := self._unfit(event.host)) is not None:
            self.tell(AgentUnfit(event.host, problem))

    def look(self, *, longest_s: float | None = None) -> float | None:
        """Compare desired with actual, and act. When to look again at the latest (mono); None if the job is over.

        ``longest_s``: see :func:`plan.look`.
        """
        self.job.now = self._clock.mono()
        try:
            again_at = plan.look(self.job, longest_s=longest_s)
        except Exception as error:
            self._record_defect(Look(), error)
            raise
        self._act(Look(), again_at)
        return again_at

    def _act(self, event: Event, again_at: float | None = None) -> None:
        wanted = self.job.take_actions()
        if self._recorder is not None:
            self._recorder.happened(self.job.now, event, wanted, again_at)
        if wanted:  # most heartbeats cause no action
            self.executor.do(wanted)

    def _record_defect(self, event: Event, error: Exception) -> None:
        """A defect's event is recorded with its error: the recording is for finding defects."""
        if self._recorder is not None:
            self._recorder.happened(self.job.now, event, (), error=error_text(error))

    @property
    def over(self) -> bool:
        """The job has ended: with :attr:`outcome`, or well if that is None."""
        return self.job.outcome.over

    @property
    def outcome(self) -> JobFailed | None:
        """Why the job fails; None unless it does."""
        return self.job.outcome.failure

    def due_at(self) -> float | None:
        """When to look again before the time that :meth:`look` returned (mono): see :func:`plan.due_at`."""
        self.job.now = self._clock.mono()
        return plan.due_at(self.job)

    def is_due(self) -> bool:
        """Whether to look now: see :func:`plan.is_due`."""
        self.job.now = self._clock.mono()
        return plan.is_due(self.job)

    def _unfit(self, name: str) -> str | None:
        agent = self.job.roster.agents.get(name)
        return None if agent is None else self._backend.unfit(agent.host)
