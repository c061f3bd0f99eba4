"""What agents get of a job's options, and the environment of its training processes. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.core.messages.slot_protocol import (
    COLLECTIVES,
    ENGINE,
    JOB,
    MARK,
    NOTICE_FILE,
    PROGRAM,
)
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN
from hvd_elastic_ext.launcher.agents.transports.child_process import MAX_INPUT_BYTES
from hvd_elastic_ext.launcher.options.settings import NO_CLOUD

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.membership.rendezvous import Seat
    from hvd_elastic_ext.launcher.options.settings import RunSettings


MAX_ENVIRONMENT_BYTES: Final = MAX_INPUT_BYTES - (64 << 10)
"""Most bytes of environment and command as JSON. The rest of an agent's input line is for our own fields."""
_NOT_EXPORTED: Final = re.compile(
    r"BASH_FUNC.*|.*\(\)|OLDPWD|HOROVOD_(RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|GLOO_RENDEZVOUS.*)"
    rf"|{OBSERVE_TOKEN}"
)
"""Names that are not passed on: shell functions, OLDPWD, variables that a process gets at the rendezvous, and a token
that only the launcher uses.
"""
CRASHING: Final[Mapping[str, str]] = {
    "HOROVOD_AUTOTUNE": "Horovod crashes on the first resize with autotuning (horovod#2835)",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "Horovod crashes on the first resize with process sets (horovod#4021)",
}
"""Horovod's own switches that crash an elastic job."""


FIXED: Final[Mapping[str, str]] = {
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    **dict.fromkeys(CRASHING, "0"),  # a remote host's own environment may turn them on
    "PYTHONUNBUFFERED": "1",
}


def why_not_elastic(environ: Mapping[str, str]) -> str | None:
    """Say which switch in the environment cannot be used in an elastic job, and why, or None if all can."""
    for name, why in CRASHING.items():
        if _is_on(environ.get(name, "")):
            return f"{name}={environ[name]} cannot be used in an elastic job: {why}; unset {name}"
    return None


def too_large(environ: Mapping[str, str], command: Sequence[str]) -> str | None:
    """Why environment and command do not fit into one line to an agent, and what takes most; None if they do."""
    sizes = {f"the variable {name}": len(to_text({name: value})) for name, value in environ.items()}
    sizes["the command"] = len(to_text(list(command)))
    total, largest = sum(sizes.values()), max(sizes, key=lambda what: sizes[what])
    if total <= MAX_ENVIRONMENT_BYTES:
        return None
    return (
        f"environment and command take {total} bytes as JSON, and {MAX_ENVIRONMENT_BYTES} can be passed on to the hosts"
        f"; make {largest} shorter: it takes {sizes[largest]}"
    )


def _is_on(text: str) -> bool:
    """As Horovod reads its switches: by the number that the text begins with."""
    digits = re.match(r"\s*\+?(\d+)", text)
    return digits is not None and int(digits[1]) > 0


def job_env(environ: Mapping[str, str], tuning: Mapping[str, str], *, hook: str) -> dict[str, str]:
    """Environment of every process of a job. It may hold secrets, so agents get it on standard input only.

    ``hook``: the folder of the import hook, which goes first on ``PYTHONPATH``.
    """
    own = {name: value for name, value in environ.items() if not _NOT_EXPORTED.fullmatch(name)}
    path = [hook, *(entry for entry in own.get("PYTHONPATH", "").split(":") if entry and entry != hook)]
    return {**own, **FIXED, **tuning, "PYTHONPATH": ":".join(path)}


