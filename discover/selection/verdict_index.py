"""The verdicts on all pods, in order and in groups, updated by what changed. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from discover.selection.objects import Key
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host

T = TypeVar("T")

_Change = tuple[Verdict | None, Verdict | None]
"""The verdict on a pod before and now; None without such a pod."""


@dataclass(frozen=True, slots=True)
class VerdictGroups:
    """The verdicts by what is to be done about them. Groups without changes are the same objects as before.

    ``clear``: hosts with nothing against them, by UID. ``marked``: verdicts to be looked at one by one, in order of the
    pods' keys: leaving, absent, gone, and usable ones under an advisory. ``keys``: all pods, by UID.
    """

    clear: Mapping[str, Host]
    marked: tuple[Verdict, ...]
    keys: Mapping[str, Key]

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> VerdictGroups:
        """Group ``verdicts``, which are in order of the pods' keys."""
        verdicts = tuple(verdicts)
        return cls(
            clear={verdict.pod.uid: host for verdict in verdicts if (host := clear_host(verdict)) is not None},
            marked=tuple(filter(is_marked, verdicts)),
            keys={verdict.pod.uid: verdict.pod.key for verdict in verdicts},
        )


NO_PODS: Final = VerdictGroups({}, (), {})


def clear_host(verdict: Verdict) -> Host | None:
    """Return the host of a usable pod without an advisory; None for any other pod."""
    return verdict.host if verdict.grade is Grade.USABLE and not verdict.advisory else None


def is_marked(verdict: Verdict) -> bool:
    """Whether the verdict is to be looked at by itself: leaving, absent, gone, or usable under an advisory."""
    grade = verdict.grade
    return grade in (Grade.LEAVING, Grade.ABSENT, Grade.GONE) or (grade is Grade.USABLE and bool(verdict.advisory))


class VerdictIndex:
    """Keeps :attr:`verdicts` and :attr:`groups`; an update costs what it changes."""

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
        """Take in the verdicts on some pods: None if they are gone."""
        changes = [(self._put(key, news[key]), news[key]) for key in sorted(news)]
        before = self.groups
        self.groups = VerdictGroups(
            clear=_replaced(before.clear, changes, clear_host),
            marked=self._mark(changes, before.marked),
            keys=_replaced(before.keys, changes, lambda verdict: verdict.pod.key),
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
) -> Mapping[str, T]:
    """``known``, by UID, with the entries of changed verdicts; the same object if none changed."""
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
        return known
    left = dict(known)
    for uid in gone:
        left.pop(uid, None)
    left.update(come)
    return left
