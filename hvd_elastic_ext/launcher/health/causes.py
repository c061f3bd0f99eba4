"""Why a training process or a host is gone, and what is to blame. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED

SSH_FAILED: Final = 255
"""Exit code of ssh when it could not connect or lost the connection."""
LEFT_AS_ASKED: Final = 255
"""Exit code (-1) of scripts for Alibaba's SDK that leave when asked."""
BUDGET_WINDOW_S: Final = 3600.0
"""Time in which faults count towards ``--failure-budget``."""
SIGNALLED: Final = 128
"""Exit codes above this are 128 + the number of the signal that ended the process."""
SIGKILLED: Final = frozenset({-signal.SIGKILL, SIGNALLED + signal.SIGKILL})
"""Exit codes of a process that SIGKILL has ended."""
_ABORTED: Final = frozenset({-signal.SIGABRT, SIGNALLED + signal.SIGABRT})


class Cause(str, Enum):
    """Why something is gone, in the words of the journal."""

    DONE = "done"
    LEFT = "left"
    TOLD = "told to leave"
    DRAINED = "drained"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    PEER_LOST = "peer lost"
    BEHIND = "behind"
    CRASHED = "crashed"
    MEMORY = "out of memory"
    SILENT = "silent"
    STALLED = "stalled"
    NEVER_READY = "never ready"
    UNREACHABLE = "unreachable"
    FENCED = "fenced"

    def __str__(self) -> str:
        return self.value

    @property
    def fault(self) -> bool:
        """Whether it is a fault of a slot or a host."""
        return BLAME[self].points_at != "none"

    def with_detail(self, detail: str) -> str:
        """The cause and the text ``detail``, unless that begins with the cause."""
        return detail if detail.startswith(self.value) else f"{self.value}: {detail}" if detail else self.value


class Blame(NamedTuple):
    """``points_at``: ``none``; ``slot`` (the whole host if no slot is named); or ``host``, whichever slot is named."""

    points_at: str
    why: str


BLAME: Final[Mapping[Cause, Blame]] = {
    Cause.DONE: Blame("none", "training is over"),
    Cause.LEFT: Blame("none", "it exited cleanly without an order of the launcher"),
    Cause.TOLD: Blame("none", "the launcher told it to leave"),
    Cause.DRAINED: Blame("none", "an operator empties the host; it works as well as before"),
    Cause.EVICTED: Blame("none", "the cluster evicted the pod"),
    Cause.PREEMPTED: Blame("none", "the cloud took the machine back, or a pod of higher priority took its place"),
    Cause.PEER_LOST: Blame("none", "Horovod ends a whole process when a peer is gone: the peer is to blame"),
    Cause.BEHIND: Blame("none", "it rolled back in a training call that others have ended, and is started again"),
    Cause.CRASHED: Blame("slot", "one process failed and its neighbours did not: its device, if it does so again"),
    Cause.MEMORY: Blame("slot", "the memory is the host's, but one process fewer is what relieves it"),
    Cause.SILENT: Blame("slot", "one process is stopped or stuck while its agent speaks"),
    Cause.STALLED: Blame("slot", "one process makes no progress, though it sends heartbeats, and its peers wait"),
    Cause.NEVER_READY: Blame("slot", "it was not ready in time; other slots of the host may be"),
    Cause.UNREACHABLE: Blame("host", "its name, its sshd or its network: that serves all of its slots"),
    Cause.FENCED: Blame("host", "its agent is silent, which says nothing about one process"),
}


_ANNOUNCED: Final = (("drain", Cause.DRAINED), ("cordon", Cause.DRAINED), ("evict", Cause.EVICTED))


def announced(reason: str) -> Cause:
    """The cause that a notice's reason names; preempted if it names none."""
    return next((cause for word, cause in _ANNOUNCED if word in reason.lower()), Cause.PREEMPTED)


class Ending(NamedTuple):
    """The cause of the end of a process, and a text with details."""

    cause: Cause
    text: str


def ending(
    code: int,
    *,
    done: bool = False,
    told_to_leave: bool = False,
    departure: Cause | None = None,
    peer_lost: bool = False,
    oom: bool = False,
    warned: bool = False,
) -> Ending:
    """The cause of the end of a training process.

    ``code``: exit code as of a shell, or minus the signal as of Python. ``done``: it had reported the end of training.
    ``departure``: the notice of its host. ``peer_lost``: its world had just lost another process. ``oom``: the kernel
    has killed something there for memory meanwhile. ``warned``: ``check_alive()`` was False; scripts for Alibaba's SDK
    then save and end with -1.
    """
    number = -code if code < 0 else code - SIGNALLED if SIGNALLED < code < SSH_FAILED else 0
    how = _how(code, number)
    if done:
        return Ending(Cause.DONE, "done" if code == 0 else f"done, then {how}")
    if warned and code == LEFT_AS_ASKED:
        why = departure or Cause.PREEMPTED
        return Ending(why, f"{why}: it ended by itself after check_alive() was False")
    if told_to_leave:
        return Ending(Cause.TOLD, Cause.TOLD.value)
    if departure is not None:
        return Ending(departure, f"{departure.value}: {how}")
    if code == 0:
        return Ending(Cause.LEFT, "left with exit code 0 before training was done")
    if number == signal.SIGTERM:
        return Ending(Cause.LEFT, "left on a SIGTERM that this launcher did not send")
    if number == signal.SIGKILL and oom:
        return Ending(Cause.MEMORY, "out of memory: killed by the kernel")
    if peer_lost and number == signal.SIGABRT:
        return Ending(Cause.PEER_LOST, "aborted by Horovod because a peer was lost")
    if code == SSH_FAILED:
        return Ending(Cause.UNREACHABLE, "unreachable: ssh failed or lost the connection")
    return Ending(Cause.CRASHED, f"crashed: {how}")


class Evidence(Enum):
    """What is known of whether a process has failed by itself, or because a peer was lost."""

    OWN = "own"
    """By itself: a lost peer causes no such end."""
    UNCLEAR = "unclear"
    """An exit code alone: by itself, unless its world had lost another process before."""
    LOST = "lost"
    """An operation with its peers had failed, or it has aborted: most likely one of them is the cause."""


def evidence(code: int, cause: Cause, *, error: bool, lost_peer: bool) -> Evidence:
    """What the end of a process with the fault ``cause`` shows.

    ``error``: it has reported an error of its script. ``lost_peer``: it has reported that this, or what ended it,
    follows from an operation with its peers that failed.
    """
    if cause not in (Cause.CRASHED, Cause.UNREACHABLE):
        return Evidence.OWN  # memory, or the launcher has killed it for what it did itself
    if lost_peer or code in _ABORTED:
        return Evidence.LOST
    signalled = code < 0 or SIGNALLED < code < SSH_FAILED
    return Evidence.OWN if error or signalled or code == NOT_STARTED else Evidence.UNCLEAR


def _how(code: int, number: int) -> str:
    if number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return "could not be started" if code == NOT_STARTED else f"exit code {code}"
