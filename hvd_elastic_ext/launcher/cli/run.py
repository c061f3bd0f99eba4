"""``hvd-elastic run``: one job, from its settings to its exit code."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext import __version__
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.events import BAD, EVENTS, WARN, Fields
from hvd_elastic_ext.core.journal import Journal, Sink
from hvd_elastic_ext.core.secrets import is_secret_name
from hvd_elastic_ext.io import core_dumps
from hvd_elastic_ext.io.append_file import QueuedLines
from hvd_elastic_ext.io.own_files import make_folder
from hvd_elastic_ext.io.threads.beside import report
from hvd_elastic_ext.launcher.agents.capacity import far_too_few_files, raise_file_limit
from hvd_elastic_ext.launcher.checkpoints import finished
from hvd_elastic_ext.launcher.cli import dashboard, run_options, starting
from hvd_elastic_ext.launcher.cli.listeners import Listeners, listeners
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.folder import handover, state_folder
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.job import finished_check
from hvd_elastic_ext.launcher.job.mpirun import MPIRUN
from hvd_elastic_ext.launcher.job.output import Log, Outlets
from hvd_elastic_ext.launcher.job.standard_input import StandardInput
from hvd_elastic_ext.launcher.options.program import LOCAL_NAMES
from hvd_elastic_ext.launcher.options.settings import (
    CHECKPOINTS,
    RunSettings,
)
from hvd_elastic_ext.launcher.sources.hosts import (
    FixedSource,
    HostFeed,
    HostsFileSource,
    HostSource,
    PushSource,
    ScriptSource,
)

log = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Garbage collection is rare: the launcher makes few cycles, and a collection reads the state of all workers."""
PERMANENT_ERRORS: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors of a folder that last. (``/proc`` gives ENOENT for names that cannot be made there.)"""


def main(argv: Sequence[str]) -> int:
    """Run a job. Raises :class:`ElasticError` with its exit code for every end but success."""
    # Until the job handles signals, a signal only has to end this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    core_dumps.forbid()
    settings = run_options.parse(argv, os.environ)
    with Outlets(sys.stdout, sys.stderr) as outlets:

        def write(text: str) -> None:
            starting.clear()
            outlets.stderr(text)

        handler = Log(write, without_waits=lambda: outlets.shows_status)
        logging.basicConfig(format="hvd-elastic: %(message)s", handlers=[handler])
        logging.getLogger("hvd_elastic_ext").setLevel(settings.log_level)
        check_open_files(settings)
        _run(settings, outlets)
    return 0


def check_open_files(settings: RunSettings) -> None:
    """Raise the soft limit of open files. Raises :class:`UsageError` if the hard one is too low for any job."""
    hosts = settings.sources.hosts
    here = sum(host.slots for host in hosts or () if host.name in LOCAL_NAMES)
    problem = far_too_few_files(raise_file_limit(1), hosts=1, slots_here=here)
    if problem is not None:
        raise UsageError(problem)


class _EndedAtOnce(SystemExit):
    """Not a subclass of ``Exception``, so that a library that is being imported does not handle it."""


def _end_at_once(number: int, _: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"hvd-elastic run: stopped by {signal.Signals(number).name}; nothing was started\n".encode())
    raise _EndedAtOnce(128 + number)


def _run(settings: RunSettings, outlets: Outlets) -> None:
    """Run the job, unless it is done already."""
    with state_folder.StateDir(settings.state_dir) as folder:  # before the journal, which another launcher may write
        fresh = handover.name_of(time.time(), secrets.randbits(16))
        saved = handover.started(folder.load(), fresh=fresh, resume=settings.resume)
        done = _finished(settings, saved)
        log = logging.getLogger(__name__)
        if (unused := unused_checkpoints(settings, saved)) is not None:
            log.warning("%s", unused)
        if settings.unknown_keys is not None:
            log.warning("%s", settings.unknown_keys)
        if settings.engine_note:
            log.warning("%s", settings.engine_note)
        if settings.options.misplaced is not None:
            log.warning(
                "%s, unless it is meant for the script, which gets it now (-- before the script leaves this line out)",
                settings.options.misplaced,
            )
        if done is None:
            _run_with_journal(settings, folder, saved, outlets)
        else:
            log.warning("%s", done)


def unused_checkpoints(settings: RunSettings, saved: Saved) -> str | None:
    """A warning that training starts from the beginning although this job has checkpoints; None if it does not."""
    place = settings.state_dir / CHECKPOINTS
    if settings.options.durability is not None or saved.hosts or not any(place.glob("*/manifest.json")):
        return None
    return (
        f"training starts from the beginning: {place} has checkpoints of this job, and no --checkpoint-every is given; "
        "give --checkpoint-every auto to go on from the newest"
    )


def _finished(settings: RunSettings, saved: Saved) -> str | None:
    """The message for a job that is done already; None if there is something to do, or nothing is known from here."""
    how = settings.options.durability
    if how is None or how.train_on or saved.hosts:  # agents may have to be ended
        return None
    found = finished_check.find(how.place, how.mark)
    return None if found is None else finished.message(found, how.place)


def _run_with_journal(settings: RunSettings, folder: state_folder.StateDir, saved: Saved, outlets: Outlets) -> None:
    """Run the job with a journal, and with the other receivers of its events."""
    options = settings.options
    make_output_folder(options.output)
    make_checkpoint_folder(settings)
    clock = SystemClock()
    name: dict[str, Any] = {"job": settings.job, "run": saved.run}
    listening = listeners(settings, clock, name, os.environ)
    lines: QueuedLines | None = None
    feed: HostFeed | None = None
    try:
        folder.note_program(program_of(settings) if settings.replay else None)
        with dashboard.dashboard_process(settings.dashboard, settings.state_dir, settings.journal):
            lines = open_journal_file(settings.journal)
            journal = journal_on(lines, listening)
            place = None if options.durability is None else options.durability.place
            name |= {"pid": os.getpid(), "version": __version__, "command": settings.command[0], "checkpoints": place}
            policy = None if options.scaling is None else options.scaling.policy
            feed = HostFeed(journal)
            journal.record("started", generation=0, **name, autoscale=policy, output=options.output)
            _run_job(settings, folder, saved, outlets, feed, listening)
    except _EndedAtOnce as end:
        if feed is not None:
            feed.journal.record("finished", generation=feed.generation, code=end.code, reason="stopped while starting")
        raise
    finally:
        listening.close()
        if lines is not None:
            lines.close()


def _run_job(
    settings: RunSettings,
    folder: state_folder.StateDir,
    saved: Saved,
    outlets: Outlets,
    feed: HostFeed,
    listening: Listeners,
) -> None:
    """Run the job, and write into its journal how it ended."""
    journal = feed.journal
    source = make_source(settings, feed)
    try:
        if isinstance(source, HostsFileSource) and not saved.hosts:  # no host works for this job yet
            source.check()
        # Importing takes a second, in which a signal still ends this process at once: nothing may run before that.
        from hvd_elastic_ext.launcher.job.job import Job

        recording = open_recording(settings.record_events)
        job = Job(
            settings,
            feed,
            folder=folder,
            saved=saved,
            journal=journal,
            clock=SystemClock(),
            outlets=outlets,
            recorder=None if recording is None else Recorder(recording),
            counters=listening.counters,
            notifier=listening.notifier,
            board=listening.board,
            stdin=StandardInput.of(
                0, why_not="" if settings.options.engine != MPIRUN else "mpirun does not give it to any rank"
            ),
        )
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        starting.stop()
        source.start()
        try:
            outcome = job.run()
        finally:
            source.stop()
            if recording is not None:
                recording.close()
    except ElasticError as error:
        journal.record("finished", generation=feed.generation, code=error.exit_code, reason=str(error))
        raise
    journal.record("finished", generation=feed.generation, code=0, reason=outcome)


def program_of(settings: RunSettings) -> state_folder.RecordedProgram:
    """What ``hvd-elastic replay`` has to know of a job."""
    how = settings.options.durability
    secret = tuple(filter(is_secret_name, settings.variables))
    return state_folder.RecordedProgram(
        settings.command,
        str(Path.cwd()),
        settings.options.engine,
        {name: value for name, value in settings.variables.items() if name not in secret},
        None if how is None else how.place,
        settings.adopt,
        secret,
    )


def make_output_folder(path: str | None) -> None:
    """Make the folder of ``--output-filename``. Raises :class:`UsageError` if nothing can be written there."""
    if path is None:
        return
    try:
        make_folder(Path(path), option="--output-filename")
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(
            f"--output-filename {path} cannot be written: {why}; name another folder with --output-filename"
        ) from None


def make_checkpoint_folder(settings: RunSettings) -> None:
    """Make the folder of ``--checkpoint-dir`` where this machine is the only host. Raises :class:`UsageError` if that
    can never work; other hosts may have folders that this machine lacks.
    """
    how, hosts = settings.options.durability, settings.sources.hosts
    if how is None or "://" in how.place or hosts is None or not {host.name for host in hosts} <= LOCAL_NAMES:
        return
    try:
        Path(how.place).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=how.place):
            return
    except OSError as error:
        if error.errno not in PERMANENT_ERRORS:
            return  # storage may be full or unavailable for a while: the job logs that, and tries again
        why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(
            f"--checkpoint-dir {how.place} cannot be written: {why}; name another folder with --checkpoint-dir"
        ) from None


def open_journal_file(path: Path) -> QueuedLines:
    """Open a journal for appending. Raises :class:`UsageError` if it cannot be, or others could lead it elsewhere."""
    try:
        return QueuedLines.opened(path, "the journal", option="--journal", counts=True)
    except OSError as error:
        raise UsageError(f"--journal {path} cannot be written: {error.strerror}; name another with --journal") from None


def announce(event: str, generation: int, fields: Fields) -> None:
    """Log the terminal's line of an event, if it has one. Who records such an event logs nothing."""
    kind = EVENTS[event]
    if text := kind.line({**fields, "generation": generation}):
        log.log(logging.WARNING if kind.level in (WARN, BAD) else logging.INFO, "%s", text)


