"""Engine ``mpirun``: the launcher starts one ``mpirun`` for each world.

It is Open MPI's own, on the launcher's machine, by the same ssh as agents are reached by. It starts
:mod:`hvd_elastic_ext.worker.engines.mpirun_rank` once for each rank, and nothing else: command, environment, output and
commits of a rank are its slot's, and do not pass through here. It outlives the launcher, as agents do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.commands import module_command
from hvd_elastic_ext.core.engines import MPI_INSTALL
from hvd_elastic_ext.core.messages.slot_protocol import MARK, RANK
from hvd_elastic_ext.io import core_dumps, process_tree
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.agents.transports.ssh import KNOWN_HOSTS, all_host_keys, shared_options

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh

log = logging.getLogger(__name__)


LOOK_S: Final = 0.2
"""Time between two checks whether ``mpirun`` has ended."""
EXIT_TIMEOUT_S: Final = 3.0
"""Time for an unneeded ``mpirun`` to exit, before and after SIGTERM."""
MAX_LOG_BYTES: Final = 64 << 10
"""Bytes of its output in which its first message is looked for."""
MPIRUN: Final = "mpirun"
_KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "SSH_AUTH_SOCK", "LANG")
"""Names that ``mpirun`` gets from the launcher's environment. It may pass on its whole environment."""
_ITS_OWN: Final = ("OMPI_", "PMIX_", "ORTE_", "PRTE_", "OPAL_", "LC_")


def why_not(engine: str) -> str | None:
    """Why an engine cannot be used on this machine, and what to do about it; None if it can."""
    if engine != MPIRUN:
        return None
    program = shutil.which("mpirun")
    if program is None:
        return f"--engine mpirun: there is no mpirun on this machine; {MPI_INSTALL}"
    try:
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30.0, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"--engine mpirun: {program} cannot be run: {error}"
    if "Open MPI" not in output:
        return f"--engine mpirun: {program} is not Open MPI's, whose options are used; {MPI_INSTALL}"
    return None


def hostfile(hosts: Sequence[str], is_near: Callable[[str], bool], *, here: str) -> str:
    """The host of each rank, a line each. Open MPI knows this machine by the name that it has itself."""
    return "".join(f"{here if is_near(host) else host}\n" for host in hosts)


def command(file: Path, size: int, *, generation: int) -> list[str]:
    """The command that starts the ranks of a world. The mark is passed by the name of its variable: all users can read
    command lines.
    """
    ranks = module_command(sys.executable, RANK)
    words = ["mpirun", "--wdir", "/", "--hostfile", os.fspath(file), "-np", str(size), "-x", MARK]
    return [*words, *ranks, str(generation)]


