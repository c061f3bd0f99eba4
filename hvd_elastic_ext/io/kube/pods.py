"""How commands run in worker pods: requests to the API server's exec, and what its answers mean. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The best first. Servers before 1.30 know the second only. The first one can also end a command's input alone, which
is not needed here."""
STDIN, STDOUT, STDERR, ERROR = range(4)
"""Channels, of which each message names one in its first byte."""
ROLE: Final = (
    'the launcher\'s service account needs a Role with {apiGroups: [""], resources: ["pods"], verbs: ["get"]} and '
    '{apiGroups: [""], resources: ["pods/exec"], verbs: ["get", "create"]}'
)
"""A WebSocket needs ``get``; servers from 1.35 on also want ``create``."""
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE: Final = re.compile(r"(?P<pod>[^.]+)\.[^.]+\.(?P<namespace>[^.]+)\.svc(\..+)?")
_ADDRESS: Final = re.compile(r"[0-9.]+")
_MAX_CHARS: Final = 500
_REMEDIES: Final = {
    401: "its token is missing or has expired",
    403: ROLE,
    404: "with --rsh pod hosts have names of pods, as hvd-discover publishes them",
}


@contextlib.contextmanager
def client_needed(option: str) -> Iterator[None]:
    """Import the official client within this. Raises :class:`UsageError` where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3", "websocket"):
            raise
        remedy = "pip install kubernetes websocket-client"
        raise UsageError(f"{option} needs the package 'kubernetes'; install it: {remedy}") from None


class NotRun(Exception):
    """A command was not run, or its end is not known; ``str()`` is the reason, in one line."""


class Pod(NamedTuple):
    """``namespace``: None is that of the credentials; within a cluster, that of the launcher's own pod."""

    name: str
    namespace: str | None = None


def pod_of(host: str) -> Pod:
    """Return the pod that a host name means: a pod's own name, alone or as in ``pod.service.namespace.svc``.

    Raises ``ValueError``, one line, for a name that is not a pod's.
    """
    problem = name_error(host)
    if problem is not None:
        raise ValueError(problem)
    if _ADDRESS.fullmatch(host):
        raise ValueError(f"host {host!r} is an address; with --rsh pod hosts have names of pods")
    found = _SERVICE.fullmatch(host)
    pod = Pod(found["pod"], found["namespace"]) if found else Pod(host.partition(".")[0])
    bad = next((label for label in (pod.name, pod.namespace) if label and not _LABEL.fullmatch(label)), None)
    if bad is not None:
        raise ValueError(
            f"host {host!r}: {bad!r} is not the name of a pod or namespace: small letters, digits and '-' only"
        )
    return pod


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


def exec_path(namespace: str, pod: str, container: str, words: Sequence[str]) -> str:
    """Path and query of the request that runs ``words``; names have passed :func:`pod_of`."""
    streams = [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
    query = urlencode([("container", container), *streams, *(("command", word) for word in words)])
    return f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{query}"


def words_in(directory: Path, words: Sequence[str]) -> list[str]:
    """Run ``words`` in ``directory``; a pod without it still runs commands given by absolute path."""
    return ["sh", "-c", 'cd "$1" 2>/dev/null; shift; exec "$@"', "sh", str(directory), *words]


def refusal(code: int, body: bytes, remedies: Mapping[int, str] = _REMEDIES) -> str:
    """Why a server refuses, and the remedy if it is known, in one line.

    The remedy comes before the server's own text, because long lines are cut at the end.
    """
    status = _object(body)
    text = _line(str(status.get("message") or body.decode("utf-8", "replace")))
    line = f"the API server says {code} {status.get('reason') or ''}".rstrip()
    line += f"; {remedies[code]}" if code in remedies else ""
    return f"{line}: {text}" if text.strip() else line


class Outcome(NamedTuple):
    """How a command has ended: its exit code, or None if it has not ended by itself, and ``why``."""

    code: int | None
    why: str = ""


def outcome(data: bytes) -> Outcome:
    """Read what comes on the last channel when a command has ended, or could not be run."""
    status = _object(data)
    if status.get("status") == "Success":
        return Outcome(0)
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode" and str(cause.get("message")).isdecimal():
            return Outcome(int(cause["message"]))
    why = _line(str(status.get("message") or data.decode("utf-8", "replace")))
    if '"sh"' in why:
        why += "; the container's image needs a sh"
    return Outcome(None, why or "it ended for an unknown reason")


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_CHARS]
