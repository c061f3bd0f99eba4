"""Values that a simulation needs, but a published trace does not contain: ``--assume notice=2m,slots=4``."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.simulate.traces.rows import MAX_SLOTS_AT_ONCE, whole

OF_ALL: Final = ("notice", "untold", "slots", "after", "days")
"""Assumptions for every published trace."""
WORDS: Final = ("unit", "type", "zone", "vc")
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Assumed:
    """The values. ``notice``: seconds of notice before a host goes, except for the share ``untold``. ``slots``: slots
    of each host (None: as in the format). ``after``, ``days``: the part of the trace to use.

    ``unit``: unit of the times in a file of counts. ``hosts``: wanted hosts in each zone. ``max_price``: highest price
    of a host for an hour. ``score``: lowest placement score. ``type``, ``zone``: use only these; ``a+b`` means two.
    ``gpus``: number of GPUs of the cluster. ``vc``: the only virtual cluster to use.
    """

    notice: float = 0.0
    untold: float = 0.0
    slots: int | None = None
    after: float = 0.0
    days: float = math.inf
    unit: str = ""
    hosts: int = 8
    max_price: float = math.inf
    score: int = 3
    type: str = ""
    zone: str = ""
    gpus: int | None = None
    vc: str = ""
    given: frozenset[str] = frozenset()
    """The values that were given."""

    def only(self, known: Collection[str], *, where: str, what: str) -> None:
        """Raise :class:`UsageError` if a given value does not apply to this trace."""
        usable = [*OF_ALL, *known]
        wrong = sorted(self.given.difference(usable))
        if wrong:
            raise UsageError(f"--assume {wrong[0]}: {where} is {what}, of which {', '.join(usable)} can be assumed")


NOTHING: Final = Assumed()


def parsed(text: str) -> Assumed:
    """Read ``notice=2m,slots=4``. Raises :class:`UsageError`."""
    known = [field.name for field in fields(Assumed) if field.name != "given"]
    given: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in known:
            raise UsageError(f"--assume: there is no {name!r}; {nearest(name, known)}")
        given[name] = _value(name, value.strip(), part)
    return Assumed(**given, given=frozenset(given))


def _value(name: str, value: str, part: str) -> Any:
    if name == "unit":
        if value not in UNITS:
            raise UsageError(f"--assume {part}: write one of {', '.join(UNITS)}")
        return value
    if name in WORDS:
        if not value:
            raise UsageError(f"--assume {part}: write a name")
        return value
    if name in ("slots", "hosts", "score", "gpus"):
        most = MAX_SLOTS if name == "slots" else MAX_SLOTS_AT_ONCE
        count = whole(value, most)
        if not count:
            raise UsageError(f"--assume {part}: write a whole number from 1 to {most:,}")
        return count
    number = durations.parse(value)
    if number is None or (name == "untold" and number > 1.0) or (name in ("days", "max_price") and not number):
        what = {"untold": "a share from 0 to 1", "days": "a number of days", "max_price": "a price, such as 0.35"}
        raise UsageError(f"--assume {part}: write {what.get(name, 'a time, such as 2m')}")
    return number
