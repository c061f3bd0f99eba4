"""``hvd-elastic run``: options in, one job, its exit code out."""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext import __version__
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import FILE, FOLDERS, Journal
from hvd_elastic_ext.core.options import layered_argv
from hvd_elastic_ext.core.publication import parse_hosts_option
from hvd_elastic_ext.core.secrets import USER, secret_in_url
from hvd_elastic_ext.io import core_dumps
from hvd_elastic_ext.io.append_file import Announced, AppendFile
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.launcher.agents.environment import too_large, why_not_elastic
from hvd_elastic_ext.launcher.cli.announcements import announce
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.job import finished_check, runs, state_folder
from hvd_elastic_ext.launcher.job.output import Log, Outlets
from hvd_elastic_ext.launcher.options.settings import (
    CLOUDS,
    ELASTIC_TIMEOUT_S,
    ENGINES,
    CloudNotices,
    RunSettings,
    Sources,
    job_name,
)
from hvd_elastic_ext.launcher.rules.checkpoints import finished
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import (
    AUTO,
    Durability,
    parse_checkpoint_every,
    parse_commit_every,
)
from hvd_elastic_ext.launcher.rules.health.ledger import DEFAULT_COOLDOWN_S
from hvd_elastic_ext.launcher.rules.suspend.release_policy import limits_of
from hvd_elastic_ext.launcher.sources.feed import HostFeed
from hvd_elastic_ext.launcher.sources.sources import (
    FixedSource,
    HostsFileSource,
    HostSource,
    PushSource,
    ScriptSource,
    connector,
    read_hosts_file,
)

PREFIX: Final = "HVD_ELASTIC_"
RESERVED: Final = ("WORKER_JOURNAL", "SAMPLE", "DEVICES", "NOTICE_FILE")
"""Environment names with our prefix that are no options of ``run``: workers and agents read them."""

COLLECT: Final = (50_000, 20, 100)
"""When the launcher collects garbage: seldom. It makes few cycles, and a collection reads the state of all workers."""

DESCRIPTION: Final = """\
Run an elastic job. Every option of horovodrun means here what it means there; the first group is ours.

examples:
  hvd-elastic run -np 2 train.py                                   two processes on this machine
  hvd-elastic run -np 2 --min-np 1 --hosts-file hosts train.py     hosts come and go, as lines of host:slots
  hvd-elastic run --hosts-file hosts --checkpoint-dir ck train.py  the same command goes on where it stopped
  hvd-elastic run --engine torchrun -np 2 train.py                 new processes for each world, as torchrun has them
"""


def main(argv: Sequence[str]) -> int:
    """Run a job. Raises :class:`ElasticError` with its exit code for every end but success."""
    # Until the job takes signals over, there is nothing to end but this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    core_dumps.forbid()
    settings = parse(argv, os.environ)
    with Outlets(sys.stdout, sys.stderr) as outlets:
        logging.basicConfig(format="hvd-elastic: %(message)s", handlers=[Log(outlets.stderr)])
        logging.getLogger("hvd_elastic_ext").setLevel(settings.log_level)
        _run(settings, outlets)
    return 0


class _EndedAtOnce(SystemExit):
    """No ``Exception``, so that no library that is being imported can take it for a failure of its own."""


def _end_at_once(number: int, _: object) -> None:
    raise _EndedAtOnce(128 + number)


def _run(settings: RunSettings, outlets: Outlets) -> None:
    """Run the job, unless it is done already."""
    with state_folder.StateDir(settings.state_dir) as folder:  # before the journal, which another launcher may write
        fresh = runs.name_of(time.time(), secrets.randbits(16))
        saved = runs.begun(folder.load(), fresh=fresh, resume=settings.resume)
        done = _finished(settings, saved)
        if done is None:
            _run_with_journal(settings, folder, saved, outlets)
        else:
            logging.getLogger(__name__).warning("%s", done)


def _finished(settings: RunSettings, saved: state_folder.Saved) -> str | None:
    """The message for a job that is done already; None if there is something to do, or nothing is known from here."""
    how = settings.durability
    if how is None or how.train_on or saved.more.get("hosts"):  # agents may have to be ended
        return None
    found = finished_check.find(how.place, how.mark)
    return None if found is None else finished.said(found, how.place)


