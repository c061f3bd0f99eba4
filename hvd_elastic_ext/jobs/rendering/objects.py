"""Finds parts of the objects of a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Body = dict[str, Any]

EXAMPLE: Final = "digits"
"""The name of the job in every template."""
LAUNCHER, WORKER = "launcher", "worker"
JOB_LABEL: Final = "hvd-elastic-job"
ROLE_LABEL: Final = "hvd-elastic-role"
ACCOUNT: Final = f"hvd-launcher-{EXAMPLE}"

_EXPANDED: Final = re.compile(r"\$(?=[$(])")
_EXAMPLE: Final = re.compile(rf"(?<![a-z0-9]){EXAMPLE}(?![a-z0-9])")


def of_kind(objects: Sequence[Body], *kinds: str) -> Body:
    """Return the object of one of these kinds. Raises ``LookupError`` if there is none."""
    return next(each for each in objects if each["kind"] in kinds)


def templates(body: Body) -> Iterator[tuple[str, Body]]:
    """Return the pod templates of an object, with the role of each."""
    spec = body.get("spec") or {}
    match body["kind"]:
        case "MPIJob" | "PyTorchJob":
            for role, replica in spec[specs_of(body)].items():
                yield role.lower(), replica["template"]
        case "TrainingJob":
            for role, replica in spec[specs_of(body)].items():
                yield role, replica["template"]
        case "StatefulSet":
            yield WORKER, spec["template"]
        case "Job":
            yield LAUNCHER, spec["template"]


def specs_of(body: Body) -> str:
    """Return the field with the replicas of each role."""
    return {"MPIJob": "mpiReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs", "TrainingJob": "etReplicaSpecs"}[
        body["kind"]
    ]


def main_container(template: Body) -> Body:
    """Return the container that trains, or that runs the launcher."""
    found: Body = template["spec"]["containers"][0]
    return found


def daemon(template: Body) -> Body | None:
    """Return the container of the discovery daemon, if the pod has one."""
    spec = template["spec"]
    both = [*spec.get("initContainers", []), *spec["containers"]]
    return next((each for each in both if each["name"] == "discover"), None)


def renamed(value: Any, name: str) -> Any:
    """Return a copy with the example's name replaced by the job's."""
    if isinstance(value, str):
        return _EXAMPLE.sub(name, value)
    if isinstance(value, Mapping):
        return {key: renamed(each, name) for key, each in value.items()}
    return [renamed(each, name) for each in value] if isinstance(value, list) else value


def literal(text: str) -> str:
    """Escape a word or value of a container: Kubernetes expands ``$(NAME)``, and turns ``$$`` into ``$``."""
    return _EXPANDED.sub("$$", text)


def merged(into: Body, key: str, more: Mapping[str, Any]) -> None:
    """Add entries to the map ``key``, if there are any."""
    if more:
        into[key] = {**(into.get(key) or {}), **more}
