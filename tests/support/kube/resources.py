"""The kinds of objects that the server has, as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class Key(NamedTuple):
    """Identifies an object of a kind. ``namespace``: empty if the kind has none."""

    namespace: str
    name: str


class ScalePaths(NamedTuple):
    """The fields of an object that its scale subresource shows. ``selector`` is a string or a label selector."""

    replicas: tuple[str, ...]
    observed: tuple[str, ...]
    selector: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind. ``status``: it has that subresource. ``custom``: it comes from a CRD; real servers treat such kinds
    differently in some ways. ``returned``: the answer to a deletion is the deleted object.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    scale: ScalePaths | None = None
    custom: bool = False
    returned: bool = False
    short: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Further subresources."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name in messages: ``pods``, ``statefulsets.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        own = (("status",) if self.status else ()) + (("scale",) if self.scale is not None else ())
        return own + self.extra

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL's path. ``namespace``: "" for all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if self.namespaced and namespace else []
        return "/" + "/".join([*parts, self.plural, *filter(None, (name, subresource))])


_BUILT_IN_SCALE: Final = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))
_WORKERS: Final = ("status", "replicaStatuses", "Worker")
_PYTORCH_SCALE: Final = ScalePaths(
    ("spec", "pytorchReplicaSpecs", "Worker", "replicas"), (*_WORKERS, "active"), (*_WORKERS, "selector")
)
_RBAC: Final = "rbac.authorization.k8s.io"

TABLE: Final = (
    Resource("", "v1", "pods", "Pod", status=True, returned=True, short=("po",), extra=("eviction", "exec", "log")),
    Resource("", "v1", "nodes", "Node", namespaced=False, status=True, short=("no",)),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, status=True, short=("ns",)),
    Resource("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "resourcequotas", "ResourceQuota", status=True),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True, short=("pvc",)),
    Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",)),
    Resource("", "v1", "services", "Service", status=True, returned=True, short=("svc",)),
    Resource("", "v1", "events", "Event", short=("ev",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", returned=True, short=("sa",), extra=("token",)),
    Resource("apps", "v1", "statefulsets", "StatefulSet", status=True, scale=_BUILT_IN_SCALE, short=("sts",)),
    Resource("apps", "v1", "deployments", "Deployment", status=True, scale=_BUILT_IN_SCALE, short=("deploy",)),
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short=("sc",)),
    # From a metrics server. Clients only read them, and tests put them.
    Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", status=True, short=("hpa",)),
    Resource("batch", "v1", "jobs", "Job", status=True),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource(_RBAC, "v1", "roles", "Role"),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    # One storage version each, as in a real cluster. v1 and v2beta1 of MPIJob come from two operators, and no cluster
    # has both. Here both may be used at the same time, as two independent kinds.
    Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", status=True, custom=True),
    Resource("kubeflow.org", "v1", "mpijobs", "MPIJob", status=True, custom=True),
    Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", status=True, custom=True, scale=_PYTORCH_SCALE),
    Resource("kai.alibabacloud.com", "v1alpha1", "trainingjobs", "TrainingJob", status=True, custom=True),
    Resource("kai.alibabacloud.com", "v1alpha1", "scaleouts", "ScaleOut", status=True, custom=True),
    Resource("kai.alibabacloud.com", "v1alpha1", "scaleins", "ScaleIn", status=True, custom=True),
)

BY_PATH: Final = {(each.group, each.version, each.plural): each for each in TABLE}
BY_NAME: Final = {each.plural: each for each in reversed(TABLE)}
"""By the plural alone. Of two versions, it has the first one in the table."""

BY_KIND: Final = {(each.api_version, each.kind): each for each in TABLE}

GROUP_VERSIONS: Final = tuple(dict.fromkeys((each.group, each.version) for each in TABLE))


def resource(name: str | Resource) -> Resource:
    """Return the kind of a plural, as ``pods``. If two versions have it, ``mpijobs.v1.kubeflow.org`` names one."""
    if isinstance(name, Resource):
        return name
    plural, _, rest = name.partition(".")
    if rest:
        version, _, group = rest.partition(".")
        return BY_PATH[group, version, plural]
    return BY_NAME[plural]


_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery(path: str, kinds: Iterable[Resource] = TABLE) -> dict[str, Any] | None:
    """Return the document that lists groups, versions or resources for clients; None for another path."""
    there = tuple(kinds)
    versions = dict.fromkeys((each.group, each.version) for each in there)
    groups = [group for group, _ in versions if group]
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            found = [_group(group, versions) for group in dict.fromkeys(groups)]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}
        case ["api", version]:
            return _resources("", version, there)
        case ["apis", group, version]:
            return _resources(group, version, there)
    return None


def _group(group: str, there: Iterable[tuple[str, str]]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for each, version in there if each == group]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, there: Iterable[Resource]) -> dict[str, Any] | None:
    if all((each.group, each.version) != (group, version) for each in there):
        return None
    listed: list[dict[str, Any]] = []
    for each in there:
        if (each.group, each.version) == (group, version):
            names = {"name": each.plural, "singularName": each.kind.lower(), "shortNames": list(each.short)}
            listed.append({**names, "namespaced": each.namespaced, "kind": each.kind, "verbs": _VERBS})
            listed += [_subresource(each, name) for name in each.subresources]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


_SUBRESOURCE_KINDS: Final = {
    "scale": ("autoscaling", "v1", "Scale", ["get", "patch", "update"]),
    "eviction": ("policy", "v1", "Eviction", ["create"]),
    "exec": ("", "", "PodExecOptions", ["create", "get"]),
    "log": ("", "", "Pod", ["get"]),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ["create"]),
}


def _subresource(of: Resource, name: str) -> dict[str, Any]:
    group, version, kind, verbs = _SUBRESOURCE_KINDS.get(name, ("", "", of.kind, ["get", "patch", "update"]))
    entry: dict[str, Any] = {"name": f"{of.plural}/{name}", "singularName": "", "namespaced": of.namespaced}
    if group:
        entry |= {"group": group, "version": version}
    return entry | {"kind": kind, "verbs": verbs}
