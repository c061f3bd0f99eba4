"""Decides the next request to an API server from the end of the last one, and how long to wait before it. Pure.

The rules R1 to R8 are a table, :data:`RULES`: for each request and each way in which it can end, what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from discover.watch.collection import RequestKind
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.io.kube.errors import Reason

FIRST_PAUSE: Final = 0.8
"""Seconds, before jitter, after the first failure. Each further failure doubles them (rule R8)."""

LONGEST_PAUSE: Final = 30.0
"""Seconds, including jitter. The limit makes hosts be published again soon after a server is back."""

RESET_AFTER: Final = 120.0
"""Seconds without a failure after which the next one counts as the first."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures of requests, one after the other."""

    failures: int = 0
    """How many in a row."""
    at: float | None = None
    """When the last one was (monotonic seconds)."""

    def failed(self, now: float, jitter: float) -> tuple[Backoff, float]:
        """Count a failure at ``now``; return ``(new state, seconds to wait)``.

        ``jitter``, drawn from [0, 1), keeps many daemons from sending requests at the same time.
        """
        first = self.at is None or now - self.at > RESET_AFTER
        failures = 1 if first else self.failures + 1
        return Backoff(failures, now), pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE, jitter=jitter)


# --- the next request


SHORT_WATCH: Final = 1.0
"""Seconds. A watch that was open for less counts as failed, even if it ended normally."""

ERRORS_BEFORE_RELIST: Final = 10.0
"""Seconds of server errors or unreadable answers at one version before the objects are listed again."""

QUICK_RETRY: Final = 1.0
"""Most seconds to the next attempt after a 403 for a request that was allowed before."""

SERVER_START: Final = 10.0
"""Seconds for which such a 403 does not hide objects. A server that has just started knows no roles for about a second.
"""

HIDDEN_PAUSE: Final = 60.0
"""Seconds between two attempts to read hidden objects."""


class Ending(Enum):
    """How a request ended without an error. DONE: with a complete list, or a watch that the server closed in time.
    MISSED: a comparison has shown that the watch missed changes.
    """

    DONE = "done"
    MISSED = "deaf"


class Pause(Enum):
    """The pause before the next request. NOT: none. BACK_OFF: longer each time. ONCE: none at the first attempt, then
    BACK_OFF. HIDDEN: :data:`HIDDEN_PAUSE` if the objects are optional, else BACK_OFF.
    """

    NOT = 1
    BACK_OFF = 2
    ONCE = 3
    HIDDEN = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """The next request (``ask``) and its pause."""

    ask: RequestKind
    wait: Pause
    reload_credentials: bool = False
    else_: RequestKind | None = None
    """The next request after the server has answered only errors for :data:`ERRORS_BEFORE_RELIST` seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a request."""

    ending: Ending | Reason
    why: str = ""
    """For people."""
    version: str = ""
    """The newest that is known afterwards."""
    lived: float = 0.0
    """Seconds that a watch was open."""
    retry_after: float | None = None
    """Seconds that the server asks to wait."""


@dataclass(frozen=True, slots=True)
class State:
    """State of one reflector; times in monotonic seconds. ``next`` and ``version``: its next request."""

    next: RequestKind = RequestKind.PAGED
    version: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    tried: bool = False
    """The one attempt without a pause was made."""
    broken_since: float | None = None
    """From when the server has answered only SERVER_ERROR at this version."""
    allowed: bool = False
    """A request has succeeded once."""
    forbidden_since: float | None = None
    """When requests were first refused, without a watch since then that lasted."""


@dataclass(frozen=True, slots=True)
class Step:
    """Wait ``pause`` seconds, then send ``state.next``."""

    state: State
    pause: float = 0.0
    reload_credentials: bool = False
    hidden: bool = False
    """The daemon may not read the objects and knows none of them."""


_Rules = dict[tuple[RequestKind, Ending | Reason], Rule]


