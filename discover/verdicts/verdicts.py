"""Makes the verdict on one pod: whether it is a host now, and if not, why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Final

from discover.pods.operators import PRICE_ANNOTATION, HostRules, JobView, host_name, life_of, slots_of
from discover.selection.objects import Container, PodView
from discover.verdicts.signals import Evidence, Finding, SignalClass
from hvd_elastic_ext.core.hosts import Host


class Grade(Enum):
    """USABLE: a host. LEAVING: it has a notice, and is removed at once. ABSENT: its node sends no reports, which also
    happens in an outage of the control plane. GONE: it has ended after a notice or because of it. UNFIT: no host.
    """

    USABLE = "usable"
    LEAVING = "leaving"
    ABSENT = "absent"
    GONE = "gone"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``host``: always set for USABLE; for LEAVING, ABSENT and GONE if it is known; else None. ``deadline`` is in Unix
    seconds. ``advisory``: a warning with which this host may stay but may not be added; "" without one.
    """

    pod: PodView
    grade: Grade
    reason: str
    host: Host | None = None
    deadline: float | None = None
    advisory: str = ""


@dataclass(frozen=True, slots=True)
class ActiveSignal:
    """A finding, and when it was first seen (Unix seconds). ``subject``: ``pod``, ``node NAME`` or ``job``."""

    finding: Finding
    first_seen: float
    subject: str

    def deadline(self, grace: float) -> float | None:
        """Return when the object will be gone, in Unix seconds; None if unknown. ``grace``: the pod's, in seconds."""
        return self.finding.deadline(first_seen=self.first_seen, grace=grace)

    def __str__(self) -> str:
        signal, detail = self.finding.signal, self.finding.detail
        # Reasons of conditions and values of the job's annotations help people. Values of taints and labels do not.
        telling = detail and (signal.kind == "condition" or signal.object == "job")
        return f"{self.subject} {signal.says}" + (f" ({detail})" if telling else "")

    @property
    def note(self) -> str:
        """The text to show beside a usable host."""
        return str(self) if self.finding.signal.object == "job" else self.finding.signal.says


_FOLLOWS: Final = {Grade.LEAVING: "imminent", Grade.ABSENT: "absent"}


def warnings_of(verdicts: Iterable[Verdict]) -> Mapping[tuple[str, str], int]:
    """Return how many pods are under each warning, by its ``(source, class)``.

    Sources: ``pod``, ``node``, ``job``. Classes: ``imminent`` (the pod goes), ``advisory`` (a published one stays, but
    a new one is not added), ``absent`` (the pod is silent).
    """
    counts: Counter[tuple[str, str]] = Counter()
    for each in verdicts:
        if each.grade is Grade.USABLE and each.advisory:
            counts[_source(each.advisory), "advisory"] += 1
        elif each.grade in _FOLLOWS:
            counts[_source(each.reason), _FOLLOWS[each.grade]] += 1
    return counts


def _source(reason: str) -> str:
    return next((place for place in ("node", "job") if reason.startswith(f"{place} ")), "pod")


def verdict_of(pod: PodView, signs: tuple[ActiveSignal, ...], rules: HostRules, job: JobView | None = None) -> Verdict:
    """Judge a pod. ``signs``: the signals of the pod, its node and its job."""
    early = _no_host(pod, signs, rules, job)
    if early and not _ended_by_notice(pod, signs, job):
        return Verdict(pod, Grade.UNFIT, early)
    host, note, problem = _host(pod, rules, job)
    if early:  # name the host, so that the launcher does not blame the pod or its node for the end
        return Verdict(pod, Grade.GONE, early, host)
    serious = [sign for sign in signs if sign.finding.signal.category in (SignalClass.GONE, SignalClass.IMMINENT)]
    notices = [sign for sign in serious if sign.finding.signal.evidence is Evidence.NOTICE]
    if notices:
        deadlines = [moment for sign in notices if (moment := sign.deadline(pod.grace)) is not None]
        return Verdict(pod, Grade.LEAVING, _joined(notices), host, min(deadlines, default=None))
    if serious or pod.phase == "Unknown":
        return Verdict(pod, Grade.ABSENT, _joined(serious) or "pod sends no status (phase Unknown)", host)
    grade, reason = _readiness(pod)
    if grade is not Grade.USABLE:
        return Verdict(pod, grade, reason, host if grade is Grade.ABSENT else None)
    if host is None:
        return Verdict(pod, Grade.UNFIT, problem)
    notes = [sign.note for sign in signs if sign.finding.signal.category is SignalClass.NOTE]
    advisory = _joined([sign for sign in signs if sign.finding.signal.category is SignalClass.ADVISORY], when=True)
    reason = "; ".join(dict.fromkeys(filter(None, ["ready", *notes, note])))
    return Verdict(pod, Grade.USABLE, reason, host, advisory=advisory)


