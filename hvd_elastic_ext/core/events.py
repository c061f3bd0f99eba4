"""The catalogue of events: what each event of the journal means, and what is said about it.

An event is described once, here: :data:`EVENTS` has all of them, and :data:`RESIZES` the causes of a resize, under
which a resize is shown. The terminal's lines, the rows of ``hvd-elastic events`` and of the page, the messages of
``--notify``, the counters of ``--metrics``, the remedies on the page and the tables of the docs are read from it, or
compared with it. So a new event is one entry.

What the launcher itself says (``line``, ``notify``) takes the fields as it writes them. What a journal on disk is shown
with (``row``, ``says``, ``note``) takes any fields: a journal is evidence after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.call_results import result_of
from hvd_elastic_ext.core.errors import HOSTS_KEPT

Fields = Mapping[str, Any]
Text = Callable[[Fields], str]
Remedies = Sequence[tuple[str, str]]
"""Patterns of a title and reason, each with what to do; the first that is found counts. ``{host}`` is the host
concerned."""

OK, INFO, WARN, BAD = "ok", "info", "warn", "bad"
"""Levels: all is well again; nothing is to be done; a person may have to act; a fault."""


class Count(NamedTuple):
    """A counter of ``--metrics``: of the event, or of the number in its ``field``; ``by_cause``: split by ``cause``."""

    name: str
    help: str
    field: str | None = None
    by_cause: bool = False


class Notification(NamedTuple):
    """A message of ``--notify``. ``topic``: what it is about, as docs/metrics.md lists them; ``text``: "" if it is not
    worth one; ``cause`` distinguishes messages of one topic."""

    topic: str
    text: Text
    cause: Text = lambda _: ""


def _always(_: Fields) -> bool:
    return True


def _never(_: Fields) -> bool:
    return False


def _unless_over(fields: Fields) -> bool:
    """Without a reason, it says that something is over."""
    return fields.get("reason") is not None


def _nothing(_: Fields) -> str:
    return ""


def _shown(fields: Fields, key: str) -> str:
    value = fields.get(key)
    return "" if value is None else str(value)


def _words(template: str) -> Text:
    """The text of a template, such as ``{host} is gone``."""
    return lambda fields: template.format_map(fields)


def _reason(fields: Fields) -> str:
    """The reason, without a traceback behind it."""
    return _shown(fields, "reason").partition("\n")[0]


@dataclass(frozen=True, slots=True)
class EventKind:
    """What is known of all events of one name, or of all resizes of one cause."""

    name: str
    meaning: str
    """When it is written: a clause, for the docs."""
    fields: str = ""
    """Its fields beside those of every line, and what they hold."""
    shown_as: str = ""
    """Its name for people, if it is not :attr:`name` with spaces."""
    level: str = INFO
    """Whether a person has to see it, and as what. The terminal's line is a warning from WARN on."""
    attention: bool = False
    """Whether it explains what is wrong, though it is not a fault."""
    remedies: Remedies = ()
    label: str = ""
    """Its name in a picture, where the title would say too little."""
    row: Callable[[Fields], bool] = _always
    """Whether it has a row among the important events. Without one it is a detail of others."""
    hosts: tuple[str, ...] = ("host",)
    """The fields with the hosts that are concerned."""
    says: Text = _reason
    """What its row says beside its title and hosts."""
    note: Text = _nothing
    """What its row adds."""
    line: Text = _nothing
    """The terminal's line; "" for none. Fields have the line's ``generation``, too."""
    notify: Notification | None = None
    counts: tuple[Count, ...] = ()

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.shown_as or self.name.replace("_", " ")

    @property
    def has_rows(self) -> bool:
        """Whether it may have a row."""
        return self.row is not _never


# -- what can be done about it ----------------------------------------------------------------------------------

