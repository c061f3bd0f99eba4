"""How commands run in pods: requests to the API server's exec, and what its answers mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from hvd_elastic_ext.io.kube.errors import line_of, object_of
from hvd_elastic_ext.io.kube.paths import path_of

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The best first. Servers before 1.30 know the second only. The first one can also end a command's input alone, which
is not needed here."""
STDIN, STDOUT, STDERR, ERROR = range(4)
"""Channels, of which each message names one in its first byte."""
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


def container_of(pod: Mapping[str, Any]) -> str:
    """The container in which agents run: the one that the pod's annotation names, or else its first.

    Raises ``ValueError``, one line, for a pod in which nothing can run any more.
    """
    phase = (pod.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise ValueError(f"it has ended: its phase is {phase}")
    named = ((pod.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CONTAINER)
    known = [str(each.get("name")) for each in (pod.get("spec") or {}).get("containers") or []]
    if named and named not in known:
        raise ValueError(f"its annotation {DEFAULT_CONTAINER} names {named!r}; its containers: {', '.join(known)}")
    if not known:
        raise ValueError("it has no containers")
    return str(named) if named else known[0]


def exec_path(
    namespace: str, pod: str, container: str, words: Sequence[str], *, stdin: bool = True, tty: bool = False
) -> str:
    """Path and query of the request that runs ``words``, with an input and with a terminal if they are wanted."""
    streams = [*(["stdin"] if stdin else []), "stdout", "tty" if tty else "stderr"]
    query = [
        ("container", container),
        *((stream, "true") for stream in streams),
        *(("command", word) for word in words),
    ]
    return f"{path_of('v1', 'pods', namespace, pod, 'exec')}?{urlencode(query)}"


class Outcome(NamedTuple):
    """How a command has ended: its exit code, or None if it has not ended by itself, and ``why``."""

    code: int | None
    why: str = ""


def outcome(data: bytes) -> Outcome:
    """Read what comes on the last channel when a command has ended, or could not be run."""
    status = object_of(data)
    if status.get("status") == "Success":
        return Outcome(0)
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode" and str(cause.get("message")).isdecimal():
            return Outcome(int(cause["message"]))
    why = line_of(str(status.get("message") or data.decode("utf-8", "replace")))
    if '"sh"' in why:
        why += "; the container's image needs a sh"
    return Outcome(None, why or "it ended for an unknown reason")