def journal_on(sink: Sink, listening: Listeners) -> Journal:
    """A journal whose events ``listening`` get, too."""
    clock, notes, known = SystemClock(), listening.notes(), set[str]()

    def on_event(event: str, generation: int, fields: Fields) -> None:
        try:
            announce(event, generation, fields)
        except Exception as error:  # noqa: BLE001 - a line is not worth a job
            report(error, known, f"the job goes on without a line about {event!r}")
        for note in notes:
            note(event, fields)

    return Journal(listening.tee(sink, clock), clock, on_event)


def open_recording(path: Path | None) -> QueuedLines | None:
    """Open the file of ``--record-events`` for appending. Raises as :func:`open_journal_file` does."""
    if path is None:
        return None
    try:  # error messages of training scripts are in it: it is for its user alone
        return QueuedLines.opened(path, "the recording", option="--record-events", counts=False, mode=0o600)
    except OSError as error:
        raise UsageError(f"--record-events {path} cannot be written: {error.strerror}; name another file") from None


def make_source(settings: RunSettings, feed: HostFeed) -> HostSource:
    """The one source of hosts that the settings name."""
    sources = settings.sources
    if sources.hosts_file is not None:
        return HostsFileSource(sources.hosts_file, feed, default_slots=settings.default_slots)
    if sources.discovery_url is not None:
        return PushSource(sources.discovery_url, feed, user=sources.discovery_user)
    if sources.script is not None:
        return ScriptSource(sources.script, feed, default_slots=settings.default_slots)
    assert sources.hosts is not None
    return FixedSource(sources.hosts, feed)