_LATER = {
    Reason.BUSY: Pause.BACK_OFF,
    Reason.SILENT: Pause.BACK_OFF,
    Reason.CUT: Pause.BACK_OFF,
    Reason.UNREACHABLE: Pause.BACK_OFF,
    Reason.REFUSED: Pause.BACK_OFF,
    Reason.NOT_FOUND: Pause.BACK_OFF,
    Reason.CONFLICT: Pause.BACK_OFF,
    Reason.SERVER_ERROR: Pause.BACK_OFF,
    Reason.FORBIDDEN: Pause.HIDDEN,
}


def _list(ask: RequestKind, again: RequestKind, done: Rule, expired: Rule) -> _Rules:
    """Return the rules of one kind of list. A list that fails is followed by ``again``; ``done`` and ``expired`` are
    the rules after a success and after an unknown version.

    A 403 may come from missing credentials: if a credential plugin fails once, the client has no name.
    """
    return {
        **{(ask, end): Rule(again, wait, reload_credentials=end is Reason.FORBIDDEN) for end, wait in _LATER.items()},
        (ask, Reason.UNAUTHORIZED): Rule(again, Pause.ONCE, reload_credentials=True),
        (ask, Reason.NO_CREDENTIALS): Rule(again, Pause.BACK_OFF, reload_credentials=True),
        (ask, Ending.DONE): done,
        (ask, Reason.EXPIRED): expired,
        (ask, Reason.AHEAD): expired,
    }


_WATCH_NOW = Rule(RequestKind.WATCH, Pause.NOT)


RULES: Final[Mapping[tuple[RequestKind, Ending | Reason], Rule]] = MappingProxyType(
    {
        # R2: if pages expire, ask for the list in one piece.
        **_list(RequestKind.PAGED, RequestKind.PAGED, _WATCH_NOW, Rule(RequestKind.UNPAGED, Pause.NOT)),
        **_list(RequestKind.UNPAGED, RequestKind.PAGED, _WATCH_NOW, Rule(RequestKind.PAGED, Pause.BACK_OFF)),
        # R3: a watch cannot begin at a version that the server does not know.
        **_list(RequestKind.RELIST, RequestKind.RELIST, _WATCH_NOW, Rule(RequestKind.PAGED, Pause.NOT)),
        # R4 to R8: a watch continues at its version; list again only if it cannot.
        (RequestKind.WATCH, Ending.DONE): Rule(RequestKind.WATCH, Pause.NOT),
        (RequestKind.WATCH, Reason.EXPIRED): Rule(RequestKind.RELIST, Pause.ONCE),
        (RequestKind.WATCH, Reason.AHEAD): Rule(RequestKind.PAGED, Pause.ONCE),
        (RequestKind.WATCH, Ending.MISSED): Rule(RequestKind.PAGED, Pause.ONCE),
        (RequestKind.WATCH, Reason.UNAUTHORIZED): Rule(RequestKind.WATCH, Pause.ONCE, reload_credentials=True),
        (RequestKind.WATCH, Reason.NO_CREDENTIALS): Rule(RequestKind.WATCH, Pause.BACK_OFF, reload_credentials=True),
        # The list finds out whether the objects are hidden.
        (RequestKind.WATCH, Reason.FORBIDDEN): Rule(RequestKind.RELIST, Pause.BACK_OFF),
        (RequestKind.WATCH, Reason.BUSY): Rule(RequestKind.WATCH, Pause.BACK_OFF),
        (RequestKind.WATCH, Reason.SERVER_ERROR): Rule(RequestKind.WATCH, Pause.BACK_OFF, else_=RequestKind.RELIST),
        (RequestKind.WATCH, Reason.REFUSED): Rule(RequestKind.RELIST, Pause.BACK_OFF),
        (RequestKind.WATCH, Reason.NOT_FOUND): Rule(RequestKind.RELIST, Pause.BACK_OFF),
        (RequestKind.WATCH, Reason.CONFLICT): Rule(RequestKind.RELIST, Pause.BACK_OFF),
        (RequestKind.WATCH, Reason.SILENT): Rule(RequestKind.WATCH, Pause.NOT),
        (RequestKind.WATCH, Reason.CUT): Rule(RequestKind.WATCH, Pause.NOT),
        (RequestKind.WATCH, Reason.UNREACHABLE): Rule(RequestKind.WATCH, Pause.BACK_OFF),
    }
)


