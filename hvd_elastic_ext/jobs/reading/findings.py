"""Whether a cluster can run a job: by its nodes, quotas, claims and images. Pure.

``preflight`` reads the objects, and each function here makes findings of one kind of them. What this account may not
read is ``unknown``, not a problem.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from hvd_elastic_ext.jobs.rendering.objects import Body
from hvd_elastic_ext.jobs.spec.job import GPU

Level = Literal["ok", "warning", "problem", "unknown"]

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(n|u|m|k|[MGTPE]|[KMGTPE]i|[eE]\d+|)", re.ASCII)
_UNITS: Final = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    **{unit: 1e3 ** (power + 2) for power, unit in enumerate("MGTPE")},
}
_BINARY: Final = {f"{unit}i": 1024.0 ** (power + 1) for power, unit in enumerate("KMGTPE")}
_HARD: Final = ("NoSchedule", "NoExecute")
_READY_TAINTS: Final = ("node.kubernetes.io/",)
"""Taints of nodes that are not ready or are full: Kubernetes removes them later."""


class Finding(NamedTuple):
    """The result of one check."""

    level: Level
    what: str
    """What was checked, in one word."""
    found: str
    remedy: str = ""
    """What to do; "" if nothing has to be done."""


def amount(quantity: object) -> float:
    """Return a Kubernetes quantity as a number; 0 for an invalid one."""
    match = _QUANTITY.fullmatch(str(quantity))
    if not match:
        return 0.0
    unit = match[2]
    return float(match[1]) * (10.0 ** int(unit[1:]) if unit[1:].isdecimal() else {**_UNITS, **_BINARY}[unit])


def quantity(value: float) -> str:
    """Format a number as a Kubernetes quantity, in the unit that gives the shortest text: 2Gi, 500m, 16G."""
    if value != int(value):
        return f"{math.ceil(value * 1000)}m"
    texts = [f"{value:.0f}"]
    for unit, size in {**_UNITS, **_BINARY}.items():
        if size > 1 and value >= size and value % size == 0:
            texts.append(f"{value / size:.0f}{unit}")
    return min(texts, key=len)


def requests_of(template: Body) -> dict[str, float]:
    """Return the requests of a pod; a limit where there is no request. Pure."""
    return _of_pod(template, lambda resources: {**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def limits_of(template: Body) -> dict[str, float]:
    """Return the limits of a pod. Pure."""
    return _of_pod(template, lambda resources: resources.get("limits") or {})


def _of_pod(template: Body, part: Callable[[Body], Mapping[str, Any]]) -> dict[str, float]:
    """Return the sums over all containers that run together, sidecars included, or what one earlier init container
    needs, if that is more."""
    spec = template["spec"]
    init = spec.get("initContainers") or []
    together = [*spec["containers"], *(each for each in init if each.get("restartPolicy") == "Always")]
    total: dict[str, float] = {}
    for container in together:
        for name, value in part(container.get("resources") or {}).items():
            total[name] = total.get(name, 0.0) + amount(value)
    for container in (each for each in init if each.get("restartPolicy") != "Always"):
        for name, value in part(container.get("resources") or {}).items():
            total[name] = max(total.get(name, 0.0), amount(value))
    return total


def of_nodes(nodes: Sequence[Body] | None, worker: Body, *, least: int) -> list[Finding]:
    """Whether nodes have room for ``least`` workers, by labels, taints and the size of nodes. The present use of nodes
    is not known."""
    if nodes is None:
        return [Finding("unknown", "nodes", "your account may not read them", "ask an administrator which ones fit")]
    wanted, selector = requests_of(worker), worker["spec"].get("nodeSelector") or {}
    labelled = [node for node in nodes if selector.items() <= _labels(node).items()]
    if not nodes:
        return [Finding("problem", "nodes", "there are none", "add nodes")]
    if not labelled:
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        return [Finding("problem", "nodes", f"none of {len(nodes)} has the labels {labels}", "change --selector")]
    large = [node for node in labelled if _room(node, wanted) > 0]
    if not large:
        asked = ", ".join(f"{name} {quantity(value)}" for name, value in wanted.items())
        return [Finding("problem", "nodes", f"none has room for a worker, even empty: {asked}", _smaller(wanted))]
    open_ = [node for node in large if not _hard_taints(node, worker)]
    taints = [_of_taints(large, worker)] if len(open_) < len(large) else []
    room = sum(_room(node, wanted) for node in open_)
    text = f"{len(open_)} of {len(nodes)} take a worker; {room} workers fit if they are empty"
    if room >= least:
        return [Finding("ok", "nodes", text), *taints]
    remedy = "tolerate the taints below" if taints else "lower --min-workers, or add nodes"
    return [Finding("problem", "nodes", f"{text}, and --min-workers is {least}", remedy), *taints]


def _smaller(wanted: Mapping[str, float]) -> str:
    return "lower --gpus, --cpu or --memory" if GPU in wanted else "lower --cpu or --memory"


def _of_taints(nodes: Sequence[Body], worker: Body) -> Finding:
    counts: dict[str, int] = {}
    for node in nodes:
        for taint in _hard_taints(node, worker):
            text = f"{taint['key']}{'=' * bool(taint.get('value'))}{taint.get('value') or ''}:{taint['effect']}"
            counts[text] = counts.get(text, 0) + 1
    named = ", ".join(f"{text} ({count} nodes)" for text, count in sorted(counts.items()))
    wanted = [text for text in sorted(counts) if not text.startswith(_READY_TAINTS)]
    remedy = " ".join(f"--toleration {text}" for text in wanted)
    return Finding("warning", "taints", f"nodes that fit are closed to the job: {named}", remedy)


def _hard_taints(node: Body, worker: Body) -> list[Body]:
    taints = [each for each in (node.get("spec") or {}).get("taints") or [] if each.get("effect") in _HARD]
    given = worker["spec"].get("tolerations") or []
    return [each for each in taints if not any(_tolerates(toleration, each) for toleration in given)]


def _tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _labels(node: Body) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get("labels") or {}
    return found


def _room(node: Body, wanted: Mapping[str, float]) -> int:
    """Return how many workers fit onto an empty node."""
    has = (node.get("status") or {}).get("allocatable") or {}
    fits = [int(amount(has.get(name)) // value) for name, value in {"pods": 1.0, **wanted}.items() if value]
    return min(fits)


def of_quotas(
    quotas: Sequence[Body], worker: Body, *, least: int, workers: int, launcher: Body | None = None
) -> list[Finding]:
    """Whether quotas of the namespace leave room for the launcher, if the kind has one, and for workers."""
    wanted, before = _counted(worker), {} if launcher is None else _counted(launcher)
    shortages = []
    for quota in quotas:
        status = quota.get("status") or {}
        for name, hard in (status.get("hard") or {}).items():
            left = amount(hard) - amount((status.get("used") or {}).get(name)) - before.get(name, 0.0)
            what = f"{quota['metadata']['name']}: {name} has room for"
            if left < 0 and before.get(name):
                shortages.append(Finding("problem", "quota", f"{what} no launcher", "lower the sizes, or ask for more"))
            elif wanted.get(name) and (fits := int(left // wanted[name])) < workers:
                text = f"{what} {max(fits, 0)} workers{' beside the launcher' * (launcher is not None)}"
                level: Level = "problem" if fits < least else "warning"
                shortages.append(Finding(level, "quota", text, "lower the sizes, or ask for more"))
    return shortages or [Finding("ok", "quota", f"{len(quotas)} of the namespace, with room for {workers} workers")]


def _counted(template: Body) -> dict[str, float]:
    """Return what quotas count of a pod, by their names for it."""
    counted = {"pods": 1.0}
    for name, value in requests_of(template).items():
        counted |= {f"requests.{name}": value, name: value}
    return counted | {f"limits.{name}": value for name, value in limits_of(template).items()}


# --- claims


DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
SHARED: Final = ("ReadWriteMany", "ReadOnlyMany")
DISKS: Final = (
    "ebs.csi.aws.com",
    "kubernetes.io/aws-ebs",
    "pd.csi.storage.gke.io",
    "kubernetes.io/gce-pd",
    "disk.csi.azure.com",
    "kubernetes.io/azure-disk",
    "diskplugin.csi.alibabacloud.com",
    "cinder.csi.openstack.org",
    "rbd.csi.ceph.com",
    "rancher.io/local-path",
    "kubernetes.io/no-provisioner",
)
"""Provisioners of disks, which one node mounts at a time: none of their volumes is ReadWriteMany."""


def of_claims(
    wanted: Iterable[str], claims: Mapping[str, Body], classes: Sequence[Body] | None, *, pods: int
) -> list[Finding]:
    """Whether the claims of ``--data`` exist, will be bound, and can be mounted by all pods. ``classes``: None without
    the right to read them."""
    return [_of_claim(name, claims.get(name), classes, pods=pods) for name in dict.fromkeys(wanted)]


def _of_claim(name: str, body: Body | None, classes: Sequence[Body] | None, *, pods: int) -> Finding:
    if body is None:
        return Finding(
            "problem", "claim", f"there is no {name}", f"make the PersistentVolumeClaim first{_shared_classes(classes)}"
        )
    modes = [str(each) for each in (body.get("spec") or {}).get("accessModes") or []]
    phase, text = (body.get("status") or {}).get("phase"), f"{name} is {', '.join(modes)}"
    if phase == "Lost":
        return Finding("problem", "claim", f"{name} has lost its volume", "make another claim")
    storage = _class_of(body, classes)
    if phase != "Bound" and classes is not None:
        problem = _not_bound(name, body, storage, classes, modes=modes)
        if problem is not None:
            return problem
    if pods > 1 and not {*SHARED} & {*modes}:
        remedy = f"take a storage class with ReadWriteMany{_shared_classes(classes)}"
        return Finding("warning", "claim", f"{text}: only pods of one node can mount it", remedy)
    if phase == "Pending" and storage is not None and storage.get("volumeBindingMode") == "WaitForFirstConsumer":
        return Finding("ok", "claim", f"{text}; it is bound where the first pod starts")
    if phase == "Pending":
        return Finding("warning", "claim", f"{text}, and is not bound yet", f"kubectl describe pvc {name} says why")
    return Finding("ok", "claim", text)


def _not_bound(
    name: str, body: Body, storage: Body | None, classes: Sequence[Body], *, modes: Sequence[str]
) -> Finding | None:
    """Return why a claim will never get a volume, if that is known."""
    named = (body.get("spec") or {}).get("storageClassName")
    if named == "" or (body.get("spec") or {}).get("volumeName"):
        return None  # an administrator's volume
    if storage is None and named:
        return Finding(
            "problem", "claim", f"{name} wants storage class {named}, which is not there{_shared_classes(classes)}"
        )
    if storage is None:
        text = f"{name} names no storage class, and the cluster has no default one"
        return Finding("problem", "claim", text, f"make the claim with a storageClassName{_shared_classes(classes)}")
    if "ReadWriteMany" in modes and storage.get("provisioner") in DISKS:
        maker = f"class {_class_name(storage)} ({storage['provisioner']})"
        text = f"{name} is ReadWriteMany, and {maker} makes disks of one node"
        return Finding(
            "problem", "claim", text, f"make the claim with a class of shared files{_shared_classes(classes)}"
        )
    return None


def _class_of(body: Body, classes: Sequence[Body] | None) -> Body | None:
    named = (body.get("spec") or {}).get("storageClassName")
    return next((each for each in classes or () if (_class_name(each) == named if named else is_default(each))), None)


def is_default(body: Body) -> bool:
    """Whether claims without a class get this one."""
    return ((body["metadata"].get("annotations")) or {}).get(DEFAULT_CLASS) == "true"


def _class_name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _shared_classes(classes: Sequence[Body] | None) -> str:
    """Return the storage classes of shared files, as far as known, for a remedy."""
    shared = [_class_name(each) for each in classes or () if each.get("provisioner") not in DISKS]
    if shared:
        return f"; classes that may have it: {', '.join(sorted(shared))}"
    return "; no class of the cluster is known to have shared files" if classes is not None else ""


# --- images


DOCKER: Final = "docker.io"
_SECRETS: Final[Mapping[str, str]] = {
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
    "kubernetes.io/dockercfg": ".dockercfg",
}
"""Types of Secrets with credentials for registries, and the key that holds them."""
_NOT_PULLED: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


def of_secrets(names: Sequence[str], secrets: Mapping[str, Body | None], images: Sequence[str]) -> list[Finding]:
    """Whether the pull secrets exist and have credentials for the images' registries. Findings do not show their
    content."""
    problems, opened = [], set()
    for name in names:
        body = secrets.get(name)
        if body is None:
            make = f"kubectl create secret docker-registry {name} --docker-server=…"
            problems.append(Finding("problem", "images", f"there is no pull secret {name}", make))
        elif body.get("type") not in _SECRETS:
            text = f"secret {name} is of type {body.get('type')}, with which pods cannot pull"
            problems.append(Finding("problem", "images", text, "make one with kubectl create secret docker-registry"))
        else:
            opened |= _registries(body)
    if names and not problems:
        for registry in dict.fromkeys(map(registry_of, images)):
            if registry not in opened:
                text = f"no pull secret has credentials for {registry}"
                problems.append(Finding("warning", "images", text, "ignore this if its images are public"))
    return problems


def _registries(secret: Body) -> set[str]:
    key = _SECRETS[secret["type"]]
    try:
        whole = json.loads(base64.b64decode((secret.get("data") or {}).get(key) or ""))
        entries = whole.get("auths", whole) if isinstance(whole, dict) else {}
    except (ValueError, AttributeError):
        return set()
    hosts = {str(each).partition("://")[2] or str(each) for each in entries}
    return {_host(each.partition("/")[0]) for each in hosts}


def registry_of(image: str) -> str:
    """The registry that an image's name means."""
    first, slash, _ = image.partition("/")
    return _host(first) if slash and ("." in first or ":" in first or first == "localhost") else DOCKER