def _run_with_journal(
    settings: RunSettings, folder: state_folder.StateDir, saved: state_folder.Saved, outlets: Outlets
) -> None:
    """Run the job, and write into its journal how it ended."""
    journal = open_journal(settings.journal)
    name = {"job": settings.job, "run": saved.more[runs.RUN]}
    journal.record("started", generation=0, **name, pid=os.getpid(), version=__version__, command=settings.command[0])
    feed = HostFeed(journal)
    source = make_source(settings, feed)
    try:
        if isinstance(source, HostsFileSource) and not saved.more.get("hosts"):  # no host works for this job yet
            source.check()
        # Importing takes a second, in which a signal still ends this process at once: nothing may run by then.
        from hvd_elastic_ext.launcher.job.job import Job

        recorder = open_recorder(settings.record_events)
        job = Job(
            settings,
            feed,
            folder=folder,
            saved=saved,
            journal=journal,
            clock=SystemClock(),
            outlets=outlets,
            recorder=recorder,
        )
        gc.freeze()
        gc.set_threshold(*COLLECT)
        source.start()
        try:
            job.run()
        finally:
            source.stop()
    except ElasticError as error:
        journal.record("finished", generation=feed.generation, code=error.exit_code, reason=str(error))
        raise
    except _EndedAtOnce as end:
        journal.record("finished", generation=feed.generation, code=end.code, reason="stopped while starting")
        raise
    journal.record("finished", generation=feed.generation, code=0, reason="training is done")