def agent_options(settings: RunSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """What agents read of the job's options, in the words of a welcome. It travels over a connection that others may
    read.
    """
    options = settings.options
    return {
        "orphan_grace_s": options.orphan_grace_s,
        "notices_from": None if settings.notices.source == NO_CLOUD else settings.notices.source,
        "metadata_url": settings.notices.url,
        "notice_file": environ.get(NOTICE_FILE) or None,
        "metrics": None if settings.agent_metrics is None else str(settings.agent_metrics),
        "observe": options.scaling is not None or settings.dashboard is not None,
    }


def process_env(settings: RunSettings) -> dict[str, str]:
    """What processes read of the job's options."""
    own = {"HVD_ELASTIC_HEARTBEAT_INTERVAL": f"{settings.heartbeat_interval_s:g}"}
    for name, wanted in (
        ("HVD_ELASTIC_ADOPT", settings.adopt),
        ("HVD_ELASTIC_REPLAY", settings.replay),
        ("HVD_ELASTIC_LAST_COMMIT", settings.options.durability is not None),
    ):
        own |= {name: "1"} if wanted else {}
    return own


def seat_env(seat: Seat, place: Place, *, incarnation: int) -> dict[str, str]:
    """Environment in the order to start a process, over a connection that others may read.

    ``place``: the ranks and sizes that user code sees until there is a world.
    """
    return {
        "HOROVOD_HOSTNAME": seat.host,
        "HVD_ELASTIC_PLAN": place.text(),
        "HVD_ELASTIC_INCARNATION": str(incarnation),
    }


def interface_of(facts: Mapping[str, Any], *, here: bool, outward: str | None, given: Iterable[str]) -> str | None:
    """Network interface that a host's processes use among one another; None leaves the choice to Gloo.

    ``given``: ``--network-interfaces``. ``here``: the host is this machine; ``outward``: the interface from here to
    other hosts. A remote host uses the one through which it reached the launcher.
    """
    known = facts.get("interfaces") or {}
    chosen = next((name for name in given if name in known), None)
    if chosen is not None:
        return chosen
    found = outward if here else facts.get("via")
    return str(found) if found else None


def other_code(facts: Mapping[str, Any], sha256: str) -> str | None:
    """Why a host does not have the code that the launcher's machine has, and what to do about it; None if it has."""
    report = facts.get("code")
    found = report if isinstance(report, Mapping) else {}
    if not sha256 or found.get("sha256") == sha256:
        return None
    if "sha256" not in found:
        return (
            f"it does not have the code of --code: {found.get('problem') or 'its agent does not say'}; bring it there"
        )
    there = str(found["sha256"])[:8]
    return f"it has other code in {found.get('folder')} ({there}…, here {sha256[:8]}…); bring the same to every host"


def unfit(
    facts: Mapping[str, Any], expected: Mapping[str, str | None], *, on_one_machine: bool, code: str = ""
) -> str | None:
    """Why a host cannot take part, and what to do about it; None if it can.

    ``expected``: versions on the launcher's machine by package, None where it is absent. ``on_one_machine``: all
    hosts are this machine, so that a name which leads to loopback does no harm. ``code``: the checksum of ``--code``.
    """
    if (other := other_code(facts, code)) is not None:
        return other
    versions = facts.get("versions")
    if isinstance(versions, Mapping):
        for package, version in expected.items():
            there = versions.get(package)
            if version is not None and there != version:
                found = f"has {package} {there}" if there else f"has no {package}"
                return f"it {found}, the launcher's machine has {version}; install the same on every host"
    addresses, name = facts.get("addresses"), facts.get("hostname")
    if addresses == [] and "does not resolve" in str(facts.get("resolving")) and expected.get("horovod") is not None:
        return (
            f"its own name {name!r} does not resolve there, and Horovod's Gloo crashes then; "
            "map the name to the host's network address in its /etc/hosts"
        )
    if (
        not on_one_machine
        and isinstance(addresses, list)
        and addresses
        and all(str(a).startswith("127.") for a in addresses)
    ):
        return (
            f"its own name {name!r} leads to {addresses[0]} there, and Horovod would tell its peers that address; "
            "map the name to the host's network address in its /etc/hosts"
        )
    return None


# --- what an agent starts in a slot


def slot_command(engine: str, command: Sequence[str]) -> tuple[str, ...]:
    """The job's command, or a program that stands by until the rank of that command is known."""
    return tuple(command) if ENGINES[engine].in_place else (*module_command(sys.executable, PROGRAM), *command)


def slot_env(engine: str, *, job: str, mark: str) -> dict[str, str]:
    """Environment of that program. It holds no secret: orders are not encrypted."""
    if ENGINES[engine].in_place:
        return {} if ENGINES[engine].needs_horovod else {COLLECTIVES: engine}
    return {ENGINE: engine, JOB: job, MARK: mark}


def mark_of(key: bytes) -> str:
    """A mark by which a host tells jobs apart. It is derived from the job's key and does not reveal it."""
    return hmac.new(key, b"ranks", hashlib.sha256).hexdigest()[:32]
