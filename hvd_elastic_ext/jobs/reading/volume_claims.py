"""Whether the pods of a job can mount their claims, by claims and storage classes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hvd_elastic_ext.jobs.reading.findings import Finding
from hvd_elastic_ext.jobs.rendering.objects import Body

DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"
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
        return Finding("problem", "claim", f"there is no {name}", f"make the PersistentVolumeClaim first{_of(classes)}")
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
        remedy = f"take a storage class with ReadWriteMany{_of(classes)}"
        return Finding("warning", "claim", f"{text}: pods of one node only can have it", remedy)
    if phase == "Pending" and storage is not None and storage.get("volumeBindingMode") == "WaitForFirstConsumer":
        return Finding("ok", "claim", f"{text}; it is bound where the first pod comes")
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
        return Finding("problem", "claim", f"{name} wants storage class {named}, which is not there{_of(classes)}")
    if storage is None:
        text = f"{name} names no storage class, and the cluster has no default one"
        return Finding("problem", "claim", text, f"make the claim with a storageClassName{_of(classes)}")
    if "ReadWriteMany" in modes and storage.get("provisioner") in DISKS:
        text = f"{name} is ReadWriteMany, and class {_name(storage)} ({storage['provisioner']}) makes disks of one node"
        return Finding("problem", "claim", text, f"make the claim with a class of shared files{_of(classes)}")
    return None


def _class_of(body: Body, classes: Sequence[Body] | None) -> Body | None:
    named = (body.get("spec") or {}).get("storageClassName")
    return next((each for each in classes or () if (_name(each) == named if named else is_default(each))), None)


def is_default(body: Body) -> bool:
    """Whether claims without a class get this one."""
    return ((body["metadata"].get("annotations")) or {}).get(DEFAULT) == "true"


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _of(classes: Sequence[Body] | None) -> str:
    """Return the storage classes of shared files, as far as known, for a remedy."""
    shared = [_name(each) for each in classes or () if each.get("provisioner") not in DISKS]
    if shared:
        return f"; classes that may have it: {', '.join(sorted(shared))}"
    return "; the cluster has no class of shared files that is known here" if classes is not None else ""