def open_journal(path: Path) -> Journal:
    """Open a journal for appending. Raises :class:`UsageError` if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Journal(Announced(AppendFile(path, create=True), f"the journal {path}"), SystemClock(), announce)
    except OSError as error:
        raise UsageError(f"--journal {path} cannot be written: {error.strerror}; name another with --journal") from None


def open_recorder(path: Path | None) -> Recorder | None:
    """Open the file of ``--record-events`` for appending. Raises :class:`UsageError` if it cannot be."""
    if path is None:
        return None
    try:
        path.touch(mode=0o600)  # error messages of training scripts are in it
        return Recorder(Announced(AppendFile(path, create=True), f"the recording {path}"))
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


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> RunSettings:
    """Read options from ``argv``, ``HVD_ELASTIC_*`` and ``--config``. Raises :class:`UsageError`."""
    try:
        from hvd_elastic_ext.launcher.cli import horovod_options as horovod
    except ImportError as error:
        raise UsageError(
            f"Horovod cannot be imported ({error}); `hvd-elastic doctor` says what is wrong, "
            "scripts/build-horovod builds it"
        ) from None

    def layer(parser: argparse.ArgumentParser, given: Sequence[str]) -> list[str]:
        config, name = _config_of(parser, given)
        return layered_argv(
            parser, given, config=config, config_name=name, environ=environ, prefix=PREFIX, reserved=RESERVED
        )

    args = horovod.parse(argv, prog="hvd-elastic run", description=DESCRIPTION, add_options=add_options, layer=layer)
    _check_sample(environ)
    problem = horovod.why_not_elastic(args) or why_not_elastic(environ) or too_large(environ, args.command)
    if problem is not None:
        raise UsageError(problem)
    hostfile = horovod.read_hostfile(args.hostfile) if args.hostfile else None
    return _settings(args, hosts=args.hosts or hostfile, env=horovod.tuning_env(args))


def runnable(command: Sequence[str]) -> tuple[str, ...]:
    """``command``, with this Python before a script that is no program itself, as torchrun has it."""
    words = tuple(command[1:] if command[:1] == ["--"] else command)
    script = words[0] if words else ""
    if not script.endswith(".py") or not Path(script).is_file() or shutil.which(script) is not None:
        return words
    return (sys.executable, *words)


def _slots_there(sources: Sources, default_slots: int | None) -> int:
    """What ``-np`` is when it is not given: all slots that are there at the start. Raises :class:`UsageError`."""
    if sources.hosts is not None:
        return sources.hosts.slots
    if sources.hosts_file is not None:
        return read_hosts_file(sources.hosts_file, default_slots=default_slots).slots
    raise UsageError("-np is missing: how many processes are needed to start? Hosts are not known before the start")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Our own options of ``run``. One whose ``dest`` is a field of :class:`RunSettings` has its default from there."""
    option = parser.add_argument_group("hvd-elastic").add_argument
    seconds = functools.partial(option, type=float, metavar="S")
    number = functools.partial(option, type=int, metavar="N")
    switch = functools.partial(option, action="store_true")
    option("--hosts-file", metavar="PATH", help="file of host:slots lines, followed as it changes")
    option("--discovery", metavar="URL", help="push of hvd-discover: unix:///path or http://host:port")
    option(
        "--discovery-user", type=int, metavar="UID", help="who runs hvd-discover, if neither you nor root (its number)"
    )
    option(
        "--rsh",
        choices=("ssh", "local", "pod"),
        help="how hosts are reached; pod is the API server's exec (default: this machine's names directly, else ssh)",
    )
    option(
        "--engine",
        choices=ENGINES,
        help="what forms worlds: Horovod, within the processes; torchrun's way or mpirun, with new processes (horovod)",
    )
    option("--job", metavar="NAME", help="name of the job (default: that of what it runs)")
    switch("-q", "--quiet", help="errors and output of processes only")
    option("--journal", metavar="PATH", help="journal of what happened (default: STATE_DIR/journal.jsonl)")
    option(
        "--record-events",
        metavar="FILE",
        help="write down all that the launcher's decisions depend on, for `hvd-elastic events --replay FILE`",
    )
    option("--state-dir", metavar="DIR", help="the job's own folder (default: ./.hvd-elastic/JOB)")
    seconds("--settle", dest="settle_s", help="seconds additions may gather before one resize (3)")
    seconds("--standby-timeout", dest="standby_timeout_s", help="seconds a newcomer may take to be ready (600)")
    seconds("--heartbeat-interval", dest="heartbeat_interval_s", help="seconds between two heartbeats (1)")
    seconds("--heartbeat-timeout", dest="heartbeat_timeout_s", help="seconds of silence that are a failure (10)")
    seconds(
        "--progress-timeout",
        dest="progress_timeout_s",
        help="seconds without progress, while others wait, that count as stalled (default: a warning after 60)",
    )
    switch("--restart-stalled", help="and restart a process that is stalled")
    switch("--drain-stragglers", help="send away, once, a process that stays slower than the others")
    option(
        "--notices-from",
        choices=CLOUDS,
        default="none",
        help="cloud that hosts ask whether they are taken back; auto finds out which (none)",
    )
    option("--metadata-url", metavar="URL", help="where they ask it (default: the cloud's usual address)")
    option("--allowed-sizes", type=_sizes, metavar="N,N,…", help="sizes that a world may have (default: any)")
    option(
        "--below-min",
        choices=("wait", "sleep", "fail"),
        help="what to do below --min-np: wait for --elastic-timeout, sleep without any process, or fail at once (wait)",
    )
    seconds("--sleep-after", dest="sleep_after_s", help="seconds below it before the job goes to sleep (30)")
    seconds(
        "--max-wait-time",
        dest="max_wait_s",
        help="seconds that it may sleep at a time; then exit code 75 (default: as long as it takes)",
    )
    option(
        "--sleep-releases",
        choices=("none", "pods", "job"),
        default="none",
        help="what it lets go while it sleeps: worker pods; with job it is suspended besides at exit code 75 (none)",
    )
    option("--release-job", metavar="KIND/NAME", help="what makes these pods, such as mpijob/digits")
    seconds("--wake-every", default=300.0, help="seconds between two tries to get them back (300)")
    seconds("--wake-timeout", default=600.0, help="seconds all may take to be ready then (600)")
    option(
        "--job-restart-policy",
        dest="restart_policy",
        choices=("Never", "OnFailure"),
        help="whether a job that failed begins again from its newest checkpoint (Never)",
    )
    number("--job-backoff-limit", dest="backoff_limit", help="how often, at most, with OnFailure (6)")
    number("--failure-budget", help="faults within an hour that end the job (10)")
    seconds("--orphan-grace", dest="orphan_grace_s", help="seconds hosts wait for a lost launcher (60)")
    seconds(
        "--commit-wait",
        dest="commit_wait_s",
        help="seconds to wait for a host that alone holds the newest commit, before training goes on behind it (60)",
    )
    switch("--adopt", help="give plain hvd.elastic scripts our State, sampler and loop, unedited")
    switch(
        "--restart-from-scratch",
        help="begin training anew where all processes are lost and no commit was kept (default: the job fails)",
    )
    option(
        "--commit-every",
        type=parse_commit_every,
        metavar="auto|N",
        help="make every N-th state.commit() only, or as many as pay: what copying costs against what is lost (1: all)",
    )
    option(
        "--checkpoint-dir",
        metavar="DIR",
        help="where durable checkpoints go, a folder or a URL; also turns them on (default: STATE_DIR/checkpoints)",
    )
    option(
        "--checkpoint-every",
        metavar="auto|N|Ns|notice",
        help="how often: by itself, in steps, in seconds, or on notice only; also turns them on (auto)",
    )
    number("--checkpoint-keep", default=3, help="how many of the newest checkpoints are left (3)")
    switch("--train-on", help="train on from the last checkpoint of a job that is done")
    switch("--resume", help="go on with the last run's journal and strikes, even if it has ended")
    option("--config", metavar="FILE", help="YAML or TOML file of any of these options by their long names")