def environment(
    environ: Mapping[str, str], *, ssh: Ssh, interfaces: Sequence[str], mark: str, keys: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of ``mpirun``: the mark, no secrets of the job, and its options, unless the user has set them.

    ``keys``: options of ssh for hosts' keys. Open MPI splits the command at spaces, and uses one command for all hosts.
    """
    kept = {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_ITS_OWN)}
    words = ssh.command("host", [], keys=keys)
    options = {
        "rmaps": "seq",  # ranks in the order of the hostfile
        "plm_rsh_agent": " ".join(words[: words.index("--")]),
        "hwloc_base_binding_policy": "none",
        "rmaps_base_oversubscribe": "1",  # the number of a host's slots decides how many processes it has
        "orte_allowed_exit_without_sync": "1",  # ranks may leave by os._exit(0), one after the other
        "mpi_yield_when_idle": "1",  # processes that wait leave the cores to those that work
    }
    if interfaces:
        options |= {"btl_tcp_if_include": ",".join(interfaces), "oob_tcp_if_include": ",".join(interfaces)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return {**root, **{f"OMPI_MCA_{name}": value for name, value in options.items()}, **kept, MARK: mark}


def first_message(output: str) -> str:
    """The first line of ``mpirun``'s output, without frames. Later lines only guess at reasons."""
    lines = (line.strip() for line in output.splitlines())
    return next((line for line in lines if line.strip("-")), "")


class MpiRuns:
    """The ``mpirun`` of the newest world. ``ended`` is called at its end, with the world's number and the reason."""

    def __init__(
        self,
        folder: Path,
        *,
        mark: str,
        ssh: Ssh,
        interfaces: Sequence[str],
        is_near: Callable[[str], bool],
        ended: Callable[[int, str], None],
    ) -> None:
        self._folder = folder
        self._mark = mark
        self._ssh = ssh
        self._interfaces = interfaces
        self._is_near = is_near
        self._ended = ended
        self._running: list[subprocess.Popen[bytes]] = []
        """That of the newest world, and older ones that are about to end."""
        self._newest = -1
        """The number of the newest world."""
        self._left = False
        """Whether they go on without this launcher."""
        self._aside = BackgroundCalls(limit=1)
        self._watching: asyncio.Task[None] | None = None

    def begin(self, generation: int, hosts: Sequence[str]) -> None:
        """Start the ranks of a world, one on each of ``hosts``. Called in the loop."""
        self._forget()
        self._newest = generation
        self._watching = asyncio.get_running_loop().create_task(self._run(generation, hosts))

    async def _run(self, generation: int, hosts: Sequence[str]) -> None:
        file, log_file = self._folder / "mpirun.hosts", self._folder / "mpirun.log"
        keys = await self._keys(sorted({host for host in hosts if not self._is_near(host)}))
        try:
            text = hostfile(hosts, self._is_near, here=socket.gethostname())
            env = environment(os.environ, ssh=self._ssh, interfaces=self._interfaces, mark=self._mark, keys=keys)
            words = command(file, len(hosts), generation=generation)
            start = functools.partial(self._start, generation, words, env=env, file=file, text=text, log_file=log_file)
            process = await self._aside.call(start)  # its disk may not answer
            if process is None:
                return
        except OSError as error:
            self._ended(generation, f"mpirun cannot be started: {error}")
            return
        except Exception as error:
            log.exception("a defect of hvd-elastic: mpirun of world %d is not started", generation)
            self._ended(generation, f"mpirun cannot be started: {type(error).__name__}: {error}")
            return
        await self._watch(process, generation, log_file)

    def _start(
        self, generation: int, words: list[str], *, env: dict[str, str], file: Path, text: str, log_file: Path
    ) -> subprocess.Popen[bytes] | None:
        """In a thread: write its hostfile, and start it, unless it is no longer needed."""
        file.write_text(text)
        if generation != self._newest:
            return None
        with log_file.open("wb") as output:
            process = subprocess.Popen(
                words, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._running.append(process)
        core_dumps.allow(process.pid)  # the user decides about core dumps of ranks, which it starts
        if generation != self._newest:  # meanwhile there is a newer world
            _signal(process, signal.SIGTERM)
        if self._left:
            process_tree.hand_over(process)
        return process

    async def _keys(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Options of its ssh for the keys of ``hosts``: all known keys, in one file."""
        found = await all_host_keys(self._ssh, hosts)
        known = self._folder.absolute() / f"mpirun.{KNOWN_HOSTS}"
        files = [self._folder / KNOWN_HOSTS, *(Path(name) for keys in found for name in keys.files)]
        try:
            await self._aside.call(lambda: known.write_bytes(b"\n".join(map(_content, dict.fromkeys(files)))))
        except OSError as error:
            log.warning("%s cannot be written (%s): hosts are reached with what ssh itself knows of them", known, error)
            return ()
        return shared_options(found, known)

    async def end(self, *, everything: bool) -> None:
        """Stop watching it. ``everything``: the job is over, so end it too; else it goes on without this launcher."""
        self._forget_watching()
        if everything:
            self._newest = -1  # one that is just being started ends, too
            await self._end_all()
        self._left = True  # before the loop: the thread that starts one looks after it has added it
        for process in list(self._running):
            process_tree.hand_over(process)

    async def _end_all(self) -> None:
        """Wait for all of them, and end those that do not end by themselves."""
        for order in (None, signal.SIGTERM, signal.SIGKILL):
            if order is not None:
                self._signal_all(order)
            for _ in range(round(EXIT_TIMEOUT_S / LOOK_S)):
                self._reap()
                if not self._running:
                    return
                await asyncio.sleep(LOOK_S)

    def _forget(self) -> None:
        """End what is left of earlier worlds."""
        self._forget_watching()
        self._reap()
        self._signal_all(signal.SIGTERM)

    def _reap(self) -> None:
        for process in list(self._running):  # the thread that starts one adds to it
            if process.poll() is not None:
                self._running.remove(process)

    def _signal_all(self, order: int) -> None:
        for process in list(self._running):
            _signal(process, order)

    def _forget_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self, process: subprocess.Popen[bytes], generation: int, log_file: Path) -> None:
        while (code := process.poll()) is None:
            await asyncio.sleep(LOOK_S)
        with contextlib.suppress(OSError):
            words = first_message(await self._aside.call(functools.partial(_head, log_file)))
            log.info("mpirun of world %d has ended with %d: %s", generation, code, words)
            self._ended(generation, f"mpirun has ended with exit code {code}: {words or 'no output'}")


def _head(log_file: Path) -> str:
    with log_file.open("rb") as file:
        return file.read(MAX_LOG_BYTES).decode("utf-8", "replace")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
