"""The one way in which hosts are reached over ssh, by jobs and by the doctor alike. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_elastic_ext.core.hosts import name_error


@dataclass(frozen=True, slots=True)
class Ssh:
    """Options of ssh, as ``horovodrun`` takes them. ``directory`` is where commands run, on hosts that have it."""

    directory: Path
    port: int | None = None
    identity_file: str | None = None
    connect_timeout_s: int = 10

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` on ``host``. Raises ``ValueError`` for an unsafe host name."""
        problem = name_error(host)
        if problem is not None:
            raise ValueError(problem)
        return [
            "ssh",
            "-oBatchMode=yes",
            "-oStrictHostKeyChecking=no",
            f"-oConnectTimeout={self.connect_timeout_s}",
            # A host that went away silently must not hold an ssh, and with it a slot, for hours.
            "-oServerAliveInterval=5",
            "-oServerAliveCountMax=3",
            "-oControlMaster=no",
            *(["-p", str(self.port)] if self.port else []),
            *(["-i", self.identity_file] if self.identity_file else []),
            "--",
            host,
            # A host without this directory still runs commands given by absolute path, as with horovodrun.
            f"cd {shlex.quote(str(self.directory))} 2>/dev/null; exec {shlex.join(words)}",
        ]
