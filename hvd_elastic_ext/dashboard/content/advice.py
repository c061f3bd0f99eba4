"""What to do about an event, for a reader who sees the job for the first time. Pure.

The journal says what happened, and on which host. The remedies are those of docs/troubleshooting.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from hvd_elastic_ext.report.job_report import RESTARTED, Row

Remedies = Sequence[tuple[re.Pattern[str], str]]

_SEAT: Final = re.compile(r"\[\d+\]$", re.ASCII)
_IN_REASON: Final = re.compile(r"(?:^|\bon )([\w.:-]+)\[\d+\]", re.ASCII)
"""Such as "rank 1 on h3[0]"."""
_NAME: Final = re.compile(r"[\w.:-]+", re.ASCII)
"""A valid host name. A journal may contain any text, and users paste commands."""
_NO_HOST: Final = "that host"
_COMMAND: Final = re.compile(r"`[^`]*`")


def _remedies(*pairs: tuple[str, str]) -> Remedies:
    return [(re.compile(pattern), remedy) for pattern, remedy in pairs]


_SILENT_HOST: Final = (
    "See whether {host} runs and has a network: once its cooldown is over, it is used again if it can be reached."
)
FAULTS: Final = _remedies(
    (
        r"ModuleNotFoundError|ImportError|No module named|no such module",
        "Install on {host} what the script imports: all hosts need the same packages at the same paths.",
    ),
    (
        r"out of shared memory|[Bb]us error",
        "Enlarge /dev/shm on {host} (of a pod: an emptyDir with medium Memory), or use fewer DataLoader workers.",
    ),
    (
        r"[Oo]ut of memory|OutOfMemory|MemoryError|[Cc]an(not|'t) allocate memory|bad_alloc",
        "Give {host} more memory, or train with smaller batches or fewer processes there.",
    ),
    (r"No space left|quota exceeded", "Make room on {host}: a disk, or /dev/shm, is full."),
    (
        r"Too many open files",
        "Raise the limit of open files on {host} (ulimit -n, before the launcher or the pod starts), or open fewer.",
    ),
    (
        r"publickey|Host key verification|HOST IDENTIFICATION",
        "`ssh {host} true` must work by itself: put this user's key into its authorized_keys, and its host key into "
        "known_hosts here. Then `hvd-elastic doctor --host {host}`.",
    ),
    (r"Address already in use", "End the other program that has this port on {host}, or let the script take another."),
    (
        r"CUDA|cuDNN|NCCL|NVIDIA",
        "Compare the GPUs, the driver and the torch build of {host} with the other hosts': nvidia-smi, and "
        "`hvd-elastic doctor --host {host}`.",
    ),
    (r"nothing was heard", _SILENT_HOST),
    (
        r"its agent ended",
        "See why its agent ended: the kernel's log on {host} (dmesg), or the events of its pod. It is started again "
        "after the cooldown.",
    ),
    (
        r"unreachable|Connection refused|Could not resolve|No route to host",
        "Run `hvd-elastic doctor --host {host}`: it tries the name, the route, ssh and Python.",
    ),
    (
        r"SIGKILL",
        "Find out who killed it: the kernel's log on {host} (dmesg), or the events of its pod, tell whether memory ran "
        "out. {host} is used again after its cooldown.",
    ),
    (
        r"SIG(SEGV|BUS|ILL|FPE|ABRT)",
        "A library crashed: its output says where. If it is {host} each time, `hvd-elastic hosts block {host}`.",
    ),
    (
        r"was silent|\bsilent[:;]",
        "That process was stopped, or got no processor, and was killed. If {host} does so again, see what stops "
        "processes there (SIGSTOP, a debugger, a suspended container), and its load.",
    ),
    (r"fenced", _SILENT_HOST),
    (
        r"\bstalled\b.*(killed by|blocked|used again)",
        "It hung, and was killed to start again. If {host} does so again, see in its output what it did last; without "
        "--restart-stalled it stays, for py-spy dump --pid PID.",
    ),
    (
        r"same number of steps",
        "Give all ranks equally many steps, as `ElasticSampler` does. It ends with the script of the finished ones, or "
        "by Ctrl-C.",
    ),
    (
        r"waited for one another",
        "See what each rank waits for: py-spy dump --pid PID; `hvd-elastic status --pids` has the PIDs. Do all do the "
        "same collectives, in one order?",
    ),
    (
        r"\bstalled\b|no progress",
        "See where that process on {host} hangs: py-spy dump --pid PID; `hvd-elastic status --pids` has the PID. "
        "--progress-timeout S --restart-stalled restarts such a process.",
    ),
    (
        r"\bleft (with|on)\b",
        "It ended by itself, without an error: see in its output why. A SIGTERM comes from outside, such as from a "
        "container on {host} that is stopped.",
    ),
    (
        r"never ready.*(in time|did not come|killed by)",
        "See in its output what {host} does at the start; --standby-timeout S gives it longer.",
    ),
    (
        r"never ready",
        "Fix what the reason names: `hvd-elastic doctor --host {host}` compares it with this machine.",
    ),
    (
        r"No such file or directory|FileNotFoundError",
        "Put the file that it names on {host}, at the same path as on the other hosts.",
    ),
    (r"Permission ?[Dd]enied|PermissionError", "Let the job's user read, or write, on {host} what it names."),
    (
        r"exit code (2|126|127)(?![0-9:])",
        "The script or program was not found on {host}, or refuses its arguments: the end of its output says which. "
        "Correct the command.",
    ),
    (
        r"starts without a step",
        "It fails in the same way at each start: fix what the end of its output says. A slot of {host} that has a bad "
        "device is left out by itself if enough others remain.",
    ),
    (
        r"crashed|exit code",
        "Fix what the end of its output says. If it is {host} alone, compare its packages, files and devices with "
        "another host, then `hvd-elastic hosts clear {host}`.",
    ),
)
"""Remedies by patterns in the reason for the end of a process or host; the first match counts."""

_STORAGE: Final = _remedies(
    (r"No space left|quota", "Make room there: `hvd-elastic checkpoints prune DIR`. Or name another --checkpoint-dir."),
    (r"Read-only|Permission denied", "Let the job write there, or name another --checkpoint-dir."),
    (
        r"",
        "Fix what the reason names. It is tried again; a loss of all hosts costs all since the last one.",
    ),
)
SHORTAGES: Final = _remedies(
    (
        r"^no host |slots needed|processes ready|more than all hosts have|for a first host",
        "Add hosts to the list, or ask for less: a smaller -np, or --min-np for the start. `hvd-elastic hosts list` "
        "shows those that are known, and why one is blocked.",
    ),
)
"""Remedies by patterns in the line of a wait, and in the last line of a job without a fault."""
_LISTS: Final = _remedies(
    (r"gave no list within", "Run the discovery script by hand: why does it hang? Known hosts stay until it answers."),
    (r"", "Correct the host list: known hosts stay until one is accepted."),
)
AGAIN: Final = "Fix what the reason names: it is tried again."
EVENTS: Final[Mapping[str, Remedies]] = {
    "refused": _LISTS,
    "not sealed": _STORAGE,
    **{
        name: _remedies(("", remedy))
        for name, remedy in {
            "checkpoint skipped": "An older one is tried. `hvd-elastic checkpoints verify DIR` says what is damaged.",
            "not resumed": "Let {host} read the checkpoint, or leave it out: `hvd-elastic hosts block {host}`.",
            "straggler": "See what else runs on {host}, and its GPU, disk and network. --drain-stragglers leaves such "
            "a host out.",
            "notice": "Nothing if the other hosts are enough: training leaves {host} in time. Else add a host.",
            "advised": "Nothing yet: its cloud may take {host} back. Add a host if too few would be left.",
            "notices unavailable": "Let {host} reach its cloud's metadata service: without it, it is lost "
            "without notice.",
            "isolated": "Check the network of the launcher's machine: until a host sends again, it removes none, for "
            "--orphan-grace at most.",
            "trains alone": "Wrap the optimizer (hvd.DistributedOptimizer, elastic.wrap or DDP) and train again: no "
            "rank has learnt from the data of all.",
            RESTARTED: "No commit was left: --adopt or our State keeps commits, and --checkpoint-every "
            "auto keeps checkpoints that outlive all hosts.",
            "not resized": "Train in a function with @elastic.run: then hosts can come and go.",
            "not sent": "It is tried again. If it goes on, see the network between these hosts.",
            "slept": "Add hosts: it wakes by itself when --min-np slots may work.",
            "not slept": AGAIN,
            "not scaled": AGAIN,
            "workers not requested": AGAIN,
            "blocked": "`hvd-elastic hosts clear {host}` when it may work again.",
        }.items()
    },
}
"""Remedies by the name of an event. For other events that are faults, see :data:`FAULTS`."""
_FAULTY: Final = ("worker failed", "exited", "struck", "fenced", "stalled")
AFTER_FAILURE: Final = (
    "Fix what the reason names; the same command then continues from the newest checkpoint, if there is one."
)
NO_LAUNCHER: Final = "`hvd-elastic status` says whether a launcher runs; the same command continues."


def name_of(row: Row) -> str:
    """Return the name of an event on the page; of a resize, its cause."""
    return row.cause if row.event == "resized" and row.cause else row.event.replace("_", " ")


def reason_of(row: Row) -> str:
    """Return the reason of a row."""
    return "; ".join(filter(None, (row.cause if row.event != "resized" else "", row.note)))


def without_slot(seat: str) -> str:
    """Return the host of a seat such as ``h3[0]``."""
    return _SEAT.sub("", seat)


def host_of(row: Row) -> str:
    """Return the first host concerned; for the end of a process, the host that its reason names, or ""."""
    if row.hosts:
        return without_slot(row.hosts[0])
    found = _IN_REASON.search(row.cause)
    return found[1] if found else ""


def advice(row: Row) -> str:
    """Return what to do about a row; "" if nothing is to be done."""
    name, reason = name_of(row), reason_of(row)
    remedies = EVENTS.get(name, FAULTS if name in _FAULTY else ())
    words = f"{name}; {reason}" if name in ("fenced", "stalled") else reason
    return _fitting(remedies, words, host_of(row))


def of_end(end: Row | None, fault: Row | None) -> str:
    """Return what to do about a failed job: by its last line, or else by its last fault."""
    host = "" if end is None else host_of(end) or ("" if fault is None else host_of(fault))
    found = "" if end is None else _fitting((*FAULTS, *(SHORTAGES if fault is None else ())), end.cause, host)
    return found or ("" if fault is None else advice(fault)) or AFTER_FAILURE


def of_wait(reason: str) -> str:
    """Return what to do while a job waits without a fault: by its launcher's line; "" if the wait ends by itself."""
    return _fitting(SHORTAGES, reason, "")


def _fitting(remedies: Remedies, words: str, host: str) -> str:
    found = next((remedy for pattern, remedy in remedies if pattern.search(words)), "")
    if _NAME.fullmatch(host):
        return found.replace("{host}", host)
    return _COMMAND.sub(lambda command: command[0].replace("{host}", "HOST"), found).replace("{host}", _NO_HOST)
