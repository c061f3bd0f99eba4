"""The message from the daemon to the launcher: hosts that can be used, and hosts about to go.

Two forms, both directions each:

* *hosts-file text*, ``host:slots`` lines and nothing else, which stock Horovod reads too;
* *push JSON*, which also carries departures, node names, pod UIDs and lives of pods.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from hvd_elastic_ext.core.errors import BadHosts, BadPublication
from hvd_elastic_ext.core.hosts import MAX_SLOTS, Host, HostSet, name_error
from hvd_elastic_ext.core.json_text import to_text

FORMAT = 1
"""Version of the push JSON. Readers refuse a higher one and ignore keys they do not know."""
_BLANKS: Final = " \t\r"
_MPI_SLOTS: Final = re.compile(r"(?<!\S)slots *= *(\S*)")


@dataclass(frozen=True, slots=True)
class Departure:
    """A host that is about to go. ``reason``: text for users; ``deadline``: Unix seconds, if known."""

    host: str
    reason: str
    deadline: float | None = None

    def __post_init__(self) -> None:
        problem = name_error(self.host)
        if problem is not None:
            raise ValueError(problem)


@dataclass(frozen=True, slots=True)
class Publication:
    """One complete list of the hosts from one source."""

    source: str
    """Identifies one run of one publisher."""
    sequence: int
    """Grows with every publication of that run."""
    hosts: HostSet
    departing: tuple[Departure, ...] = ()
    """Hosts that are not in :attr:`hosts` any more, and why."""

    def __post_init__(self) -> None:
        staying = self.hosts.by_name
        both = [d.host for d in self.departing if d.host in staying]
        if both:
            raise ValueError(f"host {both[0]!r} is published as usable and as departing; it can be one of them")

    def supersedes(self, other: Publication | None) -> bool:
        """Return False if this is a late or repeated push from the source of ``other``."""
        return other is None or self.source != other.source or self.sequence > other.sequence

    def has_same_content(self, other: Publication | None) -> bool:
        """Whether hosts and departures are equal; ``source`` and ``sequence`` do not count."""
        return other is not None and (self.hosts, self.departing) == (other.hosts, other.departing)


def parse_hosts_line(line: str, *, default_slots: int | None = None) -> Host:
    """Read one ``host:slots`` line; ``default_slots`` is used for a bare ``host``.

    Raises ``ValueError`` saying what is wrong.
    """
    mpi = _mpi_words(line)
    if mpi is not None and name_error(mpi[0]) is None and mpi[1].isdigit() and len(mpi[1]) <= 6:
        raise ValueError(f"{_shown(line)} is a line for mpirun or --hostfile; write {mpi[0]}:{mpi[1]}")
    if any(c.isspace() for c in line):
        raise ValueError(f"{_shown(line)} contains white space; write host:slots, nothing else")
    name, colon, slots = line.rpartition(":")
    if not colon:
        problem = name_error(line)
        if problem is not None:
            raise ValueError(problem)
        if default_slots is None:
            raise ValueError(f"{line!r} has no slots; write {line}:N, N being how many processes it runs")
        return Host(line, default_slots)
    return _host(name, slots)


def parse_mpi_line(line: str) -> Host:
    """Read one ``host slots=N`` line, as ``mpirun`` and ``--hostfile`` have them; other words, such as ``max_slots=N``,
    mean nothing here. Raises ``ValueError`` saying what is wrong.
    """
    mpi = _mpi_words(line)
    if mpi is not None:
        return _host(*mpi)
    try:
        host = parse_hosts_line(line, default_slots=1)
    except ValueError:
        raise ValueError(f"{_shown(line)} cannot be read; write lines of the form 'name slots=N'") from None
    if ":" in line:
        write = f"write '{host.name} slots={host.slots}', or give the file as --hosts-file"
        raise ValueError(f"{_shown(line)} is a line for --hosts-file; {write}")
    raise ValueError(f"{line!r} has no slots; write '{line} slots=N', N being how many processes it runs")


def _mpi_words(line: str) -> tuple[str, str] | None:
    """Name and slots in a line for mpirun, not checked; None if it is not of that form."""
    name, _, rest = line.replace("\t", " ").partition(" ")
    slots = _MPI_SLOTS.search(rest)
    return None if slots is None else (name, slots[1])


def _host(name: str, slots: str) -> Host:
    problem = name_error(name)
    if problem is not None:
        raise ValueError(problem)
    if not (slots.isascii() and slots.isdigit()):
        raise ValueError(f"host {name!r} has slots {_shown(slots)}; write a whole number of at least 1")
    if len(slots) > 6 or int(slots) > MAX_SLOTS:
        raise ValueError(
            f"host {name!r} has {slots[:12]}{'…' if len(slots) > 12 else ''} slots; the most allowed is {MAX_SLOTS}"
        )
    return Host(name, int(slots))


def parse_hosts_text(text: str, *, where: str, default_slots: int | None = None) -> HostSet:
    """Read a hosts file. Passed over are blank lines, comments (``#`` and the rest of its line), blanks at the ends of
    lines and a byte-order mark.

    ``where`` names the file in errors. Raises :class:`BadHosts` naming the first
    bad line and counting the others: a list with one bad line is not a list.
    """
    return _parsed(text, where, functools.partial(parse_hosts_line, default_slots=default_slots))


def parse_mpi_text(text: str, *, where: str) -> HostSet:
    """Read a host file of ``mpirun``, as :func:`parse_hosts_text` reads a hosts file."""
    return _parsed(text, where, parse_mpi_line)


def _parsed(text: str, where: str, parse_line: Callable[[str], Host]) -> HostSet:
    hosts: dict[str, tuple[Host, int]] = {}
    first: tuple[int, str] | None = None
    problems = 0
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.partition("#")[0].strip(_BLANKS)
        if not line.strip():
            continue
        try:
            host = parse_line(line)
        except ValueError as error:
            first, problems = first or (number, str(error)), problems + 1
            continue
        if host.name in hosts:
            why = f"host {host.name!r} was listed in line {hosts[host.name][1]} already; give each host once"
            first, problems = first or (number, why), problems + 1
            continue
        hosts[host.name] = (host, number)
    if first is not None:
        number, why = first
        raise BadHosts(where, number, why, more=problems - 1)
    return HostSet(tuple(host for host, _ in hosts.values()))


def parse_hosts_option(value: str, *, where: str, default_slots: int | None = None) -> HostSet:
    """Read ``a:4,b:4`` as given on a command line. Raises :class:`BadHosts`."""
    try:
        parts = [part.strip(_BLANKS) for part in value.split(",")]
        return HostSet(tuple(parse_hosts_line(part, default_slots=default_slots) for part in parts))
    except ValueError as error:
        raise BadHosts(where, None, str(error)) from None


def render_hosts_text(hosts: Iterable[Host]) -> str:
    """Write the hosts file: bare ``host:slots`` lines, empty for no hosts."""
    return "".join([f"{host.name}:{host.slots}\n" for host in hosts])


def to_json(publication: Publication) -> str:
    """Write the push form, on one line."""
    return to_text(
        {
            "format": FORMAT,
            "source": publication.source,
            "sequence": publication.sequence,
            "hosts": [_host_out(host) for host in publication.hosts],
            "departing": [{"host": d.host, "reason": d.reason, "deadline": d.deadline} for d in publication.departing],
        }
    )


def from_json(text: str | bytes, *, where: str) -> Publication:
    """Read the push form. Raises :class:`BadPublication` naming ``where`` and what is wrong."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPublication(f"{where}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadPublication(f"{where}: a publication is a JSON object, not {type(document).__name__}")
    if document.get("format") != FORMAT:
        raise BadPublication(
            f"{where}: publication format {_shown(document.get('format'))}; this program reads {FORMAT}, "
            "use the same release of hvd-elastic-ext on both sides"
        )
    try:
        return Publication(
            source=_typed(document, "source", str),
            sequence=_typed(document, "sequence", int),
            hosts=HostSet(tuple(_host_in(entry) for entry in _typed(document, "hosts", list))),
            departing=tuple(_departure_in(entry) for entry in _typed(document, "departing", list)),
        )
    except ValueError as error:
        raise BadPublication(f"{where}: {error}") from None


_TEXTS: Final = tuple(field.name for field in fields(Host) if field.default == "")
"""Optional fields of a host beside its name and slots: texts, "" if unknown."""


def _host_out(host: Host) -> dict[str, Any]:
    texts = {name: text for name in _TEXTS if (text := getattr(host, name))}
    return {"name": host.name, "slots": host.slots, **texts}


def _host_in(entry: object) -> Host:
    if not isinstance(entry, dict):
        raise ValueError(f"a host is a JSON object, not {_shown(entry)}")
    texts = {name: _typed({name: "", **entry}, name, str) for name in _TEXTS}
    return Host(_typed(entry, "name", str), _typed(entry, "slots", int), **texts)


def _departure_in(entry: object) -> Departure:
    if not isinstance(entry, dict):
        raise ValueError(f"a departure is a JSON object, not {_shown(entry)}")
    deadline = entry.get("deadline")
    if deadline is not None and not _is_unix_seconds(deadline):
        raise ValueError(f"deadline {_shown(deadline)} is not a number of Unix seconds")
    return Departure(
        host=_typed(entry, "host", str),
        reason=_typed({"reason": "", **entry}, "reason", str),
        deadline=None if deadline is None else float(deadline),
    )


def _is_unix_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e12  # false for NaN, milliseconds, and integers that no float can hold


def _shown(value: object) -> str:
    """Return the ``repr``, cut such that it fits into an error of one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _typed(entry: dict[str, Any], key: str, kind: type) -> Any:
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key!r} must be {kind.__name__}, not {_shown(value)}")
    return value
