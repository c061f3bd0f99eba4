"""``hvd-elastic doctor``: what would break a job here, and how to repair it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.core.publication import parse_hosts_text
from hvd_elastic_ext.io.file_watch import MAX_BYTES
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import read_given
from hvd_elastic_ext.launcher.cli.doctor.findings import Finding, breaks_a_job, judge
from hvd_elastic_ext.launcher.cli.doctor.probes import SshAccess, gather

LEFT_OUT: Final = (
    "not checked: what only a job on several machines needs; name them with --host HOST or --hosts-file PATH"
)
STYLES: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def main(argv: Sequence[str]) -> int:
    """Check and report. Return 0 if nothing would break a job, 1 if something would, 2 for wrong usage."""
    options = build_parser().parse_args(list(argv))
    hosts = wanted_hosts(options.host, options.hosts_file)
    reach = SshAccess(options.ssh_port, options.ssh_identity_file, options.python)
    alone = is_alone(hosts, os.environ)
    findings = judge(gather(hosts, reach, directory=Path.cwd()), local=options.local or alone)
    report(findings, sys.stdout, as_json=options.json, left_out=LEFT_OUT if alone and not options.local else "")
    return 1 if breaks_a_job(findings) else 0


def is_alone(hosts: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether nothing says that jobs here need other machines: no host is named, and this is not a pod of a cluster.
    Pure."""
    return not hosts and not environ.get("KUBERNETES_SERVICE_HOST")


def build_parser() -> argparse.ArgumentParser:
    """All options, documented."""
    parser = Parser(
        prog="hvd-elastic doctor",
        description="Check this machine, and the given hosts, for what would break a job, and print the remedies. "
        "Nothing is changed. Exit code 0: nothing would break a job; 1: something would.",
    )
    parser.add_argument("--host", action="append", default=[], metavar="HOST", help="check this host too (repeatable)")
    parser.add_argument("--hosts-file", metavar="PATH", help="check each host of a file of host:slots lines")
    parser.add_argument(
        "--local",
        action="store_true",
        help="the job stays on this machine: needs of others are notes (default if no host is named, but in a pod)",
    )
    parser.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="port of sshd on the hosts (default: ssh's own)"
    )
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key to use (default: ssh's own)")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter on the hosts (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def wanted_hosts(named: Sequence[str], hosts_file: str | None) -> tuple[str, ...]:
    """The hosts to look at, each once. Raises :class:`UsageError` or :class:`BadHosts` for what is not a host name."""
    for name in named:
        problem = name_error(name)
        if problem is not None:
            raise UsageError(f"--host: {problem}")
    listed: tuple[str, ...] = ()
    if hosts_file is not None:
        try:
            text = read_given(hosts_file, most=MAX_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(
                f"--hosts-file {hosts_file} cannot be read: {why}; name a text file of host:slots lines"
            ) from None
        listed = parse_hosts_text(text, where=hosts_file, default_slots=1).names
    return tuple(dict.fromkeys([*named, *listed]))


def report(findings: Sequence[Finding], out: TextIO, *, as_json: bool, left_out: str = "") -> None:
    """Write JSON, a table on a terminal, or plain lines. ``left_out``: what was not checked, in one line."""
    if as_json:
        document: dict[str, Any] = {
            "ok": not breaks_a_job(findings),
            "findings": [dataclasses.asdict(f) for f in findings],
            **({"left_out": left_out} if left_out else {}),
        }
        out.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    if out.isatty():
        _table(findings, out)
    else:
        out.write("".join(plain(finding) + "\n" for finding in findings) + summary(findings) + "\n")
    out.write(f"{left_out}\n" if left_out else "")


def plain(finding: Finding) -> str:
    """One line."""
    parts = [f"{finding.level:<8}{finding.what}"]
    if finding.why:
        parts.append(finding.why)
    if finding.remedy:
        parts.append(f"remedy: {finding.remedy}")
    return "; ".join(parts)


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    count = {level: sum(f.level == level for f in findings) for level in STYLES}
    if count["error"]:
        return f"{_counted(count['error'], 'thing')} would break a job"
    return "nothing here would break a job" + (f"; {_counted(count['warning'], 'warning')}" if count["warning"] else "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(findings: Sequence[Finding], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for f in findings:
        text = Text(f.what)
        if f.why:
            text.append(f"\n{f.why}", "dim")
        if f.remedy:
            text.append(f"\nremedy: {f.remedy}")
        table.add_row(Text(f.level, STYLES[f.level]), text)
    console = Console(file=out)
    console.print(table)
    console.print(Text(summary(findings), STYLES["error" if breaks_a_job(findings) else "ok"]))
