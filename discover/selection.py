"""What is true of each pod now: usable, leaving, silent, or no host at all, each with the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from discover.cluster import PodView
from hvd_elastic_ext.core.hosts import Host


class Grade(Enum):
    """USABLE: a host. LEAVING: there is a notice, it goes at once. ABSENT: nothing is heard of its node (absence of
    evidence, which an outage of the control plane looks like, too). UNFIT: no host, now or ever."""

    USABLE = "usable"
    LEAVING = "leaving"
    ABSENT = "absent"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is held of one pod, and why.

    ``host`` is there for USABLE always, for LEAVING and ABSENT where a name is known. ``deadline`` is in Unix
    seconds. ``advisory``: a warning that forbids adding this host, but not keeping it; "" if there is none.
    """

    pod: PodView
    grade: Grade
    reason: str
    host: Host | None = None
    deadline: float | None = None
    advisory: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """``verdicts`` are in order of the pods' keys. ``again_at``: Unix seconds at which time alone may change them."""

    verdicts: tuple[Verdict, ...] = ()
    again_at: float | None = None