def _config_of(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Read the file that ``--config`` names, if it stands among our options (the command may have its own)."""
    path = parser.parse_known_args(argv)[0].config
    return ({}, "") if path is None else (read_config(Path(path)), path)


def _settings(args: argparse.Namespace, *, hosts: str | None, env: Mapping[str, str]) -> RunSettings:
    command = runnable(args.command)
    job = args.job or job_name(command)
    state_dir = Path(args.state_dir or Path(FOLDERS) / job)
    sources = _sources(args, hosts)
    num_proc = _slots_there(sources, args.slots) if args.num_proc is None else args.num_proc
    given = {each.name: value for each in fields(RunSettings) if (value := getattr(args, each.name, None)) is not None}
    made = {
        "command": command,
        "sources": sources,
        "num_proc": num_proc,
        "min_num_proc": args.min_num_proc if args.min_num_proc is not None else num_proc,
        "default_slots": args.slots,
        "elastic_timeout_s": args.elastic_timeout if args.elastic_timeout is not None else _elastic_timeout(),
        "cooldown_s": DEFAULT_COOLDOWN_S if args.cooldown_range is None else tuple(args.cooldown_range),
        "interfaces": tuple(sorted(args.nics or ())),
        "output_dir": Path(args.output_filename) if args.output_filename else None,
        "timestamps": args.prefix_output_with_timestamp,
        "log_level": logging.DEBUG if args.verbose else logging.ERROR if args.quiet else logging.INFO,
        "job": job,
        "journal": Path(args.journal or state_dir / FILE),
        "state_dir": state_dir,
        "releases": limits_of(args.sleep_releases, args.release_job, args.wake_every, args.wake_timeout),
        "durability": _durability(args, state_dir, mark=finished_check.mark_of(command)),
        "record_events": Path(args.record_events) if args.record_events else None,
        "notices": CloudNotices(args.notices_from, args.metadata_url or None),
        "env": env,
    }
    return RunSettings(**{**given, **made})


def _sources(args: argparse.Namespace, hosts: str | None) -> Sources:
    named = (args.hosts_file, args.discovery, args.host_discovery_script, hosts)
    if args.discovery:
        try:
            connector(args.discovery)
        except ValueError as error:
            raise UsageError(f"--discovery {error}") from None
    fixed: HostSet | None = None
    if hosts is not None:
        fixed = parse_hosts_option(hosts, where="--hosts", default_slots=args.slots or 1)
    elif not any(named):
        # As horovodrun does: without any word about hosts, this machine is the one host.
        fixed = HostSet.of({"localhost": max(1, args.num_proc or 1)})
    return Sources(
        hosts_file=Path(args.hosts_file) if args.hosts_file else None,
        discovery_url=args.discovery,
        script=args.host_discovery_script,
        hosts=fixed,
        discovery_user=args.discovery_user,
    )


def _durability(args: argparse.Namespace, state_dir: Path, *, mark: str) -> Durability | None:
    """Checkpoints are made where one of their options, or sleep, is asked for: they take time and room on a disk."""
    if args.checkpoint_dir is None and args.checkpoint_every is None and args.below_min != "sleep":
        return None
    if args.checkpoint_keep < 1:
        raise UsageError(f"--checkpoint-keep is {args.checkpoint_keep}; keep at least 1, or leave checkpoints off")
    place = args.checkpoint_dir or str(state_dir / "checkpoints")
    secret = secret_in_url(place)
    if secret is not None:
        raise UsageError(
            f"--checkpoint-dir holds {'a user or password' if secret == USER else secret}, which would stand in the "
            "journal; leave it out of the URL, and give it as the driver takes it, in the environment"
        )
    every = AUTO if args.checkpoint_every is None else parse_checkpoint_every(args.checkpoint_every)
    place = place if "://" in place else str(Path(place).absolute())
    return Durability(place, every, args.checkpoint_keep, mark, train_on=args.train_on)


def _sizes(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--allowed-sizes {text!r}: write whole numbers above 0, such as 2,4,8")
    return tuple(sorted(map(int, words)))


def _check_sample(environ: Mapping[str, str]) -> None:
    """Workers read it, but a wrong one should stop the job here, and once."""
    text = environ.get(f"{PREFIX}SAMPLE", "0")
    try:
        wrong = not 0 <= float(text) < float("inf")
    except ValueError:
        wrong = True
    if wrong:
        raise UsageError(f"HVD_ELASTIC_SAMPLE is {text!r}; write a number of seconds, 0 for every step")


def _elastic_timeout() -> float:
    """Horovod's own environment variable for it, as ``horovodrun`` reads it."""
    text = os.environ.get("HOROVOD_ELASTIC_TIMEOUT")
    if text is None:
        return ELASTIC_TIMEOUT_S
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"HOROVOD_ELASTIC_TIMEOUT is {text!r}; write a number of seconds") from None
