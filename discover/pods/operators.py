"""Which pods an operator makes for a job, and how they get host names and slots. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from discover.pods.views import NOTHING, Container, PodView
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, name_error
from hvd_elastic_ext.core.workload_kinds import ET_JOB_LABEL, KINDS, WORKER, WorkloadKind, at

SLOTS_ANNOTATION: Final = "hvd-elastic-ext/slots"
"""The annotation with a pod's own number of slots. It has priority over all other sources."""

PRICE_ANNOTATION: Final = "hvd-elastic-ext/price"
"""The annotation with the price of a pod for an hour, for the launcher's ``--autoscale cost``."""

CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
"""The annotation with the name of the pod's main container, in which agents run."""

GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose limits count as slots, in order of priority. The limits that match a pattern are added up
(``nvidia.com/mig-*``).
"""

CUSTOM: Final = WorkloadKind(group="", version="", plural="", kind="", operator="custom")
"""Any pods: the user says which, and there is no object above them."""

OPERATORS: Final[Mapping[str, WorkloadKind]] = {each.operator: each for each in (*KINDS, CUSTOM) if each.operator}
"""What makes a job's pods, by the value of ``--operator``."""


@dataclass(frozen=True, slots=True)
class JobView:
    """The fields that are kept of the object above the pods."""

    uid: str = ""
    slots_per_worker: int | None = None
    selector: str = ""
    """Its own, if it selects its pods, else ""."""
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    finished: bool = False
    """The job has succeeded, or has failed for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """How pods become hosts.

    Raises :class:`UsageError`.
    """

    operator: WorkloadKind
    slots: int | None = None
    """The slots of pods without the annotation."""
    host_name: str = ""
    """A template with :data:`PLACEHOLDERS`."""
    domain: str = ""
    """The cluster's domain, put after ``.svc``; "" leaves it to the resolver."""
    container: str = ""
    """The container whose limits and restarts count; "" is the first one (for restarts see :func:`life_of`)."""
    resources: tuple[str, ...] = GPUS
    """See :data:`GPUS`."""

    def __post_init__(self) -> None:
        check_slots(self.slots)
        if self.host_name:
            _check_template(self.host_name)
        if self.domain and (problem := name_error(self.domain)):
            raise UsageError(f"--cluster-domain {self.domain}: {problem}")
        for pattern in self.resources:
            if not _RESOURCE.fullmatch(pattern):
                raise UsageError(f"--gpu-resource {pattern!r} is not a resource; write one such as nvidia.com/mig-*")


PLACEHOLDERS: Final = ("name", "namespace", "hostname", "subdomain", "ip", "node")
"""The words that a template of host names may have in braces."""

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
OBJECT_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_RESOURCE: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9.*_/-]*", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)


def operator_named(name: str) -> WorkloadKind:
    """Return the operator ``name``. For an unknown name, raises :class:`UsageError` with the most similar one."""
    if name not in OPERATORS:
        near = difflib.get_close_matches(name, OPERATORS, n=1, cutoff=0.0)[0]
        raise UsageError(f"--operator {name!r} is not one of {', '.join(OPERATORS)}; did you mean {near!r}?")
    return OPERATORS[name]


def check_slots(slots: int | None) -> None:
    """Raises :class:`UsageError` if ``slots`` is not a number of slots. None is accepted: the option is not given."""
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"--slots {slots}: write a number from 1 to {MAX_SLOTS}")


def check_job(name: str) -> None:
    """Raises :class:`UsageError` for what is not the name of an object: it would be unsafe in a path or selector."""
    if not OBJECT_NAME.fullmatch(name):
        raise UsageError(
            f"--job {name!r} is not the name of a Kubernetes object: small letters, digits, '-' and '.' only"
        )


def selector_of(operator: WorkloadKind, *, job: str, own: str = "", view: JobView | None = None) -> str:
    """Return the label selector of a job's workers. ``own``: the user's selector, which has priority. ``view``: the
    job, if it was read.

    Raises :class:`UsageError` if the selector is not known, or if ``job`` is not a valid name.
    """
    if own:
        return own
    if not operator.labels and view is not None and view.selector:
        return view.selector
    if not operator.labels:
        what = f"the {operator.kind} cannot be read: " if operator.selects_pods else ""
        raise UsageError(f"{what}which pods belong to the job is not known; give --selector LABEL=VALUE[,…]")
    if not job:
        raise UsageError(f"--operator {operator.operator} needs the job's name; give --job NAME")
    check_job(job)
    if len(job) > 63:
        raise UsageError(f"--job {job!r} has {len(job)} characters; labels of its pods have at most 63")
    return operator.selector(job, role=WORKER)