def _host(host: str) -> str:
    return DOCKER if host in ("index.docker.io", "registry-1.docker.io") else host


def of_images(images: Sequence[str], pods: Sequence[Body], nodes: Sequence[Body] | None) -> list[Finding]:
    """Yield a finding for each image: pods that wait for it, nodes and pods that have it, or that nothing is known."""
    findings = [finding for image in images for finding in _of_image(image, pods, nodes or ())]
    return findings + [
        Finding("warning", "images", f"{image} may name another image tomorrow", "name a version or a digest")
        for image in images
        if _moves(image)
    ]


def _of_image(image: str, pods: Sequence[Body], nodes: Sequence[Body]) -> list[Finding]:
    waiting = [why for each in pods if (why := _waits_for(each, image))]
    if waiting:
        remedy = "correct the name, or name a pull secret: --image-pull-secret NAME"
        return [Finding("problem", "images", f"{image}: {waiting[0]}", remedy)]
    has = [node for node in nodes if any(image in (each.get("names") or ()) for each in _held(node))]
    if has:
        return [Finding("ok", "images", f"{image} is on {len(has)} of {len(nodes)} nodes")]
    runs = next((each["metadata"]["name"] for each in pods if _runs(each, image)), None)
    if runs is not None:
        return [Finding("ok", "images", f"{image} runs in pod {runs}")]
    text = f"whether {image} can be pulled shows when a pod starts: hvd-elastic get"
    return [Finding("unknown", "images", text)]


def _held(node: Body) -> Sequence[Body]:
    held: Sequence[Body] = (node.get("status") or {}).get("images") or ()
    return held


def _statuses(body: Body) -> Sequence[tuple[str, Body]]:
    """Yield the requested image and the status of each container of a pod."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    asked = {
        each["name"]: str(each.get("image"))
        for each in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    }
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return [(asked.get(str(each.get("name")), ""), each) for each in statuses]


def _waits_for(body: Body, image: str) -> str:
    """Return why a pod waits for this image; "" if it does not."""
    for asked, each in _statuses(body):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if asked == image and waiting.get("reason") in _NOT_PULLED:
            text = " ".join(str(waiting.get("message") or "").split())[:300]
            return f"pod {body['metadata']['name']} waits: {waiting['reason']}{': ' * bool(text)}{text}"
    return ""


def _runs(body: Body, image: str) -> bool:
    return any(asked == image and "running" in (each.get("state") or {}) for asked, each in _statuses(body))


def _moves(image: str) -> bool:
    """Whether the image behind a name may change: it has neither tag nor digest, or the tag ``latest``."""
    last = image.rpartition("/")[2]
    return "@" not in last and last.partition(":")[2] in ("", "latest")
