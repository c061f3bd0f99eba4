"""Where the daemon publishes: the options, the settings that they make, and the places that these make.

Another place is a class like :class:`~discover.publish.files.HostsFile`, a field of :class:`Outputs` with its option,
and its line in :meth:`Outputs.files`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from discover.publish.files import HostsFile, Publisher, Script
from discover.publish.overlap import Overlap
from discover.publish.server import Address, parse_listen
from hvd_elastic_ext.core.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all places."""
    group = parser.add_argument_group("where they are published")
    group.add_argument(
        "--publish-to",
        "--hosts-file",
        dest="hosts_file",
        metavar="PATH",
        help="file to replace whenever the hosts change (--hosts-file is its older name)",
    )
    group.add_argument("--script", metavar="PATH", help="executable to write that prints the hosts file")
    group.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="serve HTTP on unix:///path, HOST:PORT, or :PORT (127.0.0.1 only); may be repeated",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where to publish."""

    hosts_file: Path | None = None
    script: Path | None = None
    """A script that prints ``hosts_file``."""
    listen: tuple[Address, ...] = ()
    """Addresses to serve HTTP on."""

    def __post_init__(self) -> None:
        if self.script is not None and self.hosts_file is None:
            raise UsageError("--script prints a hosts file; name it with --publish-to PATH")
        if self.script is not None and self.script == self.hosts_file:
            raise UsageError(f"--script and --publish-to both name {self.script}; they are two files")
        twice = next((each for at, each in enumerate(self.listen) if each in self.listen[:at]), None)
        if twice is not None:
            raise UsageError(f"--listen {twice} is given twice; leave one of them out")

    @classmethod
    def of(cls, options: argparse.Namespace, path: Callable[[str, str], Path]) -> Outputs:
        """The places that ``options`` name. ``path``: reads the value of an option. Raises :class:`UsageError`."""
        return cls(
            hosts_file=None if options.hosts_file is None else path(options.hosts_file, "--publish-to"),
            script=None if options.script is None else path(options.script, "--script"),
            listen=tuple(parse_listen(each) for each in options.listen or ()),
        )

    @property
    def written(self) -> tuple[Path, ...]:
        """All files that are written."""
        return tuple(path for path in (self.hosts_file, self.script) if path is not None)

    def files(self, *, wrote: Callable[[], None], overlap: Overlap | None) -> list[Publisher]:
        """The places that are files. ``wrote``: called after each write; ``overlap``: of the hosts file."""
        places: list[Publisher] = []
        if self.hosts_file is not None:
            hosts_file = HostsFile(self.hosts_file, wrote=wrote, overlap=overlap)
            if self.script is not None:  # first, so that the script exists when the hosts file appears
                places.append(Script(self.script, hosts_file=hosts_file.path, wrote=wrote))
            places.append(hosts_file)
        return places