def job_view(raw: object, operator: WorkloadKind) -> JobView:
    """Return the fields that are kept of the object above the pods. Raises ``ValueError``, in one line, if ``raw`` is
    no such object.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("metadata"), dict):
        raise ValueError(f"this is not an object of {operator.operator}: it has no metadata")
    metadata = raw["metadata"]
    value = at(raw, *operator.slots_at) if operator.slots_at else None
    return JobView(
        uid=metadata["uid"] if isinstance(metadata.get("uid"), str) else "",
        slots_per_worker=value if isinstance(value, int) and not isinstance(value, bool) else None,
        selector=_match_labels(raw) if operator.selects_pods else "",
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        finished=_finished(raw.get("status")),
    )


def host_name(pod: PodView, rules: HostRules) -> str:
    """Return the name by which the launcher reaches a pod. Raises ``ValueError``, in one line with the remedy, if there
    is not a valid one.
    """
    name = _host_name(pod, rules)
    problem = name_error(name) if name else "the pod has no name that others can reach it by, and no address yet"
    if problem is not None:
        raise ValueError(f"{problem}; give the pods a headless Service (spec.subdomain) or use --host-name TEMPLATE")
    return name


def slots_of(pod: PodView, rules: HostRules, job: JobView | None = None) -> tuple[int, str]:
    """Return how many processes a pod runs, and a note for people about that number, or "".

    The number is the first one that is given of: the pod's annotation, ``--slots``, ``slotsPerWorker``, the pod's GPUs,
    1. But GPUs have priority over a ``slotsPerWorker`` that is only the operator's default. Raises ``ValueError``, in
    one line with the remedy, if that is not a valid number.
    """
    annotation = pod.annotations.get(SLOTS_ANNOTATION)
    if annotation is not None:
        return _checked(annotation.strip(), f"annotation {SLOTS_ANNOTATION}"), ""
    if rules.slots is not None:
        return rules.slots, ""
    name, gpus = _gpus(_main(pod, rules), rules)
    per_worker = None if job is None else job.slots_per_worker
    if per_worker is not None:
        count = _checked(str(per_worker), "slotsPerWorker")
        if count == rules.operator.default_slots and gpus > count:
            note = f"slotsPerWorker is {count}, the default; its {name} count"
            return _checked(str(gpus), name), note
        return count, ""
    return (_checked(str(gpus), name) if gpus else 1), ""


def life_of(pod: PodView, rules: HostRules) -> str:
    """Return what identifies the present run of the main container; "" if unknown.

    The main container is ``--container``, else the one that the pod's annotation names, else the first.
    """
    named = rules.container or pod.annotations.get(CONTAINER_ANNOTATION)
    known = {each.name: each.life for each in pod.containers}
    return known.get(named, "") if named else next(iter(known.values()), "")


def _host_name(pod: PodView, rules: HostRules) -> str:
    if rules.host_name:
        return _filled(pod, rules.host_name)
    if pod.subdomain:
        domain = f".{rules.domain}" if rules.domain else ""
        return f"{pod.hostname or pod.key.name}.{pod.subdomain}.{pod.key.namespace}.svc{domain}"
    return pod.key.name if rules.operator.bare_names or ET_JOB_LABEL in pod.labels else pod.ip


def _filled(pod: PodView, template: str) -> str:
    values = {
        "name": pod.key.name,
        "namespace": pod.key.namespace,
        "hostname": pod.hostname or pod.key.name,
        "subdomain": pod.subdomain,
        "ip": pod.ip,
        "node": pod.node,
    }
    missing = next((place for place in _PLACEHOLDER.findall(template) if not values[place]), None)
    if missing is not None:
        raise ValueError(f"--host-name asks for {{{missing}}}, which this pod has not")
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _check_template(template: str) -> None:
    places = _PLACEHOLDER.findall(template)
    for place in places:
        if place not in PLACEHOLDERS:
            near = difflib.get_close_matches(place, PLACEHOLDERS, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"--host-name {template!r}: {{{place}}} is not one of {', '.join(PLACEHOLDERS)}; did you mean {near!r}?"
            )
    if not {"name", "hostname", "ip", "node"} & set(places):
        raise UsageError(f"--host-name {template!r} gives every pod one name; put {{name}} into it")
    example = _PLACEHOLDER.sub("x", template)
    if (problem := name_error(example)) is not None:
        raise UsageError(f"--host-name {template!r} makes names like {example!r}: {problem}")


def _main(pod: PodView, rules: HostRules) -> Container | None:
    if not rules.container:
        return pod.containers[0] if pod.containers else None
    found = next((each for each in pod.containers if each.name == rules.container), None)
    if found is None:
        names = ", ".join(each.name for each in pod.containers) or "none"
        raise ValueError(f"the pod has no container {rules.container!r} (--container); it has {names}")
    return found


def _gpus(container: Container | None, rules: HostRules) -> tuple[str, int]:
    limits = NOTHING if container is None else container.limits
    for pattern in rules.resources:
        count = sum(_whole(amount, name) for name, amount in limits.items() if fnmatchcase(name, pattern))
        if count:
            return pattern, count
    return "", 0


def _whole(amount: str, name: str) -> int:
    if not _COUNT.fullmatch(amount):
        raise ValueError(f"its limit of {name} is {amount!r:.40}, which is not a whole number; give --slots N")
    return int(amount)


def _checked(text: str, what: str) -> int:
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= MAX_SLOTS:
        raise ValueError(f"{what} is {text!r:.40}; write a whole number from 1 to {MAX_SLOTS}")
    return int(text)


def _match_labels(raw: Mapping[str, Any]) -> str:
    """Return ``spec.selector`` as a label selector; "" if there is none, or if it cannot be written as one."""
    spec = raw.get("spec")
    selector = spec.get("selector") if isinstance(spec, dict) else None
    if not isinstance(selector, dict):
        return ""
    terms = [f"{key}={value}" for key, value in _texts(selector.get("matchLabels")).items()]
    for each in selector.get("matchExpressions") or []:
        if not isinstance(each, dict):
            return ""
        key, operator = str(each.get("key")), each.get("operator")
        values = ",".join(str(value) for value in each.get("values") or [])
        written = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        if operator not in written:
            return ""
        terms.append(written[operator])
    return ",".join(terms)


def _finished(status: object) -> bool:
    """Whether a job has ended. ``Failed`` alone is not enough: MPI Operator also sets it on a job that continues after
    a worker was evicted. Only a job that has ended gets a completion time.
    """
    if not isinstance(status, dict) or not status.get("completionTime"):
        return False
    conditions = status.get("conditions")
    return isinstance(conditions, list) and any(
        isinstance(each, dict) and each.get("type") in ("Succeeded", "Failed") and each.get("status") == "True"
        for each in conditions
    )


def _texts(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return NOTHING
    return {key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)}