def _ended_by_notice(pod: PodView, signs: tuple[ActiveSignal, ...], job: JobView | None) -> bool:
    signals = [sign.finding.signal for sign in signs]
    gone = any(signal.category is SignalClass.GONE and signal.evidence is Evidence.NOTICE for signal in signals)
    return gone and pod.phase == "Failed" and not _is_of_another_job(pod, job)


def _is_of_another_job(pod: PodView, job: JobView | None) -> bool:
    return job is not None and bool(job.uid) and pod.owner != job.uid


def _no_host(pod: PodView, signs: tuple[ActiveSignal, ...], rules: HostRules, job: JobView | None) -> str:
    """Return why a pod is not a host, independent of its signals; "" if it runs by its last report."""
    if _is_of_another_job(pod, job):
        return "pod is not this job's: another object controls it, or none does"
    if pod.phase == "Failed":
        gone = [sign for sign in signs if sign.finding.signal.category is SignalClass.GONE]
        what = _joined(gone) or f"pod has failed{_ending(pod.reason, pod.containers)}"
        return "; ".join(filter(None, [what, rules.operator.advice]))
    if pod.phase == "Succeeded":
        return "pod has ended, with exit code 0"
    if not pod.node:
        scheduled = pod.condition("PodScheduled")
        detail = scheduled.message if scheduled is not None and scheduled.status == "False" else ""
        return _with("pod waits for a node", detail)
    if pod.phase not in ("Running", "Unknown"):
        return "pod is being started"
    return ""


def _ending(reason: str, containers: tuple[Container, ...]) -> str:
    codes = [f"{each.name}: exit code {each.finished}" for each in containers if each.finished]
    detail = ", ".join(filter(None, [reason, *codes]))
    return f" ({detail})" if detail else ""


def _readiness(pod: PodView) -> tuple[Grade, str]:
    ready = pod.condition("Ready")
    if ready is None:
        return Grade.UNFIT, "pod is not ready yet"
    if ready.status == "True":
        return Grade.USABLE, ""
    containers = pod.condition("ContainersReady")
    # A kubelet gives a reason when it sets Ready to False. If the kubelet sends no reports, the node controller sets
    # Ready to False without a reason, and does not change ContainersReady. It may mark the node later.
    if ready.status == "Unknown" or (not ready.reason and containers is not None and containers.status == "True"):
        return Grade.ABSENT, f"node {pod.node} sends no status"
    return Grade.UNFIT, _with("pod is not ready", ready.message or ready.reason)


def _host(pod: PodView, rules: HostRules, job: JobView | None) -> tuple[Host | None, str, str]:
    """Return ``(host, note on its slots, why there is no host)``."""
    try:
        slots, note = slots_of(pod, rules, job)
        price = pod.annotations.get(PRICE_ANNOTATION, "")
        return Host(host_name(pod, rules), slots, pod.uid, pod.node, life_of(pod, rules), price), note, ""
    except ValueError as problem:
        return None, "", str(problem)


def _joined(signs: Iterable[ActiveSignal], *, when: bool = False) -> str:
    """Return all signals in one line: each text once, with its detail if one of the signals has it. ``when``: with
    their deadlines.
    """
    texts = []
    for sign in signs:
        moment = sign.deadline(0.0) if when else None
        texts.append(str(sign) if moment is None else f"{sign}, {_time(moment)}")
    return "; ".join(text for text in dict.fromkeys(texts) if not any(more.startswith(f"{text} (") for more in texts))


_READABLE: Final = 200
"""Most characters that are kept of a message of Kubernetes."""


def _with(what: str, detail: str) -> str:
    detail = " ".join(detail.split())
    return f"{what}: {detail if len(detail) <= _READABLE else detail[: _READABLE - 1] + '…'}" if detail else what


def _time(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a label of a node may have any number
        return f"{moment:.0f} s after 1970"
