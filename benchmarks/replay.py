"""A published trace of spot instances, compressed into minutes: which host comes and goes when. Pure.

The trace has 12 ``g4dn.xlarge`` in us-east-1c on 21 November 2020. It is by the authors of Bamboo (NSDI '23), from
their repository (``uclasystem/bamboo``, ``doc/data``): the number of instances and the times of its changes. Here are
the last 13 of its 26 hours, from second 41,000 on, which have many changes.

The trace does not have which host goes, and whether it had notice. Both are drawn from a seed. A new host has a new
name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

What = Literal["comes", "told", "gone"]

BEGIN_S: Final = 41_000
END_S: Final = 88_200
OF: Final = 12
COUNTS: Final = (
    (43064, 8), (43130, 6), (43574, 5), (44224, 9), (44247, 12), (48805, 11), (50300, 12), (53365, 6), (53480, 5),
    (56483, 10), (56544, 12), (62986, 11), (64490, 12), (65917, 10), (66602, 9), (66938, 8), (68000, 12), (68050, 11),
    (68245, 12), (81120, 10), (82267, 9), (82457, 6), (83045, 12), (86109, 9), (86585, 12), (87019, 11), (87607, 10),
    (87732, 9), (88032, 8), (88194, 7),
)  # fmt: skip
"""Second of the trace, and how many of the 12 instances existed from then on."""
UNTOLD: Final = 0.3
"""The share of hosts that go without notice."""


@dataclass(frozen=True, slots=True)
class Event:
    """``at_s``: seconds from the start of the replay. Hosts are numbered from 0 in the order of their arrival."""

    at_s: float
    what: What
    host: int


def events(*, hosts: int, lasts_s: float, notice_s: float, seed: int) -> list[Event]:
    """Return the trace for a group of ``hosts`` that all exist at the start, in order of time.

    The group has the same share of ``hosts`` as the trace has of its 12, rounded. A notice comes ``notice_s`` before
    the end, in seconds of the replay, or when the host comes if that is later.
    """
    return sorted(_events(hosts, lasts_s, notice_s, random.Random(seed)), key=lambda event: event.at_s)


def _events(hosts: int, lasts_s: float, notice_s: float, chance: random.Random) -> Iterator[Event]:
    came = dict.fromkeys(range(hosts), 0.0)
    there = list(came)
    for second, count in COUNTS:
        at_s = (second - BEGIN_S) * lasts_s / (END_S - BEGIN_S)
        wanted = max(1, round(count * hosts / OF))
        while len(there) > wanted:
            host = there.pop(chance.randrange(len(there)))
            if chance.random() >= UNTOLD:
                yield Event(max(came[host], at_s - notice_s), "told", host)
            yield Event(at_s, "gone", host)
        while len(there) < wanted:
            host = len(came)
            came[host] = at_s
            there.append(host)
            yield Event(at_s, "comes", host)
