"""The words of ``submit``'s command line, arena's among them: how values are read, and what is refused. Pure.

Users of arena keep their lines: ``key=value``, tolerations, claims and commands with variables are read as arena reads
them. An option of arena that means nothing here is refused, with what to do instead.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple

from hvd_elastic_ext.core.commands import leading_variables
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec.job import Toleration

_PROCESSES: Final = ("auto", "gpu")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_ARITHMETIC: Final = re.compile(r"\$\(\(\s*(\d+(?:\s*[*+]\s*\d+)*)\s*\)\)")
_STOCK: Final = ("horovodrun",)
_OURS: Final = ("hvd-elastic", "run")
_SCRIPT: Final = "--host-discovery-script"
SHELL: Final = "sh"
_BUILT_IN: Final = frozenset({".", "cd", "eval", "exec", "export", "set", "source", "test", "ulimit", "umask"})


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """Read ``key=value`` words. Raises :class:`UsageError`."""
    values = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {text!r}: write {option} KEY=VALUE")
        values[key] = value
    return values


def processes(text: str, *, slots: int, gpus: int) -> int:
    """Read ``--nproc-per-node``; ``--slots`` may give the same number. Raises :class:`UsageError`."""
    if not text:
        return slots
    if text in _PROCESSES and gpus:
        return gpus
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        why = "it counts what a node has, which is not known here; " if text in (*_PROCESSES, "cpu") else ""
        raise UsageError(f"--nproc-per-node {text}: {why}write a number")
    if slots not in (0, int(text)):
        raise UsageError(f"--nproc-per-node {text} and --slots {slots} mean the same; give one")
    return int(text)


def tolerations(given: Iterable[str]) -> tuple[Toleration, ...]:
    """``all``, ``KEY``, ``KEY=VALUE:EFFECT`` or ``KEY=VALUE:EFFECT,OPERATOR``, each. Raises :class:`UsageError`."""
    return tuple(_toleration(text) for text in given)


def _toleration(text: str) -> Toleration:
    if text == "all":
        return Toleration()
    rest, _, operator = text.partition(",")
    taint, _, effect = rest.partition(":")
    key, equals, value = taint.partition("=")
    operator = operator or ("Equal" if equals else "Exists")
    if not key or operator not in ("Equal", "Exists"):
        raise UsageError(f"--toleration {text!r}: write all, KEY or KEY=VALUE:EFFECT,OPERATOR (Equal or Exists)")
    return Toleration(key, value if operator == "Equal" else "", effect, operator)


def claims(given: Iterable[str]) -> dict[str, str]:
    """``CLAIM:PATH``, each, by path. Raises :class:`UsageError`."""
    by_path: dict[str, str] = {}
    for text in given:
        claim, colon, path = text.partition(":")
        if not claim or not colon:
            raise UsageError(f"--data {text!r}: write --data CLAIM:PATH")
        if path in by_path:
            raise UsageError(f"--data {text!r}: {by_path[path]} is already mounted there")
        by_path[path] = claim
    return by_path


class Command(NamedTuple):
    """The words after ``--``."""

    words: tuple[str, ...]
    launcher: bool
    """The words are options of ``hvd-elastic run`` followed by the command; otherwise only the command."""
    variables: Mapping[str, str] = MappingProxyType({})
    """Those before the words, as in ``A=1 python t.py``."""


def command(given: Sequence[str], variables: Mapping[str, str], *, shell: str = SHELL) -> Command:
    """Read the words after ``--``.

    One word with spaces is a shell line, as in arena. ``${workers}`` and ``$((2*3))`` are computed here. If the rest
    still needs a shell, ``shell`` runs it. After ``horovodrun`` or ``hvd-elastic run`` the words are options of ours.
    """
    words = list(given)
    if len(words) == 1 and any(space in words[0] for space in " \n\t"):
        words = _words(re.sub(r"\s*\\?\n\s*", " ", _expanded(words[0], variables)).strip(), shell)
    assigned, program = leading_variables(words)
    for start in (_STOCK, _OURS):
        if program[: len(start)] == start:
            return Command(program[len(start) :], launcher=True, variables=assigned)
    return Command(program, launcher=False, variables=assigned)


def _words(line: str, shell: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the command {line!r} cannot be read: {error}") from None
    if not _needs_shell(line) and not (shell != SHELL and set("{[") & set(line)):
        return words
    if any(f" {' '.join(start)} " in f" {' '.join(words)} " for start in (_STOCK, _OURS)):
        raise UsageError(
            f"the command {line!r} needs a shell, and would start a whole job in each process; begin with horovodrun "
            "or hvd-elastic run, and leave variables, redirections and other commands out, or quote them"
        )
    return [shell, "-c", line]


def _needs_shell(line: str) -> bool:
    """Whether a line contains more than plain words, as a shell reads it."""
    _, program = leading_variables(line.split())
    if program and program[0] in _BUILT_IN:
        return True
    expanded = re.sub(r"\\.|'[^']*'", "", line)
    return bool(set("$`") & set(expanded) or set("|;&<>()*?~#") & set(re.sub(r'"[^"]*"', "", expanded)))


def _expanded(line: str, variables: Mapping[str, str]) -> str:
    line = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), line)
    return _ARITHMETIC.sub(lambda found: str(_computed(found[1])), line)


def _computed(expression: str) -> int:
    total = 0
    for term in expression.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total


def without_script(options: Sequence[str]) -> tuple[str, ...]:
    """Return options of ``run`` without the one for a discovery script: on a cluster, hosts come from the daemon."""
    kept, skip = [], False
    for word in options:
        if not skip and word != _SCRIPT and not word.startswith(f"{_SCRIPT}="):
            kept.append(word)
        skip = word == _SCRIPT
    return tuple(kept)


# --- arena's options


ARENA_KINDS: Final = {
    "etjob": "trainingjob",
    "et": "trainingjob",
    "mpijob": "mpijob",
    "mpi": "mpijob",
    "mj": "mpijob",
    "horovodjob": "mpijob",
    "horovod": "mpijob",
    "hj": "mpijob",
    "pytorchjob": "pytorchjob",
    "pytorch": "pytorchjob",
}
"""arena's names of kinds: the first word of its command line."""
OTHER_KINDS: Final = frozenset({
    "tfjob", "tf", "volcanojob", "vj", "rayjob", "rj", "sparkjob", "spark", "deepspeedjob", "dp",
})  # fmt: skip
"""arena's kinds that do not exist here."""
_NODE: Final = "a folder of the node would be open to the job; put the data on a claim: --data CLAIM:PATH"
_APART: Final = "pods share nothing with their node"
_SYNC: Final = "name a folder, or git+https://HOST/REPOSITORY@REVISION, with --sync; the command starts among its files"
_GIT: Final = "the image of the job fetches with its own git (--sync git+https://…); put git into --image"
_BOARD: Final = "start it beside the job, on the claim with the logs"
_REGISTRY: Final = "register the model by a call in the training script"
_ARENAS: Final = "it is about arena itself; leave it out"
REFUSED: Final[Mapping[str, str]] = {
    "--data-dir": _NODE,
    "--dataDir": _NODE,
    "--rdma": "name the device with --device, and add IPC_LOCK to the manifest (-o yaml): clusters differ in both",
    "--sync-mode": _SYNC,
    "--syncMode": _SYNC,
    "--sync-source": _SYNC,
    "--syncSource": _SYNC,
    "--sync-image": _GIT,
    "--syncImage": _GIT,
    "--config-file": "make a ConfigMap, and add it to the manifest (-o yaml)",
    "--tensorboard": _BOARD,
    "--tensorboard-image": _BOARD,
    "--tensorboardImage": _BOARD,
    "--logdir": f"it is TensorBoard's: {_BOARD}",
    "--hostNetwork": "two pods on one node would share ssh's port",
    "--hostPID": _APART,
    "--hostIPC": _APART,
    "--gputopology": "it needs hostNetwork and Alibaba's own GPUs; choose nodes with --selector or --scheduler",
    "--ssh-port": "workers listen at 2222, in their own network; leave it out",
    "--model-name": _REGISTRY,
    "--model-source": _REGISTRY,
    "--config": "write --kubeconfig FILE",
    "--arena-namespace": _ARENAS,
    "--loglevel": _ARENAS,
    "--pprof": _ARENAS,
    "--trace": _ARENAS,
    "--helm-binary": _ARENAS,
}
"""arena's options that are refused, and what to do instead."""
QUEUE: Final = "arena's switch is for kube-queue; name a queue: --queue kueue/NAME or --queue volcano/NAME"
TAKEN_SWITCHES: Final = frozenset({"--gang", "--spot-instance", "--mounts-on-launcher"})
SWITCHES: Final = TAKEN_SWITCHES | {
    "--gputopology", "--helm-binary", "--hostIPC", "--hostNetwork", "--hostPID", "--pprof", "--queue", "--rdma",
    "--tensorboard", "--trace",
}  # fmt: skip
"""Options of ``arena submit`` without a value; all others have one."""
_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def switched(words: Iterable[str]) -> list[str]:
    """Replace ``--gang=true`` by ``--gang``, and drop ``--gang=false``, also for a switch that is refused."""
    kept = []
    for word in words:
        option, equals, value = word.partition("=")
        if not (option in SWITCHES and equals and value in _TRUE | _FALSE):
            kept.append(word)
        elif value in _TRUE:
            kept.append(option)
    return kept


def is_off(word: str) -> bool:
    """Whether a switch is set to its default."""
    option, _, value = word.partition("=")
    return option in SWITCHES and value in _FALSE


def refuse(words: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a refused option of arena; the error says what to do instead."""
    for word, following in zip_longest(words, words[1:], fillvalue="-"):
        option, equals, _ = word.partition("=")
        if option in REFUSED:
            raise UsageError(f"{option} is an option of arena that is not accepted here: {REFUSED[option]}")
        if option == "--queue" and not equals and following.startswith("-"):
            raise UsageError(f"--queue without a value is arena's, and is not accepted here: {QUEUE}")
