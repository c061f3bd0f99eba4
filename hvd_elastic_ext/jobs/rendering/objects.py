"""Finds parts of the objects of a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core import workload_kinds

Body = dict[str, Any]

EXAMPLE: Final = "digits"
"""The name of the job in every template."""
JOB_LABEL: Final = "hvd-elastic-job"
ROLE_LABEL: Final = "hvd-elastic-role"
LAUNCHER, WORKER = workload_kinds.LAUNCHER, workload_kinds.WORKER
"""Its values."""
ACCOUNT: Final = f"hvd-launcher-{EXAMPLE}"

_MAKERS: Final = {kind.kind: kind for kind in (*workload_kinds.ROOTS.values(), *workload_kinds.BESIDE)}
"""The kinds in a submitted job that make pods."""
_EXPANDED: Final = re.compile(r"\$(?=[$(])")
_EXAMPLE: Final = re.compile(rf"(?<![a-z0-9]){EXAMPLE}(?![a-z0-9])")


def of_kind(objects: Sequence[Body], *kinds: str) -> Body:
    """Return the object of one of these kinds. Raises ``LookupError`` if there is none."""
    return next(each for each in objects if each["kind"] in kinds)


def templates(body: Body) -> Iterator[tuple[str, Body]]:
    """Return the pod templates of an object, with the role of each."""
    kind = _MAKERS.get(body["kind"])
    if kind is None:
        return
    if not kind.roles_at:
        yield kind.only_role, body["spec"]["template"]
        return
    for role, replica in body["spec"][kind.roles_at].items():
        yield role.lower(), replica["template"]


def replicas_of(body: Body) -> Body:
    """Return the part of an object with number and template of its workers."""
    found: Body = workload_kinds.at(body, *_MAKERS[body["kind"]].replicas_at[:-1])
    return found


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
