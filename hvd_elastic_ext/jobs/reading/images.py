"""Whether the images of a job can be pulled, as far as that is known before a pod starts. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Final

from hvd_elastic_ext.jobs.reading.findings import Finding
from hvd_elastic_ext.jobs.rendering.objects import Body

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
    found, opened = [], set()
    for name in names:
        body = secrets.get(name)
        if body is None:
            make = f"kubectl create secret docker-registry {name} --docker-server=… (it asks for no image)"
            found.append(Finding("problem", "images", f"there is no pull secret {name}", make))
        elif body.get("type") not in _SECRETS:
            text = f"secret {name} is of type {body.get('type')}: pods do not pull with it"
            found.append(Finding("problem", "images", text, "make one with kubectl create secret docker-registry"))
        else:
            opened |= _registries(body)
    if names and not found:
        for registry in dict.fromkeys(map(registry_of, images)):
            if registry not in opened:
                text = f"no pull secret has credentials for {registry}"
                found.append(Finding("warning", "images", text, "leave it so if its images are public"))
    return found


def _registries(secret: Body) -> set[str]:
    key = _SECRETS[secret["type"]]
    try:
        whole = json.loads(base64.b64decode((secret.get("data") or {}).get(key) or ""))
        entries = whole.get("auths", whole) if isinstance(whole, dict) else {}
    except (ValueError, AttributeError):
        return set()
    hosts = {str(each).partition("://")[2] or str(each) for each in entries}
    return {_plain(each.partition("/")[0]) for each in hosts}


def registry_of(image: str) -> str:
    """The registry that an image's name means."""
    first, slash, _ = image.partition("/")
    return _plain(first) if slash and ("." in first or ":" in first or first == "localhost") else DOCKER


def _plain(host: str) -> str:
    return DOCKER if host in ("index.docker.io", "registry-1.docker.io") else host


def of_images(images: Sequence[str], pods: Sequence[Body], nodes: Sequence[Body] | None) -> list[Finding]:
    """Yield a finding for each image: pods that wait for it, nodes and pods that have it, or that nothing is known."""
    found = [finding for image in images for finding in _of_image(image, pods, nodes or ())]
    return found + [
        Finding("warning", "images", f"{image} may be another image tomorrow", "name a version or a digest")
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
