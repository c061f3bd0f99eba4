"""The options of ``hvd-elastic run``: declared, read from flags, environment and file, and checked."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.commands import leading_variables
from hvd_elastic_ext.core.engines import DEFAULT, ENGINES
from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, HostSet
from hvd_elastic_ext.core.journal import FILE, FOLDERS
from hvd_elastic_ext.core.publication import parse_hosts_option
from hvd_elastic_ext.core.secrets import USER, secret_in_url
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.io.option_parser import Parser, layered_argv, split_program
from hvd_elastic_ext.launcher.agents.environment import too_large, why_not_elastic
from hvd_elastic_ext.launcher.checkpoints.schedule import AUTO, Durability, parse_checkpoint_every, parse_commit_every
from hvd_elastic_ext.launcher.cli import horovodrun
from hvd_elastic_ext.launcher.driver.options import JobOptions, ScaleOptions, world_limits
from hvd_elastic_ext.launcher.exports.webhook import webhook_url
from hvd_elastic_ext.launcher.job import finished_check
from hvd_elastic_ext.launcher.membership.devices import devices_of
from hvd_elastic_ext.launcher.membership.spares import parse_spares
from hvd_elastic_ext.launcher.membership.world_change import parse_sizes
from hvd_elastic_ext.launcher.options.program import LOCAL_NAMES, check_here, job_name, joins_itself, runnable
from hvd_elastic_ext.launcher.options.settings import (
    CHECKPOINTS,
    NO_CLOUD,
    NOTICES_FROM,
    OUTPUT,
    CloudNotices,
    RunSettings,
    Sources,
    listen_address,
    listen_address_of_hosts,
)
from hvd_elastic_ext.launcher.scaling import scalers, signals
from hvd_elastic_ext.launcher.scaling.policies import parse as parse_policy
from hvd_elastic_ext.launcher.sleep.release_policy import limits_of
from hvd_elastic_ext.launcher.sources.hosts import connector, read_hosts_file

PORT: Final = "[HOST:]PORT"
PREFIX: Final = "HVD_ELASTIC_"
RESERVED: Final = (
    *("WORKER_JOURNAL", "SAMPLE", "DEVICES", "NOTICE_FILE", "OBSERVE_TOKEN"),
    *("VERIFY", "RESULTS_BYTES", "RESULTS_FD", "COMMIT_FDS"),
)
"""Environment names with our prefix that are not options of ``run``: workers and agents read them."""
BUILD: Final = "hvd-elastic build-horovod builds its wheel (docs/install.md)"
WITHOUT_HOROVOD: Final = "take --engine torch, torchrun or mpirun, with elastic.init() in the script"
ALIASES: Final = {"-np": "--num-proc", "--min-np": "--min-num-proc", "--max-np": "--max-num-proc"}
"""Horovod's options with two names: the one that messages use, and the other."""

DESCRIPTION: Final = """\
Run an elastic job. Every option of horovodrun keeps its meaning; the options of the first groups are our own.

examples:
  hvd-elastic run -np 2 train.py                                   two processes on this machine
  hvd-elastic run -np 2 --min-np 1 --hosts-file hosts train.py     hosts come and go, as lines of host:slots
  hvd-elastic run --hosts-file hosts --checkpoint-dir ck train.py  the same command goes on where it stopped
  hvd-elastic run --engine torchrun -np 2 train.py                 new processes for each world, as torchrun has them
"""


SEE_HELP: Final = (
    "`hvd-elastic run --help` lists all options; write the options of the script after the script: "
    "hvd-elastic run -np 2 train.py --lr 1"
)
"""The second line of an error."""


def make_parser() -> Parser:
    """The parser of the options of ``run``, ours first. The command is not among them: see :func:`split`."""
    parser = Parser(
        prog="hvd-elastic run",
        usage="hvd-elastic run [options] [--] [NAME=VALUE …] command…",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        see=SEE_HELP,
    )
    add_options(parser)
    horovodrun.add_options(parser)
    return parser


