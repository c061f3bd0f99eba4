"""Explains every pod, its verdict and the reason, for people and programs. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from discover.selection.selection import Selection
from discover.verdicts.damping import DampingResult
from discover.verdicts.verdicts import Grade, Verdict


@dataclass(frozen=True, slots=True)
class Row:
    """One pod. ``verdict``: see :func:`verdict_word`. ``published``: as a usable host. ``deadline`` is in Unix
    seconds.
    """

    pod: str
    verdict: str
    reason: str
    published: bool
    host: str = ""
    slots: int | None = None
    node: str = ""
    uid: str = ""
    deadline: float | None = None
    advisory: str = ""


def explain(selection: Selection, damping: DampingResult) -> tuple[Row, ...]:
    """Return a row for each pod, in order of the pods' keys."""
    published = damping.state.published
    return tuple(
        _row(verdict, note=damping.notes.get(verdict.pod.key, ""), published=verdict.pod.uid in published)
        for verdict in selection.verdicts
    )


def verdict_word(verdict: Verdict, *, published: bool) -> str:
    """Return the word for a verdict.

    ``usable``: published. ``waiting``: usable, but not published yet. ``warned``: usable, but not added because of an
    advisory. ``leaving``: it has a notice. ``silent``: its node sends no reports. ``held``: silent, but still
    published. ``gone``: it has ended after a notice or because of it. ``unfit``: no host.
    """
    if verdict.grade is Grade.USABLE:
        return "usable" if published else "warned" if verdict.advisory else "waiting"
    if verdict.grade is Grade.ABSENT:
        return "held" if published else "silent"
    return str(verdict.grade.value)


def _row(verdict: Verdict, *, note: str, published: bool) -> Row:
    host, pod = verdict.host, verdict.pod
    beside = verdict.advisory if published else ""  # else the note has it
    return Row(
        pod=str(pod.key),
        verdict=verdict_word(verdict, published=published),
        reason="; ".join(filter(None, [verdict.reason, beside, note])),
        published=published,
        host="" if host is None else host.name,
        slots=None if host is None else host.slots,
        node=pod.node,
        uid=pod.uid,
        deadline=verdict.deadline,
        advisory=verdict.advisory,
    )


def as_json(row: Row) -> dict[str, Any]:
    """Return a row as a JSON object, without empty and unknown values."""
    return {key: value for key, value in asdict(row).items() if value not in ("", None)}