_SILENT_HOST: Final = (
    "See whether {host} runs and has a network: once its cooldown is over, it is used again if it can be reached."
)
FAULTS: Final[Remedies] = (
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
        "That process was stopped, or did not get a processor, and was killed. If {host} does so again, see what stops "
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
    (r"never ready", "Fix what the reason names: `hvd-elastic doctor --host {host}` compares it with this machine."),
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
"""Remedies by the reason for the end of a process or host."""
_STORAGE: Final[Remedies] = (
    (r"No space left|quota", "Make room there: `hvd-elastic checkpoints prune DIR`. Or name another --checkpoint-dir."),
    (r"Read-only|Permission denied", "Let the job write there, or name another --checkpoint-dir."),
    (r"", "Fix what the reason names. It is tried again; a loss of all hosts costs all since the last one."),
)
_LISTS: Final[Remedies] = (
    (r"gave no list within", "Run the discovery script by hand: why does it hang? Known hosts stay until it answers."),
    (r"", "Correct the host list: known hosts stay until one is accepted."),
)


def _do(remedy: str) -> Remedies:
    """The remedy whatever the reason is."""
    return ((r"", remedy),)


_AGAIN: Final = _do("Fix what the reason names: it is tried again.")
_NETWORK: Final = _do("It is tried again. If it goes on, see the network between these hosts.")

# -- the terminal's lines ---------------------------------------------------------------------------------------


def _published(fields: Fields) -> str:
    signs = (("+", "added"), ("-", "removed"), ("more slots: ", "grown"), ("fewer slots: ", "shrunk"))
    if not fields["hosts"] and fields["removed"] and not fields.get("departing"):
        return ""  # the driver decides whether the hosts are kept, and logs that
    # Earlier hosts may have been kept after an empty list.
    from_none = len(fields["added"]) == len(fields["hosts"]) and not fields["removed"]
    changes = [] if from_none else [f"{sign}{host}" for sign, key in signs for host in fields[key]]
    hosts = ", ".join(f"{host}:{slots}" for host, slots in fields["hosts"].items()) or "none"
    return f"hosts: {hosts}" + (f" ({', '.join(changes)})" if changes and fields["number"] > 1 else "")


def _refused(fields: Fields) -> str:
    kept = f"{HOSTS_KEPT} until a list is accepted" if fields.get("kept") else ""
    return f"the host list is refused: {fields['reason'].removesuffix(HOSTS_KEPT)}{kept}"


def _resized(fields: Fields) -> str:
    before: Mapping[str, int] = fields.get("slots_before", {})
    signed = (*(("+", host) for host in fields["added"]), *(("-", host) for host in fields["removed"]))
    named_hosts = " ".join(f"{sign}{host}" for sign, host in signed if host not in before)
    resized = (f"{host}: {count} to {fields['hosts'][host]} slots" for host, count in before.items())
    changes = ", ".join(filter(None, (named_hosts, *resized)))
    where = ", ".join(f"{host}:{count}" for host, count in fields["hosts"].items())
    parts = [f"world {fields['generation']}: size {fields['size']} ({where})"]
    named = changes and fields["cause"] != "start"
    parts.append(f"{fields['cause']}: {changes}" if named else fields["cause"])
    if (downtime_s := fields["downtime_s"]) is not None:
        parts.append(f"downtime {downtime_s:.1f} s")
    elif fields["cause"] != "start":
        parts.append("downtime unknown")
    if (lost := fields["steps_lost"]) is not None:
        parts.append(f"steps lost: {lost}")
    if because := fields.get("lost_because"):
        parts.append(because)
    if called_in := fields.get("spares"):
        parts.append(f"spare called in: {', '.join(called_in)}")
    if without := fields.get("without"):
        parts.append(f"--min-np lets it start without {', '.join(without)}")
    return "; ".join(parts)


def _exited(fields: Fields) -> str:
    if fields["cause"] in ("done", "told to leave"):
        return ""
    rank = fields.get("rank")
    who = _place(fields) if rank is None else f"rank {rank} ({_place(fields)})"
    return f"{who} has ended: {fields['reason']}"


def _standby(fields: Fields) -> str:
    beside = " beside the training" if fields.get("trains", True) else ""
    what = "a spare" if fields.get("spare") else "a process"
    return f"{_place(fields)} starts {what}{beside}"


def _place(fields: Fields) -> str:
    return f"{fields['host']} slot {fields['slot']}" if fields.get("slot") is not None else str(fields["host"])


def _struck(fields: Fields) -> str:
    seconds = fields.get("cooldown_s")
    if why := fields.get("waived"):
        return f"{fields['subject']} is used again at once: {why}"
    if seconds is None:
        return ""
    again = fields.get("again")
    as_before = f"{fields['cause']}, as before ({again} strikes)" if again else None
    if why := fields.get("host_blocked"):
        host = fields["host"]
        why = as_before or _shortened(why.removeprefix(f"host {host}: "), fields)
        return f"{host} is blocked for {fields['host_blocked_s']:.0f} s: {why}"
    return f"{fields['subject']} is blocked for {seconds:.0f} s: {as_before or _shortened(fields['reason'], fields)}"


OF_PROCESSES: Final = frozenset(("crashed", "out of memory", "silent", "stalled"))
"""Causes of a strike that follow only from the end of a process."""


def _shortened(why: str, fields: Fields) -> str:
    """The reason of a block, without the text that the line before it, about the process's end, has already."""
    cause, reason = fields["cause"], fields["reason"]
    return why.replace(f": {reason.removeprefix(f'{cause}: ')}", "") if cause in OF_PROCESSES else why


def _fenced(fields: Fields) -> str:
    # The line about the end of a process says why.
    return f"{fields['host']} is cut off: {fields['reason']}" if fields.get("slot") is None else ""


def _straggler(fields: Fields) -> str:
    drained = "; its slot is drained" if fields["drained"] else ""
    return f"straggler: rank {fields['rank']}, {fields['reason']}{drained}"


def _blocked(fields: Fields) -> str:
    seconds = fields.get("for_s")
    ends = "until it is cleared" if seconds is None else f"for {seconds:.0f} s"
    return f"{fields['host']} is blocked {ends}: {fields['reason']}"


def _cleared(fields: Fields) -> str:
    what = "is used again before its time is over" if fields.get("waived") else "may work again"
    return f"{fields['host']} {what}: {fields['reason']}"


def _scaled(fields: Fields) -> str:
    go = f"; {', '.join(fields['leaving'])} may go" if fields["leaving"] else ""
    asks = f"asks for {_counted(fields['hosts'], 'host')} instead of {fields['before']}"
    return f"{asks} (--autoscale): {fields['reason']}{go}"


def _counted(count: Any, noun: str) -> str:
    return f"{'' if count is None else count} {noun}{'' if count == 1 else 's'}"


# -- what rows say ----------------------------------------------------------------------------------------------


def _step_and_call(fields: Fields, between: str = ",") -> str:
    call = fields.get("call")
    return f"step {_shown(fields, 'step')}{f'{between} call {call}' if isinstance(call, int) and call > 1 else ''}"


def _sealed(fields: Fields) -> str:
    lacks = _shown(fields, "not_resumable")
    return f"{_step_and_call(fields)}{f'; no job can resume from it: {lacks}' if lacks else ''}"


def _number_of_hosts(fields: Fields) -> str:
    before = f"{_shown(fields, 'before')} → " if "before" in fields else ""
    return before + _counted(fields.get("hosts"), "host")


def _not_kept(fields: Fields) -> str:
    call = _shown(fields, "call") or "?"
    what = result_of(0) if call == "0" else f"call {call}: its result"
    return f"{what} was not kept: {_shown(fields, 'reason')}"


MAX_SHARES: Final = 8
"""Most ranks whose shares are shown in one line."""


def _shares(fields: Fields) -> str:
    now, before = (_numbers(fields.get(key)) for key in ("rows", "rows_before"))
    return f"{now or '?'} samples by rank{f', before {before}' if before else ''}"


def _numbers(value: Any) -> str:
    numbers = value if isinstance(value, list | tuple) else ()
    return " ".join(map(str, numbers[:MAX_SHARES])) + (" …" if len(numbers) > MAX_SHARES else "")


def _given_reason(fields: Fields) -> str:
    return _shown(fields, "reason")


# -- messages ---------------------------------------------------------------------------------------------------

LOOP_STRIKES: Final = 3
"""This many strikes of one slot or host for the same reason are a crash loop."""
DONE, SLEEPS, STOPPED, FAILED = "done", "sleeps", "stopped", "failed"


def end_of(code: int | None) -> str:
    """How a job ended, by its exit code; signals that stop it are SIGHUP, SIGINT and SIGTERM."""
    return {0: DONE, 75: SLEEPS, 129: STOPPED, 130: STOPPED, 143: STOPPED}.get(-1 if code is None else code, FAILED)


def _lost_steps(fields: Fields) -> str:
    lost = fields.get("steps_lost") or 0
    because = fields.get("lost_because") or fields.get("reason") or fields["cause"]
    return f"{_counted(lost, 'step')} lost: {because}" if lost else ""


def _crash_loop(fields: Fields) -> str:
    again = (fields.get("again") or 0) >= LOOP_STRIKES
    return f"{fields['subject']} fails again and again: {fields['reason']}" if again else ""


def _end(fields: Fields) -> str:
    code, reason = fields["code"], str(fields["reason"])
    words = {DONE: "ended", SLEEPS: "asleep, and its launcher has ended", FAILED: f"failed with {code}"}
    end = words.get(end_of(code), STOPPED)
    return reason if reason.startswith(f"{end} ") else f"{end}: {reason}"


# -- the catalogue ----------------------------------------------------------------------------------------------

RESIZES: Final[Mapping[str, EventKind]] = {
    kind.name: kind
    for kind in (
        EventKind("start", "the first world of a run, or after a sleep", level=OK),
        EventKind("all were lost", "the first world after all processes of one were lost", level=BAD, remedies=FAULTS),
        EventKind("worker failed", "a process or a host was lost", level=BAD, remedies=FAULTS),
        EventKind(
            "connection lost",
            "processes lost their connections to one another, although none of them is gone",
            level=WARN,
            remedies=_NETWORK,
        ),
        EventKind("ranks finished", "others go on without ranks that are done with training"),
        EventKind("hosts added", "newcomers are ready and join", level=OK),
        EventKind(
            "hosts removed",
            "members leave: their hosts or slots are not listed any more, have notice or are blocked",
            level=WARN,
        ),
        EventKind(
            "hosts changed",
            "no member may stay: newcomers take over, and one member stays for one world, to send the state",
            level=WARN,
        ),
        EventKind("cooldown over", "a blocked host or slot may work again", level=OK),
    )
}
"""The causes of a resize."""

EVENTS: Final[Mapping[str, EventKind]] = {
    kind.name: kind
    for kind in (
        EventKind(
            "started",
            "a launcher starts",
            "run (another name than before: a new run begins), job, command, version, checkpoints (where they go; "
            "null: none are made), autoscale (the policy, or null), output (the folder of processes' output; null: "
            "it is not kept)",
            level=WARN,
            label="launcher again",
            hosts=(),
            says=lambda _: "the launcher was started again",
        ),
        EventKind(
            "published",
            "a new host list is accepted",
            "number, hosts, departing, added, removed, grown, shrunk",
            line=_published,
            row=_never,
        ),
        EventKind(
            "refused",
            "a host list is read and not accepted",
            "reason, kept: whether earlier hosts stay in use",
            level=WARN,
            attention=True,
            remedies=_LISTS,
            label="list refused",
            line=_refused,
            counts=(Count("lists_refused", "Host lists that were not accepted"),),
        ),
        EventKind(
            "spawned",
            "a worker is started",
            "host, slot, pid, where it is planned: rank, local_rank",
            row=_never,
        ),
        EventKind(
            "standby",
            "workers of a newcomer start in standby, without interrupting anyone",
            "host, slot, trains (false: the world has lost a member, and nothing trains meanwhile), spare (true: it "
            "waits until another one is lost)",
            line=_standby,
            row=_never,
        ),
        EventKind("parked", "a newcomer is ready to join", "host, slot", row=_never),
        EventKind(
            "resized",
            "a new world is formed",
            "cause, reason, added, removed, failed (by host), hosts (slots by host), size, downtime_s, steps_lost "
            "(null: no step is known of), lost_because (it continues behind a reported commit: its holders, and why "
            "they could not send it), without (at the start: what --min-np does not wait for, and why), slots_before "
            "(of hosts that stay in it with more or fewer slots), slots_added, slots_removed, slots_failed (by host, "
            "the numbers of its slots; of hosts of which others stay), spares (that were called in), call (the "
            "training call, from the second one on)",
            line=_resized,
            notify=Notification("lost_steps", _lost_steps, _words("{cause}")),
            counts=(
                Count("worlds", "Worlds that have formed, by cause", by_cause=True),
                Count("downtime_seconds", "Seconds without a step for a new world, by its cause", "downtime_s", True),
                Count("lost_steps", "Steps that were lost with a world, by the cause of the next", "steps_lost", True),
            ),
        ),
        EventKind(
            "exited",
            "a worker has ended",
            "host, slot, rank (if it had one), code, cause, reason",
            level=BAD,
            remedies=FAULTS,
            line=_exited,
            counts=(Count("process_exits", "Training processes that have ended, by cause", by_cause=True),),
        ),
        EventKind(
            "struck",
            "a fault is counted, and what is to blame is blocked for a cooldown",
            "subject (a slot, host, pod or node), cause, reason, host, cooldown_s, until, host_blocked (why all "
            "slots of the host are blocked, or null), host_blocked_s, waived (why the slot or host is used again at "
            "once, if it is), again (the strikes so far, if the reason is that of the last one)",
            level=BAD,
            remedies=FAULTS,
            line=_struck,
            notify=Notification("crash_loop", _crash_loop, _words("{subject}")),
            counts=(Count("strikes", "Strikes against slots, hosts, pods and nodes, by cause", by_cause=True),),
        ),
        EventKind(
            "fenced",
            "a silent host or process is cut off",
            "host, slot (of a process), reason",
            level=BAD,
            remedies=FAULTS,
            counts=(Count("hosts_fenced", "Silent hosts and processes that were cut off"),),
            line=_fenced,
        ),
        EventKind(
            "isolated",
            "the launcher does not get messages from any host of the world: its own network is suspected",
            "hosts, reason",
            level=BAD,
            remedies=_do(
                "Check the network of the launcher's machine: until a host sends again, it removes none, for "
                "--orphan-grace at most."
            ),
            hosts=("hosts",),
            line=_words("{reason} No host is cut off for now"),
        ),
        EventKind(
            "stalled",
            "workers send heartbeats and make no progress",
            "ranks, hosts, since_s, waiting, finished (ranks that others wait for), reason",
            level=BAD,
            remedies=FAULTS,
            hosts=("hosts",),
            notify=Notification("stalled", _words("no progress: {reason}")),
            counts=(Count("stalls", "Times that processes made no progress"),),
        ),
        EventKind(
            "trains_alone",
            "each rank trains alone: no operation averages over the ranks",
            "size, rank (that reports it), host, reason",
            level=BAD,
            remedies=_do(
                "Wrap the optimizer (hvd.DistributedOptimizer, elastic.wrap or DDP) and train again: no rank has "
                "learnt from the data of all."
            ),
        ),
        EventKind(
            "straggler",
            "a worker is slower than the others for long",
            "host, slot, rank, step_s, median_s, drained, reason",
            level=WARN,
            attention=True,
            remedies=_do(
                "See what else runs on {host}, and its GPU, disk and network. --drain-stragglers leaves such a host "
                "out."
            ),
            line=_straggler,
        ),
        EventKind(
            "blocked",
            "a host is blocked by hand",
            "host, for_s (null: for good), reason",
            level=WARN,
            remedies=_do("`hvd-elastic hosts clear {host}` when it may work again."),
            line=_blocked,
        ),
        EventKind(
            "cleared",
            "strikes and blocks of a host are removed by hand; or its block alone, as no other host may work",
            "host, reason, waived (its block alone)",
            level=OK,
            line=_cleared,
        ),
        EventKind(
            "notice",
            "a host is about to go",
            "host, reason, deadline",
            level=WARN,
            attention=True,
            remedies=_do("Nothing if the other hosts are enough: training leaves {host} in time. Else add a host."),
            counts=(Count("notices", "Hosts with notice that they will go soon"),),
        ),
        EventKind("notice_over", "a notice is withdrawn", "host, reason"),
        EventKind(
            "advised",
            "a cloud announces that a host may have to go, or will go later",
            "host, reason (null: no longer)",
            level=WARN,
            remedies=_do("Nothing yet: its cloud may take {host} back. Add a host if too few would be left."),
            row=_unless_over,
        ),
        EventKind(
            "notices_unavailable",
            "a host cannot ask its cloud for notices",
            "host, source, reason (null: it can again)",
            level=WARN,
            attention=True,
            remedies=_do("Let {host} reach its cloud's metadata service: without it, it is lost without notice."),
            row=_unless_over,
        ),
        EventKind(
            "stepped", "a step of the optimizer is done (sampled)", "step, rank, size, call, host, values", row=_never
        ),
        EventKind(
            "committed", "a commit is made (sampled)", "number, step, rank, size, call, host, values", row=_never
        ),
        EventKind(
            "synced",
            "a world agrees on its state",
            "step, rank, size, call, host, values, root, sent_bytes, reason",
            row=_never,
        ),
        EventKind(
            "rolled_back",
            "a worker returns to its last commit",
            "step, steps_lost, rank, call, host",
            level=WARN,
            says=_nothing,
        ),
        EventKind(
            "replayed",
            "the steps that a loss had cost have been executed again as they were",
            "steps, former (the ranks of the world that did them first), step, rank, size, call, host",
            hosts=(),
            says=lambda fields: f"{_shown(fields, 'steps')} steps of {_shown(fields, 'former')} ranks",
            line=lambda fields: (
                f"lost steps executed again as they were: {fields['steps']}, of a world of {fields['former']}"
            ),
        ),
        EventKind(
            "inherited",
            "a worker continues from the commit of the one before it in its slot",
            "step, number, rank, call, host",
            row=_never,
        ),
        EventKind(
            "call_ended",
            "a training call is over, and its result is kept for processes that come later, or cannot be",
            "call, step, bytes, kept, reason (why it was not)",
            row=lambda fields: fields.get("kept") is False,
            says=_not_kept,
        ),
        EventKind(
            "call_skipped",
            "a worker that came later skips a training call that is over",
            "call, step, rank, host",
            row=_never,
        ),
        EventKind(
            "sent",
            "a commit has gone from one agent to another",
            "source, host, slot, step, bytes, seconds, reason",
            shown_as="commit sent",
            hosts=("source", "host"),
            says=lambda fields: f"step {_shown(fields, 'step')}",
            note=_given_reason,
            line=lambda fields: (
                f"step {fields['step']} went from {fields['source']} to {_place(fields)}: {fields['reason']}"
            ),
        ),
        EventKind(
            "not_sent",
            "a commit could not be sent to a host, or no checkpoint loaded",
            "host, reason",
            level=WARN,
            attention=True,
            remedies=_NETWORK,
            line=_words("{reason}"),
        ),
        EventKind(
            "shares",
            "the ranks' shares of the global batch follow their measured speed",
            "rows (samples of each rank in a global batch), rows_before, sample_s (what each rank takes for a sample), "
            "name (of the sampler in the State), step, rank, size, call, host, reason",
            hosts=(),
            says=_shares,
            note=_given_reason,
            line=lambda fields: f"shares of the global batch: {_shares(fields)}: {_given_reason(fields)}",
        ),
        EventKind(
            "averaged",
            "ranks that train alone have averaged their weights",
            "weights (what each rank has contributed: samples, or steps if none counts them), stop (whether the world "
            "ends with it), step, rank, size, call, host",
            hosts=(),
            row=_never,
        ),
        EventKind(
            "deadline_missed",
            "hosts will be gone before the ranks can agree to let them go",
            "steps_lost, call, reason",
            row=_never,
        ),
        EventKind(
            "memory", "commits will not fit into the memory that is granted", "needed (bytes), call, reason", row=_never
        ),
        EventKind(
            "sealed",
            "a checkpoint is complete",
            "path, step, call, bytes, seconds (from the commit on), since_asked_s, not_resumable (why no job can "
            "resume from it, or null)",
            level=OK,
            says=_sealed,
            note=lambda fields: _shown(fields, "path"),
            counts=(
                Count("checkpoints", "Completed checkpoints"),
                Count("checkpoint_seconds", "Seconds from a commit to its completed checkpoint", "seconds"),
                Count("checkpoint_bytes", "Bytes of completed checkpoints", "bytes"),
            ),
        ),
        EventKind(
            "not_sealed",
            "a checkpoint is given up",
            "reason, again_s, call (if a process says so)",
            level=WARN,
            attention=True,
            remedies=_STORAGE,
            counts=(Count("checkpoints_given_up", "Checkpoints that were given up"),),
        ),
        EventKind(
            "interval",
            "how often commits or checkpoints are made changes",
            "seconds (of checkpoints) or calls (of commits: one in this many of commit()), reason",
        ),
        EventKind(
            "checkpoint_skipped",
            "a checkpoint on storage is damaged: an older one is tried",
            "host, reason",
            level=BAD,
            remedies=_do("An older one is tried. `hvd-elastic checkpoints verify DIR` says what is damaged."),
            line=_words("{host}: skipped a checkpoint: {reason}"),
        ),
        EventKind(
            "not_resumed",
            "a host cannot load a checkpoint",
            "host, reason",
            level=BAD,
            remedies=_do("Let {host} read the checkpoint, or leave it out: `hvd-elastic hosts block {host}`."),
        ),
        EventKind(
            "slept",
            "the job goes to sleep: all its processes have ended",
            "path, step, reason",
            level=WARN,
            remedies=_do("Add hosts: it wakes by itself when --min-np slots may work."),
            notify=Notification("slept", _words("sleeps: {reason}")),
            counts=(Count("sleeps", "Times that the job went to sleep"),),
        ),
        EventKind(
            "not_slept", "the job cannot sleep yet without loss", "reason", level=WARN, attention=True, remedies=_AGAIN
        ),
        EventKind(
            "released",
            "a sleeping job releases its workers",
            "replicas (asked for now), before, reason",
            line=_words("{reason}"),
        ),
        EventKind(
            "workers_requested",
            "a sleeping job asks the cluster for its workers",
            "replicas, reason",
            line=_words("{reason}"),
        ),
        EventKind(
            "workers_not_requested",
            "the cluster does not answer a request about workers",
            "reason",
            level=WARN,
            attention=True,
            remedies=_AGAIN,
            line=_words("{reason}"),
        ),
        EventKind(
            "woke",
            "a sleeping job has hosts again",
            "slept_s, reason",
            level=OK,
            counts=(Count("asleep_seconds", "Seconds asleep, of sleeps that are over", "slept_s"),),
            line=_words("awake again after {slept_s:.1f} s: {reason}"),
        ),
        EventKind(
            "resumed",
            "the job begins, or goes on, with a checkpoint",
            "path, step, call, host, slot, seconds, reason",
            level=OK,
            line=lambda fields: (
                f"training goes on after {_step_and_call(fields, ', in')}, with the checkpoint {fields['path']}"
            ),
        ),
        EventKind(
            "training_restarted",
            "no commit or checkpoint is left, and training starts from the beginning",
            "number, steps_lost, reason",
            level=BAD,
            remedies=_do(
                "No commit was left: --adopt or our State keeps commits, and --checkpoint-every auto keeps checkpoints "
                "that outlive all hosts."
            ),
            notify=Notification(
                "lost_steps", _words("training starts from the beginning: {reason}"), _words("restarted")
            ),
            counts=(Count("restarts_from_scratch", "Restarts of training without any commit or checkpoint"),),
            line=_words("training starts from the beginning (time {number}): {reason}"),
        ),
        EventKind(
            "not_resized",
            "the world stays as it is: the script has no elastic loop",
            "cause, reason",
            level=BAD,
            remedies=_do("Train in a function with @elastic.run: then hosts can come and go."),
            line=_words("{reason}"),
        ),
        EventKind(
            "scaled",
            "another number of hosts is asked for",
            "hosts, before, leaving, reason, trial, observed",
            label="hosts asked for",
            hosts=("leaving",),
            says=_number_of_hosts,
            note=_given_reason,
            line=_scaled,
            counts=(Count("requests_for_hosts", "Changes of the number of hosts that were asked for"),),
        ),
        EventKind(
            "scale_recommended",
            "another number of hosts is recommended",
            "hosts, reason, trial, observed",
            hosts=(),
            says=_number_of_hosts,
            note=_given_reason,
            line=lambda fields: f"{_counted(fields['hosts'], 'host')} recommended (--autoscale): {fields['reason']}",
        ),
        EventKind(
            "not_scaled",
            "a request for hosts has failed",
            "hosts, reason",
            level=WARN,
            attention=True,
            remedies=_AGAIN,
            hosts=(),
            says=_number_of_hosts,
            note=_given_reason,
            line=lambda fields: (
                f"{_counted(fields['hosts'], 'host')} cannot be requested now; the request is "
                f"repeated: {fields['reason']}"
            ),
            counts=(Count("failed_requests_for_hosts", "Requests for hosts that failed"),),
        ),
        EventKind("job_restarted", "a job that failed is started again", "number, pause_s, reason", level=WARN),
        EventKind(
            "finished",
            "the job has ended",
            "code, reason",
            label="end",
            note=lambda fields: f"exit code {_shown(fields, 'code') or '?'}",
            line=lambda fields: "" if fields["code"] else f"the job ends: {fields['reason']}",
            notify=Notification("finished", _end, _words("{code}")),
        ),
    )
}
"""All events of the journal. To write another one is an error of this package."""

BY_TITLE: Final[Mapping[str, EventKind]] = {kind.title: kind for kind in EVENTS.values()}
