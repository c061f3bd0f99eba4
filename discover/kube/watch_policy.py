"""What to ask an API server next, given how the last request ended: rules R1 to R8 as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from discover.kube.backoff import LONGEST, Backoff
from discover.kube.transport import Ask, RequestFailed, Trouble

SHORT_LIFE: Final = 1.0
"""Seconds. A watch that lived no longer has failed, however it ended."""

STUBBORN: Final = 10.0
"""Seconds of internal errors or garbage at one version before the objects are listed anew."""

PROMPT: Final = 1.0
"""Seconds, at most, to the next attempt of who was let in before and is forbidden now."""

STARTING: Final = 10.0
"""Seconds for which a server may forbid what it allowed before, without the right being gone: one that has just started
knows no roles for about a second."""

HIDDEN_PAUSE: Final = 60.0
"""Seconds between two attempts at what may not be read."""


class End(Enum):
    """How a request ended.

    DONE: as it should: a list came whole, or the server closed a watch in its own time. EXPIRED: the version (or the
    page) is no longer known to the server. AHEAD: the version is one that the server does not know yet. DENIED: 401.
    FORBIDDEN: 403. BUSY: 429 or 503. BROKEN: 500 and its like, or bytes that are no answer: the same again may do.
    ODD: any other refusal. DEAF: a watch that did not tell what a list did. SILENT, CUT, AWAY (no connection to be
    had) and UNARMED (no credentials to be had) are those of :class:`Trouble`.
    """

    DONE = "done"
    EXPIRED = "expired"
    AHEAD = "too large resource version"
    DENIED = "unauthorized"
    FORBIDDEN = "forbidden"
    BUSY = "busy"
    BROKEN = "broken"
    ODD = "refused"
    DEAF = "deaf"
    SILENT = "silent"
    CUT = "cut"
    AWAY = "unreachable"
    UNARMED = "no credentials"


class Wait(Enum):
    """Before the next request. BACK_OFF: longer each time. ONCE: not at all, unless that was tried already.
    HIDDEN: as long as a right takes to be granted, where the objects can be done without; else BACK_OFF."""

    NOT = 1
    BACK_OFF = 2
    ONCE = 3
    HIDDEN = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """``renew``: read the credentials anew first. ``else_``: what to ask when this has gone on for STUBBORN."""

    ask: Ask
    wait: Wait
    renew: bool = False
    else_: Ask | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    ``version`` is the newest that is known afterwards; ``lived`` how many seconds a watch was open; ``why`` is for
    people.
    """

    end: End
    why: str = ""
    version: str = ""
    lived: float = 0.0
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What one reflector knows of its server, ``next`` and ``version`` being what it is about to ask.

    ``tried``: the one attempt without a pause was made. ``broken_since``: since when (monotonic seconds) the server
    has answered BROKEN at this version and nothing else. ``allowed``: these objects were listed once.
    ``forbidden_since``: since when there was a refusal, and no watch that lived.
    """

    next: Ask = Ask.FRESH
    version: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    tried: bool = False
    broken_since: float | None = None
    allowed: bool = False
    forbidden_since: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """``pause`` seconds, then ``state.next``. ``hidden``: the objects may not be read, and nothing is known of them."""

    state: State
    pause: float = 0.0
    renew: bool = False
    hidden: bool = False


_LATER = {
    End.BUSY: Wait.BACK_OFF,
    End.SILENT: Wait.BACK_OFF,
    End.CUT: Wait.BACK_OFF,
    End.AWAY: Wait.BACK_OFF,
    End.ODD: Wait.BACK_OFF,
    End.BROKEN: Wait.BACK_OFF,
    End.FORBIDDEN: Wait.HIDDEN,
}


def _list(ask: Ask, again: Ask, done: Rule, expired: Rule) -> dict[tuple[Ask, End], Rule]:
    """A list that fails is asked for ``again``, whatever it failed of.

    Who is forbidden may merely be nobody: a credential plugin that fails once leaves a client without a name.
    """
    return {
        **{(ask, end): Rule(again, wait, renew=end is End.FORBIDDEN) for end, wait in _LATER.items()},
        (ask, End.DENIED): Rule(again, Wait.ONCE, renew=True),
        (ask, End.UNARMED): Rule(again, Wait.BACK_OFF, renew=True),
        (ask, End.DONE): done,
        (ask, End.EXPIRED): expired,
        (ask, End.AHEAD): expired,
    }


_WATCH_NOW = Rule(Ask.WATCH, Wait.NOT)

RULES: Final[Mapping[tuple[Ask, End], Rule]] = MappingProxyType(
    {
        # R2: the pages of a list that has expired meanwhile are asked for in one piece.
        **_list(Ask.FRESH, Ask.FRESH, _WATCH_NOW, Rule(Ask.WHOLE, Wait.NOT)),
        **_list(Ask.WHOLE, Ask.FRESH, _WATCH_NOW, Rule(Ask.FRESH, Wait.BACK_OFF)),
        # R3: what the server no longer knows, or does not know yet, is no version to begin from.
        **_list(Ask.SINCE, Ask.SINCE, _WATCH_NOW, Rule(Ask.FRESH, Wait.NOT)),
        # R4 to R8: a watch goes on where it was; only what cannot go on lists anew.
        (Ask.WATCH, End.DONE): Rule(Ask.WATCH, Wait.NOT),
        (Ask.WATCH, End.EXPIRED): Rule(Ask.SINCE, Wait.ONCE),
        (Ask.WATCH, End.AHEAD): Rule(Ask.FRESH, Wait.ONCE),
        (Ask.WATCH, End.DEAF): Rule(Ask.FRESH, Wait.ONCE),
        (Ask.WATCH, End.DENIED): Rule(Ask.WATCH, Wait.ONCE, renew=True),
        (Ask.WATCH, End.UNARMED): Rule(Ask.WATCH, Wait.BACK_OFF, renew=True),
        # Whether the objects are hidden altogether is seen when they are listed.
        (Ask.WATCH, End.FORBIDDEN): Rule(Ask.SINCE, Wait.BACK_OFF),
        (Ask.WATCH, End.BUSY): Rule(Ask.WATCH, Wait.BACK_OFF),
        (Ask.WATCH, End.BROKEN): Rule(Ask.WATCH, Wait.BACK_OFF, else_=Ask.SINCE),
        (Ask.WATCH, End.ODD): Rule(Ask.SINCE, Wait.BACK_OFF),
        (Ask.WATCH, End.SILENT): Rule(Ask.WATCH, Wait.NOT),
        (Ask.WATCH, End.CUT): Rule(Ask.WATCH, Wait.NOT),
        (Ask.WATCH, End.AWAY): Rule(Ask.WATCH, Wait.BACK_OFF),
    }
)


def after(now: float, state: State, outcome: Outcome, *, jitter: float, dispensable: bool = False) -> tuple[Step, str]:
    """Say what comes after ``outcome``: ``(step, reason)``. ``jitter`` is drawn from [0, 1); ``dispensable``: the
    objects can be done without, so they are hidden where they are forbidden."""
    rule = RULES[state.next, outcome.end]
    short = state.next is Ask.WATCH and outcome.lived < SHORT_LIFE
    since = _broken_since(now, state, outcome)
    stubborn = since is not None and now - since >= STUBBORN and rule.else_ is not None
    ask = rule.else_ if stubborn and rule.else_ is not None else rule.ask
    starting = _starting(now, state, outcome)
    hidden = rule.wait is Wait.HIDDEN and dispensable and not starting
    ahead = replace(
        state,
        next=Ask.FRESH if hidden else ask,
        version="" if hidden or ask is Ask.FRESH else outcome.version or state.version,
        tried=_tried(state, rule, short=short),
        broken_since=None if stubborn else since,
        allowed=state.allowed or outcome.end is End.DONE,
        forbidden_since=_forbidden_since(now, state, outcome, short=short),
    )
    if starting and state.forbidden_since is None:
        backoff, pause = Backoff(), PROMPT * (0.5 + 0.5 * jitter)  # the server answers: what came before is over
    else:
        backoff, pause = _pause(now, state, outcome, wait=_wait(rule, state, short=short), jitter=jitter, hidden=hidden)
    step = Step(replace(ahead, backoff=backoff), pause, renew=rule.renew, hidden=hidden)
    return step, outcome.why or outcome.end.value


def _broken_since(now: float, state: State, outcome: Outcome) -> float | None:
    if outcome.end is not End.BROKEN:
        return None
    moved = outcome.version not in ("", state.version)
    return now if state.broken_since is None or moved else state.broken_since


def _starting(now: float, state: State, outcome: Outcome) -> bool:
    """Whether a refusal may merely be that of a server that has just started."""
    refused = outcome.end is End.FORBIDDEN and state.allowed
    return refused and (state.forbidden_since is None or now - state.forbidden_since < STARTING)


def _forbidden_since(now: float, state: State, outcome: Outcome, *, short: bool) -> float | None:
    """A list proves nothing: there are roles that may list and not watch."""
    if state.next is Ask.WATCH and not short:
        return None
    fresh = outcome.end is End.FORBIDDEN and state.forbidden_since is None
    return now if fresh else state.forbidden_since


def _tried(state: State, rule: Rule, *, short: bool) -> bool:
    """Only a watch that lives earns another attempt without a pause: a list may succeed, and the watch never."""
    return rule.wait is Wait.ONCE or (state.tried and (short or state.next is not Ask.WATCH))


def _wait(rule: Rule, state: State, *, short: bool) -> Wait:
    if rule.wait is Wait.ONCE:
        return Wait.BACK_OFF if state.tried and (short or state.next is not Ask.WATCH) else Wait.NOT
    return Wait.BACK_OFF if rule.wait is Wait.NOT and short else rule.wait


def _pause(
    now: float, state: State, outcome: Outcome, *, wait: Wait, jitter: float, hidden: bool
) -> tuple[Backoff, float]:
    if wait is Wait.NOT:
        return state.backoff, 0.0
    if hidden:
        return Backoff(), HIDDEN_PAUSE * (0.9 + 0.2 * jitter)
    backoff, pause = state.backoff.failed(now, jitter)
    return backoff, max(pause, min(outcome.retry_after or 0.0, LONGEST))


_TROUBLES: Final = {
    Trouble.REFUSED: End.AWAY,
    Trouble.UNREACHABLE: End.AWAY,
    Trouble.SILENT: End.SILENT,
    Trouble.CUT: End.CUT,
    Trouble.GARBAGE: End.BROKEN,
    Trouble.UNARMED: End.UNARMED,
}

_CODES: Final = {401: End.DENIED, 403: End.FORBIDDEN, 410: End.EXPIRED, 429: End.BUSY, 503: End.BUSY}

_REASONS: Final = {
    "Expired": End.EXPIRED,
    "Gone": End.EXPIRED,
    "Unauthorized": End.DENIED,
    "Forbidden": End.FORBIDDEN,
    "TooManyRequests": End.BUSY,
    "ServiceUnavailable": End.BUSY,
    "InternalError": End.BROKEN,
}


def end_of(error: RequestFailed) -> End:
    """Say what sort of end ``error`` is. The server's Status may lack its code, or its reason (rule R6)."""
    if error.trouble is not Trouble.ANSWERED:
        return _TROUBLES[error.trouble]
    if "ResourceVersionTooLarge" in error.causes or (error.code == 504 and "Too large resource version" in str(error)):
        return End.AHEAD
    by_code = _CODES.get(error.code) or (End.BROKEN if 500 <= error.code <= 599 else None)
    return by_code or _REASONS.get(error.reason) or End.ODD
