"""``hvd-elastic dashboard``: serve the page of jobs, or write it into a file.

The address is open only on this machine, unless ``--listen`` says more, and its token is printed with it. ``run
--dashboard`` starts this command as a child, with a socket that is open already (``--inherit``); the child ends when
the pipe from its launcher closes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard import guard
from hvd_elastic_ext.dashboard.files import CHARTS, LIBRARY, library
from hvd_elastic_ext.dashboard.jobs import Jobs
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli.dashboard import PORT, VARIABLE, listening, page_url
from hvd_elastic_ext.launcher.options.settings import listen_address

if TYPE_CHECKING:
    from hvd_elastic_ext.dashboard.namespace import Namespace

ENDS_S: Final = 1
"""Seconds to close open pages at the end."""


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic dashboard``."""
    options = Parser(
        prog="hvd-elastic dashboard", description="Show jobs on a live page: their state, and the reasons."
    )
    options.add_argument(
        "jobs",
        metavar="JOB",
        nargs="*",
        help="a job's name, its folder, or its journal (default: all jobs here, also ended ones)",
    )
    options.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help=f"where to serve it (default: port {PORT} for this machine only, or any that is free)",
    )
    options.add_argument(
        "--export", metavar="FILE.html", type=Path, help="write the page of one job into a file instead, and end"
    )
    options.add_argument(
        "--run", metavar="N", type=int, help="with --export: number of the run, from 1 (default: the newest)"
    )
    options.add_argument(
        "--state-dir", metavar="DIR", type=Path, help="the job's folder, if its journal lies elsewhere"
    )
    cluster = options.add_argument_group("jobs of a cluster, beside those here")
    cluster.add_argument("-n", "--namespace", metavar="NAME", help="list the jobs of this namespace, too")
    cluster.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: as kubectl finds it")
    options.add_argument("--inherit", metavar="FD", type=int, help=argparse.SUPPRESS)
    return options


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted. Raises :class:`UsageError` for a job that cannot be shown."""
    options = parser().parse_args(argv)
    on_cluster = options.namespace is not None or options.kubeconfig is not None
    if options.run is not None and options.export is None:
        raise UsageError("--run is for --export FILE: the live page shows the newest run")
    if on_cluster and options.export is not None:
        raise UsageError("--export writes the page of a job whose journal is here; leave -n and --kubeconfig out")
    jobs = Jobs(options.jobs, folder=options.state_dir, may_be_none=on_cluster)
    if options.export is not None:
        from hvd_elastic_ext.dashboard.export import export

        if options.run is not None and options.run < 1:
            raise UsageError(f"--run {options.run}: runs are counted from 1")
        summary = export(jobs.get(""), options.export, run=options.run)
        charts = "" if library(LIBRARY[0]) else f", without charts, which need {CHARTS}: pip install {CHARTS}"
        sys.stderr.write(f"hvd-elastic dashboard: wrote {options.export}{charts}\n")
        sys.stdout.write(summary + "\n")
        return 0
    check_libraries()
    importlib.import_module("hvd_elastic_ext.dashboard.server")  # slow, so before the address is printed
    if options.inherit is not None:
        with socket.socket(fileno=options.inherit) as served:
            _serve(jobs, served, os.environ[VARIABLE], ends_with_stdin=True)
        return 0
    namespace = None
    if on_cluster:
        from hvd_elastic_ext.dashboard import namespace as namespaces

        namespace = namespaces.of(options.namespace or "", options.kubeconfig)
    token = guard.new_token()
    address = None if options.listen is None else listen_address(options.listen, where="--listen")
    with listening(address, where="--listen") as served:
        sys.stdout.write(f"{page_url(served, token)}{'/jobs' if on_cluster else ''}\n")
        sys.stdout.flush()
        _serve(jobs, served, token, ends_with_stdin=False, namespace=namespace)
    return 0


def check_libraries() -> None:
    """Raise :class:`UsageError` if the packages for the server or the charts are not installed."""
    missing = [name for name in ("starlette", "uvicorn", CHARTS) if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs {', '.join(missing)}; pip install {' '.join(missing)} "
            "(--export FILE.html needs none of them, and has no charts without bokeh)"
        )


def _serve(
    jobs: Jobs, served: socket.socket, token: str, *, ends_with_stdin: bool, namespace: Namespace | None = None
) -> None:
    from hvd_elastic_ext.dashboard.guests import Guests, serve
    from hvd_elastic_ext.dashboard.server import app_of

    names = {socket.gethostname(), socket.getfqdn(), str(served.getsockname()[0])}
    guests = Guests()
    app = app_of(jobs, token=token, names=names, guests=guests, namespace=namespace)

    async def serves() -> None:
        ends, loop = asyncio.Event(), asyncio.get_running_loop()
        if ends_with_stdin:
            threading.Thread(
                target=_end_with_stdin, args=(lambda: loop.call_soon_threadsafe(ends.set),), daemon=True
            ).start()
        await serve(
            app,
            served,
            guests,
            ends=ends,
            log_level="error",  # whatever strangers send would be a line each
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=ENDS_S,
        )

    asyncio.run(serves())


def _end_with_stdin(end: Callable[[], object]) -> None:
    """End when the launcher ends: the pipe from it closes then."""
    while os.read(0, 4096):
        pass
    end()