def next_step(now: float, state: State, outcome: Outcome, *, jitter: float, optional: bool = False) -> tuple[Step, str]:
    """Return ``(step, reason)`` after ``outcome``. ``now`` is in monotonic seconds. ``jitter`` is drawn from [0, 1).
    ``optional``: forbidden objects count as hidden.
    """
    rule = RULES[state.next, outcome.ending]
    short = state.next is RequestKind.WATCH and outcome.lived < SHORT_WATCH
    since = _broken_since(now, state, outcome)
    stubborn = since is not None and now - since >= ERRORS_BEFORE_RELIST and rule.else_ is not None
    ask = rule.else_ if stubborn and rule.else_ is not None else rule.ask
    starting = _starting(now, state, outcome)
    hidden = rule.wait is Pause.HIDDEN and optional and not starting
    ahead = replace(
        state,
        next=RequestKind.PAGED if hidden else ask,
        version="" if hidden or ask is RequestKind.PAGED else outcome.version or state.version,
        tried=_tried(state, rule, short=short),
        broken_since=None if stubborn else since,
        allowed=state.allowed or outcome.ending is Ending.DONE,
        forbidden_since=_forbidden_since(now, state, outcome, short=short),
    )
    if starting and state.forbidden_since is None:
        backoff, pause = Backoff(), QUICK_RETRY * (0.5 + 0.5 * jitter)  # the server answers, so earlier errors are over
    else:
        backoff, pause = _pause(now, state, outcome, wait=_wait(rule, state, short=short), jitter=jitter, hidden=hidden)
    step = Step(replace(ahead, backoff=backoff), pause, reload_credentials=rule.reload_credentials, hidden=hidden)
    return step, outcome.why or outcome.ending.value


def _broken_since(now: float, state: State, outcome: Outcome) -> float | None:
    if outcome.ending is not Reason.SERVER_ERROR:
        return None
    moved = outcome.version not in ("", state.version)
    return now if state.broken_since is None or moved else state.broken_since


def _starting(now: float, state: State, outcome: Outcome) -> bool:
    """Whether a 403 may come from a server that has just started."""
    refused = outcome.ending is Reason.FORBIDDEN and state.allowed
    return refused and (state.forbidden_since is None or now - state.forbidden_since < SERVER_START)


def _forbidden_since(now: float, state: State, outcome: Outcome, *, short: bool) -> float | None:
    """Return when requests were first refused. Only a watch that lasts ends that, because some roles may list objects
    but not watch them.
    """
    if state.next is RequestKind.WATCH and not short:
        return None
    fresh = outcome.ending is Reason.FORBIDDEN and state.forbidden_since is None
    return now if fresh else state.forbidden_since


def _tried(state: State, rule: Rule, *, short: bool) -> bool:
    """Whether the attempt without a pause was made. Only a watch that lasts allows another one, because lists may
    succeed while every watch fails.
    """
    return rule.wait is Pause.ONCE or (state.tried and (short or state.next is not RequestKind.WATCH))


def _wait(rule: Rule, state: State, *, short: bool) -> Pause:
    if rule.wait is Pause.ONCE:
        return Pause.BACK_OFF if state.tried and (short or state.next is not RequestKind.WATCH) else Pause.NOT
    return Pause.BACK_OFF if rule.wait is Pause.NOT and short else rule.wait


def _pause(
    now: float, state: State, outcome: Outcome, *, wait: Pause, jitter: float, hidden: bool
) -> tuple[Backoff, float]:
    if wait is Pause.NOT:
        return state.backoff, 0.0
    if hidden:
        return Backoff(), HIDDEN_PAUSE * (0.9 + 0.2 * jitter)
    backoff, pause = state.backoff.failed(now, jitter)
    return backoff, max(pause, min(outcome.retry_after or 0.0, LONGEST_PAUSE))
