"""Keeps the verdicts on all pods in order and in groups, and updates what has changed. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from discover.selection.objects import Delta, Key, copied
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.publication import Departure

T = TypeVar("T")

_Change = tuple[Verdict | None, Verdict | None]
"""The verdicts on a pod before and now; None if there was or is no such pod."""

_FOLLOWS: Final = {Grade.LEAVING: "imminent", Grade.ABSENT: "absent"}


@dataclass(frozen=True, slots=True)
class VerdictGroups:
    """The verdicts in groups, by what has to be done. Groups without changes are the same objects as before.

    ``clear``: hosts of usable pods without an advisory, by UID. ``cleared``: the last change of ``clear``. ``marked``:
    absent pods and usable ones under an advisory, in order of the pods' keys. ``departures``: of hosts that leave or
    have left, by UID. ``warned``: how many pods are under each warning, see :func:`warning_of`. ``keys``: the keys of
    all pods, by UID.
    """

    clear: Mapping[str, Host]
    marked: tuple[Verdict, ...]
    departures: Mapping[str, Departure]
    warned: Mapping[tuple[str, str], int]
    keys: Mapping[str, Key]
    cleared: Delta[str] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> VerdictGroups:
        """Group ``verdicts``, which are in order of the pods' keys."""
        verdicts = tuple(verdicts)
        return cls(
            clear={each.pod.uid: host for each in verdicts if (host := clear_host(each)) is not None},
            marked=tuple(filter(is_marked, verdicts)),
            departures={each.pod.uid: going for each in verdicts if (going := departure_of(each)) is not None},
            warned=dict(Counter(warning for each in verdicts if (warning := warning_of(each)) is not None)),
            keys={each.pod.uid: each.pod.key for each in verdicts},
        )


NO_PODS: Final = VerdictGroups({}, (), {}, {}, {})


def clear_host(verdict: Verdict) -> Host | None:
    """Return the host of a usable pod without an advisory; None for any other pod."""
    return verdict.host if verdict.grade is Grade.USABLE and not verdict.advisory else None


def is_marked(verdict: Verdict) -> bool:
    """Whether the pod is absent, or usable under an advisory."""
    return verdict.grade is Grade.ABSENT or (verdict.grade is Grade.USABLE and bool(verdict.advisory))


def departure_of(verdict: Verdict) -> Departure | None:
    """Return the departure of a host that leaves or has left; None for any other pod, or if no host is known."""
    if verdict.grade not in (Grade.LEAVING, Grade.GONE) or verdict.host is None:
        return None
    return Departure(verdict.host.name, verdict.reason, verdict.deadline)


def warning_of(verdict: Verdict) -> tuple[str, str] | None:
    """Return ``(source, class)`` of the warning that a pod is under; None without one.

    Sources: ``pod``, ``node``, ``job``. Classes: ``imminent`` (the pod goes), ``advisory`` (a published one stays, but
    a new one is not added), ``absent`` (the pod is silent).
    """
    if verdict.grade is Grade.USABLE and verdict.advisory:
        return _source(verdict.advisory), "advisory"
    follows = _FOLLOWS.get(verdict.grade)
    return None if follows is None else (_source(verdict.reason), follows)


def _source(reason: str) -> str:
    return next((place for place in ("node", "job") if reason.startswith(f"{place} ")), "pod")


class VerdictIndex:
    """Keeps :attr:`verdicts` and :attr:`groups`. An update computes only what changes, and copies the rest."""

    def __init__(self) -> None:
        self._order: list[Key] = []
        self._verdicts: list[Verdict] = []
        self._marked: dict[Key, Verdict] = {}
        self.groups = NO_PODS

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, in order of the pods' keys; a new tuple at each access."""
        return tuple(self._verdicts)

    def update(self, news: Mapping[Key, Verdict | None]) -> None:
        """Replace the verdicts on some pods; None for pods that are gone."""
        changes = [(self._put(key, news[key]), news[key]) for key in sorted(news)]
        before = self.groups
        clear, uids = _replaced(before.clear, changes, clear_host)
        self.groups = VerdictGroups(
            clear=clear,
            marked=self._mark(changes, before.marked),
            departures=_replaced(before.departures, changes, departure_of)[0],
            warned=_recounted(before.warned, changes),
            keys=_replaced(before.keys, changes, lambda verdict: verdict.pod.key)[0],
            cleared=Delta(before.clear, uids) if uids else before.cleared,
        )

    def _put(self, key: Key, verdict: Verdict | None) -> Verdict | None:
        at = bisect_left(self._order, key)
        before = self._verdicts[at] if at < len(self._order) and self._order[at] == key else None
        if verdict is None and before is not None:
            del self._order[at], self._verdicts[at]
        elif verdict is not None and before is not None:
            self._verdicts[at] = verdict
        elif verdict is not None:
            self._order.insert(at, key)
            self._verdicts.insert(at, verdict)
        return before

    def _mark(self, changes: Iterable[_Change], marked: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        same = True
        for before, after in changes:
            if before is not None and is_marked(before):
                del self._marked[before.pod.key]
                same = False
            if after is not None and is_marked(after):
                self._marked[after.pod.key] = after
                same = False
        return marked if same else tuple(self._marked[key] for key in sorted(self._marked))


def _replaced(
    known: Mapping[str, T], changes: Iterable[_Change], entry: Callable[[Verdict], T | None]
) -> tuple[Mapping[str, T], frozenset[str]]:
    """Return ``known`` (by UID) with the entries of changed verdicts, and the UIDs of entries that have changed. It is
    the same object if none has.
    """
    gone: list[str] = []
    come: dict[str, T] = {}
    for before, after in changes:
        was = None if before is None else entry(before)
        now = None if after is None else entry(after)
        if was == now and (before is None or after is None or before.pod.uid == after.pod.uid):
            continue
        if before is not None and was is not None:
            gone.append(before.pod.uid)
        if after is not None and now is not None:
            come[after.pod.uid] = now
    if not gone and not come:
        return known, frozenset()
    left = copied(known)
    for uid in gone:
        left.pop(uid, None)
    left.update(come)
    return left, frozenset((*gone, *come))


def _recounted(warned: Mapping[tuple[str, str], int], changes: Iterable[_Change]) -> Mapping[tuple[str, str], int]:
    """Return ``warned`` with the warnings of changed verdicts; the same object if no warning has changed."""
    pairs = [tuple(None if each is None else warning_of(each) for each in change) for change in changes]
    if all(was == now for was, now in pairs):
        return warned
    counts = dict(warned)
    for was, now in pairs:
        if was is not None:
            counts[was] -= 1
        if now is not None:
            counts[now] = counts.get(now, 0) + 1
    return {warning: count for warning, count in counts.items() if count}
