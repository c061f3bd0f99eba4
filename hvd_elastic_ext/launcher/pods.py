"""The one way in which worker pods are reached: ``kubectl exec``, and what it says when that does not work. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hvd_elastic_ext.core.hosts import name_error

PROGRAMS: Final = ("kubectl", "/opt/kube/kubectl")
"""Where it is looked for; the second is where MPI Operator's v1 jobs have it."""
ROLE: Final = (
    'the launcher\'s service account needs a Role with {apiGroups: [""], resources: ["pods"], verbs: ["get"]} and '
    '{apiGroups: [""], resources: ["pods/exec"], verbs: ["get", "create"]}'
)
"""``get`` is what kubectl asks for from 1.30 on, ``create`` what older ones do, and servers from 1.35 on."""

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE: Final = re.compile(r"(?P<pod>[^.]+)\.[^.]+\.(?P<namespace>[^.]+)\.svc(\..+)?")
_ADDRESS: Final = re.compile(r"[0-9.]+")
_ENDED: Final = re.compile(r"command terminated with exit code (\d+)")
_CHATTER: Final = ("Defaulted container ", "Defaulting container name ", "Use 'kubectl describe ")


class Pod(NamedTuple):
    """``namespace`` None is the one that kubectl works in: in a cluster that of its own pod."""

    name: str
    namespace: str | None = None


def pod_of(host: str) -> Pod:
    """Find the pod that a host name stands for: a pod's own name, alone or as in ``pod.service.namespace.svc``.

    Raises ``ValueError``, one line, for a name that is none of a pod.
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
        raise ValueError(f"host {host!r}: {bad!r} is no name of a pod or namespace: small letters, digits and '-' only")
    return pod


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``directory`` is where commands run, in pods that have it. ``program``: see :data:`PROGRAMS`."""

    directory: Path
    program: str = PROGRAMS[0]

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` in the pod of ``host``. Raises ``ValueError`` for a name that is none."""
        pod = pod_of(host)
        namespace = [] if pod.namespace is None else ["-n", pod.namespace]
        # A pod without this directory still runs commands given by absolute path.
        there = ["sh", "-c", 'cd "$1" 2>/dev/null; shift; exec "$@"', "sh", str(self.directory)]
        return [self.program, "exec", "-i", *namespace, pod.name, "--", *there, *words]


def exit_code(line: str) -> int | None:
    """The exit code that kubectl tells of the command which it ran; None for any other line."""
    found = _ENDED.fullmatch(line.strip())
    return int(found[1]) if found else None


def is_chatter(line: str) -> bool:
    """Whether kubectl only tells which container it has chosen."""
    return line.startswith(_CHATTER)


def remedy(words: str) -> str:
    """What kubectl said when it did not get through, and what to do about it where that is known."""
    lower = words.lower()
    if "forbidden" in lower:
        return f"{words}; {ROLE}"
    if "(notfound)" in lower:
        return f"{words}; with --rsh pod hosts have names of pods, as hvd-discover publishes them"
    if lower.startswith(("kubectl:", f"{PROGRAMS[1]}:")) and "no such file" in lower:
        return f"{words}; --rsh pod needs kubectl on the launcher's machine"
    return words or "kubectl exec ended without a word"