def split(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split into options and the command after them, as written, without a look at this machine. Raises
    :class:`UsageError` for an unknown option.
    """
    options, command = split_program(make_parser(), argv)
    return tuple(options), tuple(command)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> RunSettings:
    """Read options from ``argv``, ``HVD_ELASTIC_*`` and ``--config``. Raises :class:`UsageError`."""
    parser = make_parser()
    options, command = split_program(parser, argv)
    ended = list(argv[len(options) : len(options) + 1]) == ["--"]
    config, name = _config_of(parser, options)
    layered = layered_argv(
        parser, options, config=config, config_name=name, environ=environ, prefix=PREFIX, reserved=RESERVED
    )
    try:
        return _read(parser, layered.argv, environ=environ, command=command, ended=ended)
    except UsageError as error:
        raise layered.placed(UsageError(_as_written(str(error), options))) from None


def _read(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    command: Sequence[str],
    ended: bool,
) -> RunSettings:
    args = parser.parse_args(argv)
    horovodrun.complete(args)
    args.variables, args.command = leading_variables(command)
    environ = {**environ, **args.variables}
    _check_sample(environ)
    problem = horovodrun.why_not_elastic(args) or why_not_elastic(environ) or too_large(environ, args.command)
    if problem is not None:
        raise UsageError(problem)
    args.names_devices = bool(devices_of(environ, {}))
    args.misplaced = None if ended else misplaced(args.command[1:], parser._option_string_actions)
    return _settings(args, hosts=_fixed_hosts(args), env=horovodrun.tuning_env(args))


def misplaced(words: Sequence[str], ours: Collection[str]) -> str | None:
    """Say which long options of ``ours`` are among the command's ``words``; None if none is. Pure."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    found = list(dict.fromkeys(name for name in names if name in ours))
    if len(found) == 1:
        return f"{found[0]} is an option of hvd-elastic run: put it before the script"
    return f"{', '.join(found)} are options of hvd-elastic run: put them before the script" if found else None


def _as_written(message: str, argv: Sequence[str]) -> str:
    """``message`` with options named as ``argv`` names them, where they have two names. Pure."""
    given = {word.partition("=")[0] for word in argv}
    for name, other in ALIASES.items():
        if other in given and name not in given:
            message = re.sub(rf"(?<![\w-]){name}\b", other, message)
    return message


def _check_horovod(engine: str) -> None:
    """Raise :class:`UsageError` if processes of this machine need Horovod, and it is not installed here."""
    try:
        there = not ENGINES[engine].needs_horovod or importlib.util.find_spec("horovod") is not None
    except ImportError:
        there = False
    if not there:
        raise UsageError(
            f"Horovod is not installed, and --engine {DEFAULT}, the default, needs it: {BUILD}; or {WITHOUT_HOROVOD}"
        )


def _slots_there(sources: Sources, default_slots: int | None) -> int:
    """What ``-np`` is when it is not given: all slots that are there at the start. Raises :class:`UsageError`."""
    if sources.hosts is not None:
        return sources.hosts.slots
    if sources.hosts_file is not None:
        slots = read_hosts_file(sources.hosts_file, default_slots=default_slots).slots
        if not slots:
            raise UsageError(
                f"{sources.hosts_file} lists no host; write lines of HOST:SLOTS, or give -np to wait for them"
            )
        return slots
    raise UsageError("-np is missing: how many processes are needed to start? Hosts are not known before the start")


def _named(sources: Sources, given: HostSet | None) -> str:
    if sources.hosts_file is not None:
        return f"hosts file {sources.hosts_file}"
    return "localhost, the only host" if given is None else "the hosts given"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Our own options of ``run``. One whose ``dest`` is a field of :class:`JobOptions` or
    :class:`RunSettings` has its default from there."""
    for title, add in GROUPS.items():
        group = parser.add_argument_group(title)
        add(
            Adders(
                group.add_argument,
                functools.partial(group.add_argument, type=durations.time, metavar=durations.METAVAR),
                functools.partial(group.add_argument, type=int, metavar="N"),
                functools.partial(group.add_argument, action="store_true"),
            )
        )


class Adders(NamedTuple):
    """How to add an option of any kind, a time, a whole number, a switch."""

    option: Callable[..., Any]
    time: Callable[..., Any]
    number: Callable[..., Any]
    switch: Callable[..., Any]


def _of_the_job(add: Adders) -> None:
    add.option("--job", metavar="NAME", help="name of the job (default: that of what it runs)")
    add.switch("-q", "--quiet", help="print errors and the output of processes only")
    add.option("--state-dir", metavar="DIR", help="the job's own folder (default: ./.hvd-elastic/JOB)")
    add.option("--journal", metavar="PATH", help="journal of what happened (default: STATE_DIR/journal.jsonl)")
    add.option(
        "--record-events",
        metavar="FILE",
        help="record all events that the launcher's decisions depend on, for `hvd-elastic events --replay FILE`",
    )
    add.option(
        "--metrics",
        type=listen_address,
        metavar=PORT,
        help="serve metrics for Prometheus there (without HOST: to this machine only; docs/metrics.md)",
    )
    add.option(
        "--agent-metrics",
        type=listen_address_of_hosts,
        metavar=PORT,
        help="serve metrics of each agent there (without HOST: to its own machine only)",
    )
    add.option(
        "--dashboard",
        type=functools.partial(listen_address, where="--dashboard"),
        metavar=PORT,
        help="serve a page of the job there, and keep the output of processes in STATE_DIR/output (docs/dashboard.md)",
    )
    add.option(
        "--tensorboard",
        type=_folder,
        metavar="DIR",
        help="write what rank 0 reports into DIR/JOB/RUN, for TensorBoard (docs/metrics.md)",
    )
    add.option(
        "--notify",
        type=webhook_url,
        metavar="URL",
        help="webhook for messages about waits, sleeps, crash loops, lost steps and the end; file:PATH: a file "
        "with the URL",
    )
    add.option("--config", metavar="FILE", help="YAML or TOML file of any of these options by their long names")
    add.option(
        "--engine",
        choices=ENGINES,
        help="what forms worlds: Horovod or torch in the same processes, torchrun or mpirun with new ones (horovod)",
    )
    add.switch("--adopt", help="run an unmodified hvd.elastic script with our State, sampler and loop")
    add.switch("--resume", help="continue the last run's journal and strikes, even if it has ended")


def _folder(text: str) -> Path:
    if not text or "://" in text:
        raise UsageError(f"--tensorboard {text!r}: that is not a folder of this machine")
    return Path(text)


def _of_hosts(add: Adders) -> None:
    add.option("--hosts-file", metavar="PATH", help="file of host:slots lines, followed as it changes")
    add.option("--discovery", metavar="URL", help="push of hvd-discover: unix:///path or http://host:port")
    add.option(
        "--discovery-user", type=int, metavar="UID", help="number of the user who runs hvd-discover, if not you or root"
    )
    add.option(
        "--rsh",
        choices=("ssh", "local", "pod"),
        help="how hosts are reached; pod is the API server's exec (default: this machine's names directly, else ssh)",
    )
    add.option("--code", type=Path, metavar="DIR", help="do not use a host whose files in DIR differ from those here")
    add.switch("--send-code", help="send the files in that DIR, as they are at the start, to hosts where they differ")
    add.time("--settle", dest="settle_s", help="how long to wait for further newcomers (3)")
    add.option(
        "--spares",
        type=parse_spares,
        metavar="N|N%|auto",
        help="processes ready to take the place of a lost one, at most; also a share of the world's size. auto: on "
        "hosts beyond --max-np only (auto)",
    )
    add.time("--standby-timeout", dest="standby_timeout_s", help="how long a newcomer may take to be ready (600)")
    add.time(
        "--wait-lines",
        dest="wait_lines_s",
        help="longest time between lines about a wait that does not stop any rank (60)",
    )
    add.option("--allowed-sizes", type=parse_sizes, metavar="N,N,…", help="sizes that a world may have (default: any)")
    add.option(
        "--notices-from",
        choices=NOTICES_FROM,
        default=NO_CLOUD,
        help="cloud that hosts ask whether they will be reclaimed; auto finds out which (none)",
    )
    add.option("--metadata-url", metavar="URL", help="URL of its metadata service (default: the cloud's usual address)")


def _of_failures(add: Adders) -> None:
    add.time("--heartbeat-interval", dest="heartbeat_interval_s", help="time between two heartbeats (1)")
    add.time(
        "--heartbeat-timeout",
        dest="heartbeat_timeout_s",
        help="how long a silence may last before it counts as a failure (10)",
    )
    add.time(
        "--progress-timeout",
        dest="progress_timeout_s",
        help="how long without progress, while others wait, counts as stalled (default: a warning after 60)",
    )
    add.switch("--restart-stalled", help="restart a process that is stalled")
    add.switch(
        "--replay",
        help="execute the steps that a loss has cost again as they were, in a smaller world, too (docs/recovery.md)",
    )
    add.switch("--drain-stragglers", help="remove, once, a process that stays slower than the others")
    add.number("--failure-budget", help="faults within an hour that end the job (10)")
    add.time("--orphan-grace", dest="orphan_grace_s", help="how long hosts run on without a launcher (60)")
    add.time(
        "--commit-wait",
        dest="commit_wait_s",
        help="how long to wait for a host that alone holds the newest commit; then training continues without it (60)",
    )
    add.switch(
        "--restart-from-scratch",
        help="restart training if all processes are lost and no commit was kept (default: the job fails)",
    )
    add.option(
        "--job-restart-policy",
        dest="restart_policy",
        choices=("Never", "OnFailure"),
        help="whether a job that failed restarts from its newest checkpoint (Never)",
    )
    add.number("--job-backoff-limit", dest="backoff_limit", help="highest number of restarts with OnFailure (6)")


def _of_sleep(add: Adders) -> None:
    add.option(
        "--below-min",
        choices=("wait", "sleep", "fail"),
        help="what to do below --min-np: wait for --elastic-timeout, sleep without any process, or fail at once (wait)",
    )
    add.time("--sleep-after", dest="sleep_after_s", help="how long below it before the job sleeps (30)")
    add.time(
        "--max-wait-time",
        dest="max_wait_s",
        help="how long one sleep may last; then exit code 75 (default: no limit)",
    )
    add.option(
        "--sleep-releases",
        choices=("none", "pods", "job"),
        default="none",
        help="what a sleeping job releases: worker pods; with job, the job is also suspended at exit code 75 (none)",
    )
    add.option("--release-job", metavar="KIND/NAME", help="what makes these pods, such as mpijob/digits")
    add.time("--wake-every", default=300.0, help="time between two requests for them (300)")
    add.time("--wake-timeout", default=600.0, help="time until all of them must be ready (600)")


def _of_scaling(add: Adders) -> None:
    add.option(
        "--autoscale",
        metavar="POLICY[:KEY=VALUE,…]",
        help="policy for the number of hosts: efficiency, threshold, deadline or cost (docs/autoscale.md)",
    )
    add.option(
        "--scale-with",
        metavar="KIND/NAME",
        help="what adds and removes hosts: such as statefulset/digits, exec:COMMAND, file:PATH (default: recommend, "
        "which only prints the number)",
    )
    add.option(
        "--observe",
        action="append",
        metavar="NAME=SOURCE",
        help="a signal for threshold: file:PATH with a number, or the URL of a Prometheus query (repeatable)",
    )


def _of_checkpoints(add: Adders) -> None:
    add.option(
        "--commit-every",
        type=parse_commit_every,
        metavar="auto|N",
        help="make every N-th state.commit() only, or as many as are worth their cost (1: all)",
    )
    add.option(
        "--checkpoint-dir",
        metavar="DIR",
        help="where durable checkpoints go, a folder or a URL; also turns them on (default: STATE_DIR/checkpoints)",
    )
    add.option(
        "--checkpoint-every",
        metavar=f"auto|N|{durations.METAVAR}|notice",
        help="how often: by cost, every N steps, by a time with its unit (90s, 10m), or on notice only; also turns "
        "them on (auto)",
    )
    add.number("--checkpoint-keep", default=3, help="how many of the newest checkpoints are kept (3)")
    add.switch("--train-on", help="continue training from the last checkpoint of a job that is done")


GROUPS: Final[Mapping[str, Callable[[Adders], None]]] = {
    "hvd-elastic: the job": _of_the_job,
    "hvd-elastic: hosts": _of_hosts,
    "hvd-elastic: failures": _of_failures,
    "hvd-elastic: too few hosts": _of_sleep,
    "hvd-elastic: how many hosts": _of_scaling,
    "hvd-elastic: commits and checkpoints": _of_checkpoints,
}
"""Titles in ``--help``, and what adds their options."""


def _config_of(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Read the file that ``--config`` names."""
    path = parser.parse_known_args(argv)[0].config
    return ({}, "") if path is None else (read_config(Path(path)), path)


def _settings(args: argparse.Namespace, *, hosts: HostSet | None, env: Mapping[str, str]) -> RunSettings:
    command = runnable(args.command)
    engine, engine_note = _engine(args.engine or DEFAULT, command)
    job = args.job or job_name(command)
    state_dir = Path(args.state_dir or Path(FOLDERS) / job)
    sources = _sources(args, hosts)
    if args.rsh == "local" or (args.rsh is None and _only_here(sources, args.slots)):
        _check_horovod(engine)
        check_here(command)
    most = args.max_num_proc
    there = _slots_there(sources, args.slots) if args.num_proc is None else None
    num_proc = args.num_proc if there is None else there if most is None else max(1, min(there, most))
    least = num_proc if args.min_num_proc is None else args.min_num_proc
    allowed = args.allowed_sizes or ()
    options = {
        "engine": engine,
        "limits": world_limits(num_proc, least, most, allowed=allowed, settle_s=args.settle_s, engine=engine),
        "all_slots_of": _named(sources, hosts) if there is not None and num_proc != args.min_num_proc else None,
        "elastic_timeout_s": _elastic_timeout() if args.elastic_timeout is None else args.elastic_timeout,
        "cooldown_s": None if args.cooldown_range is None else tuple(args.cooldown_range),
        "fixed_hosts": sources.hosts is not None,
        "output": _output(args, state_dir),
        "scaling": _scaling(args),
        "durability": _durability(args, state_dir, mark=finished_check.mark_of((*_assigned(args.variables), *command))),
    }
    made = {
        "command": command,
        "engine_note": engine_note,
        "sources": sources,
        "options": JobOptions(**_given(args, JobOptions, **options)),
        "default_slots": args.slots,
        "interfaces": tuple(sorted(args.nics or ())),
        "timestamps": args.prefix_output_with_timestamp,
        "log_level": logging.DEBUG if args.verbose else logging.ERROR if args.quiet else logging.INFO,
        "job": job,
        "journal": Path(args.journal or state_dir / FILE),
        "state_dir": state_dir,
        "releases": limits_of(args.sleep_releases, args.release_job, args.wake_every, args.wake_timeout),
        "scale_with": args.scale_with or scalers.RECOMMEND,
        "observe": tuple(args.observe or ()),
        "record_events": Path(args.record_events) if args.record_events else None,
        "notices": CloudNotices(args.notices_from, args.metadata_url or None),
        "env": env,
        "variables": args.variables,
    }
    return RunSettings(**_given(args, RunSettings, **made))


def _engine(named: str, command: Sequence[str]) -> tuple[str, str]:
    """The engine that runs a command, and why it is not the one that was named; empty if it is."""
    script = joins_itself(command) if named == "torch" else None
    if script is None:
        return named, ""
    return "torchrun", (
        f"--engine torch: {script} calls init_process_group() and not elastic.init(), so each world has new processes, "
        "as with --engine torchrun, and they go on from what the script itself has saved"
    )


def _given(args: argparse.Namespace, kind: type, **made: object) -> dict[str, Any]:
    """The fields of ``kind`` that are not None: of those ``made``, and of options with the name of a field."""
    named = {each.name: getattr(args, each.name, None) for each in fields(kind)}
    return {name: value for name, value in {**named, **made}.items() if value is not None}


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _output(args: argparse.Namespace, state_dir: Path) -> str | None:
    """The folder for the output of processes. With a dashboard, which shows the output, there is always one."""
    if args.output_filename:
        return str(Path(args.output_filename).absolute())
    return None if args.dashboard is None else str((state_dir / OUTPUT).absolute())


def _scaling(args: argparse.Namespace) -> ScaleOptions | None:
    if args.autoscale is None:
        for option, given in (("--scale-with", args.scale_with), ("--observe", args.observe)):
            if given is not None:
                raise UsageError(f"{option} is for --autoscale POLICY; give both, or none")
        return None
    parse_policy(args.autoscale)
    signals.sources(args.observe or ())
    who = scalers.read(args.scale_with or scalers.RECOMMEND)
    return ScaleOptions(args.autoscale, acts=who.acts, ordered=who.ordered)


def _fixed_hosts(args: argparse.Namespace) -> HostSet | None:
    if args.hosts:
        return parse_hosts_option(args.hosts, where="--hosts", default_slots=args.slots or 1)
    return horovodrun.read_hostfile(args.hostfile) if args.hostfile else None


def _sources(args: argparse.Namespace, hosts: HostSet | None) -> Sources:
    named = (args.hosts_file, args.discovery, args.host_discovery_script, hosts)
    if args.discovery:
        try:
            if (secret := secret_in_url(args.discovery)) is not None:
                raise UsageError(f"--discovery holds {secret}, which the daemon does not ask for; leave it out")
            connector(args.discovery)
        except ValueError as error:
            raise UsageError(f"--discovery {error}") from None
    fixed = hosts
    if not any(named):
        # As horovodrun does: without any option for hosts, this machine is the only host.
        if (args.num_proc or 1) > MAX_SLOTS:
            raise UsageError(
                f"-np is {args.num_proc}, and this machine alone may have {MAX_SLOTS} slots; name more hosts"
            )
        fixed = HostSet.of({"localhost": max(1, args.num_proc or 1)})
    return Sources(
        hosts_file=Path(args.hosts_file) if args.hosts_file else None,
        discovery_url=args.discovery,
        script=args.host_discovery_script,
        hosts=fixed,
        discovery_user=args.discovery_user,
    )


def _only_here(sources: Sources, default_slots: int | None) -> bool:
    """Whether the hosts that are known before the start are this machine, by names that all machines have."""
    hosts = sources.hosts
    if sources.hosts_file is not None:
        try:
            hosts = read_hosts_file(sources.hosts_file, default_slots=default_slots)
        except ElasticError:
            return False  # it may not be written yet; an invalid one is refused later
    return bool(hosts) and {host.name for host in hosts or ()} <= LOCAL_NAMES


def _durability(args: argparse.Namespace, state_dir: Path, *, mark: str) -> Durability | None:
    """Checkpoints are made where one of their options, or sleep, is asked for: they take time and room on a disk."""
    if args.checkpoint_dir is None and args.checkpoint_every is None and args.below_min != "sleep":
        return None
    if args.checkpoint_keep < 1:
        raise UsageError(f"--checkpoint-keep is {args.checkpoint_keep}; keep at least 1, or leave checkpoints off")
    place = args.checkpoint_dir or str(state_dir / CHECKPOINTS)
    secret = secret_in_url(place)
    if secret is not None:
        raise UsageError(
            f"--checkpoint-dir holds {'a user or password' if secret == USER else secret}, which would appear in the "
            "journal; leave it out of the URL, and give it as the driver takes it, in the environment"
        )
    every = AUTO if args.checkpoint_every is None else parse_checkpoint_every(args.checkpoint_every)
    place = place if "://" in place else str(Path(place).absolute())
    return Durability(place, every, args.checkpoint_keep, mark, train_on=args.train_on)


def _check_sample(environ: Mapping[str, str]) -> None:
    """Workers read it; an invalid value ends the job here, with one error."""
    text = environ.get(f"{PREFIX}SAMPLE", "0")
    if durations.parse(text) is None:
        raise UsageError(f"HVD_ELASTIC_SAMPLE is {text!r}; write a time, such as 2s, or 0 for every step")


def _elastic_timeout() -> float | None:
    """Horovod's own environment variable for ``--elastic-timeout``; None if it is not set."""
    text = os.environ.get("HOROVOD_ELASTIC_TIMEOUT")
    if text is None:
        return None
    found = durations.parse(text)
    if not found:
        raise UsageError(f"HOROVOD_ELASTIC_TIMEOUT is {text!r}; write a time above 0, such as {durations.EXAMPLES}")
    return found
