"""The options of ``submit``: arena's by their names, and a few of ours.

Users of arena keep their command lines. So a name may come as ``--name``, a kind as the first word, and the command as
one word with spaces, without ``--``. An option is declared here, read here, and becomes a field of ``Job``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core.commands import leading_variables
from hvd_elastic_ext.core.durations import METAVAR, whole_seconds
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cli.options import bare
from hvd_elastic_ext.jobs.spec import words
from hvd_elastic_ext.jobs.spec.job import CLEANS, KINDS, MAX_WORKERS, PULLS, Job
from hvd_elastic_ext.jobs.spec.words import ARENA_KINDS, OTHER_KINDS

IS_PROGRAM: Final = re.compile(r"python[0-9]*|bash|sh|env|torchrun|horovodrun|mpirun|hvd-elastic")
"""What nobody names a job, so that the name was forgotten."""
SHELLS: Final = ("sh", "bash")
HOSTS: Final = ("-H", "--hosts", "-hostfile", "--hostfile", "--hosts-file", "--discovery")
"""Options of the launcher that name a source of hosts. On a cluster the source is the daemon."""


def parted(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into options and the command: the words after ``--``; without that, all from the first word on that
    is neither the job's name nor an option's value. With arena's ``--name`` only a last word with spaces is one.

    Calls ``parser.error`` if a word of such a command is also an option here: ``--dry-run`` must not be missed.
    """
    given = list(argv)
    if "--" in given:
        at = given.index("--")
        return given[:at], given[at + 1 :]
    names = bare(parser, given)
    if given and " " in given[-1].strip() and names[-1:] == [len(given) - 1]:
        return given[:-1], given[-1:]
    if len(names) < 2 or _is_arenas(given):
        return given, []
    options, command = given[: names[1]], given[names[1] :]
    for option in (word.partition("=")[0] for word in command):
        if option in parser._option_string_actions:
            parser.error(f"{option} comes after {command[0]!r}, with which the command begins; write it before that")
    if IS_PROGRAM.fullmatch(given[names[0]]):
        parser.error(f"NAME is missing: {given[names[0]]!r} is a program")
    return options, command


def _is_arenas(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--name" for word in words)


def read(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return options and command, also of a command line written for arena. Raises :class:`UsageError`."""
    given, command = parted(parser, argv)
    given = words.switched(given)
    words.refuse(given)
    if not command and _is_arenas(given):
        given, command = _last_words(given, bare(parser, given))
    return parser.parse_args(given), command


def _last_words(given: list[str], names: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the options, and the words after the kind as the command: arena's lines give the job's name by an option,
    so these words are not names."""
    tail = [number for number in names[1:] if number >= len(given) - len(names) + 1]
    if not tail or tail != list(names[1:]):
        return given, []
    return given[: tail[0]], [" ".join(given[tail[0] :])]


def add_job(parser: argparse.ArgumentParser) -> None:
    """Options that make a :class:`Job`."""
    parser.add_argument(
        "named", metavar="NAME", nargs="?", default="", help="name of the job, with which names of its pods begin"
    )
    parser.add_argument("--name", metavar="NAME", default="", help="NAME in arena's form")
    parser.add_argument("--kind", choices=KINDS, help="kind of the job (default: by the cluster's operators)")
    parser.add_argument(
        "--image", default="", help="image of launcher and workers, with hvd-elastic and the training code"
    )
    parser.add_argument("--discover-image", metavar="IMAGE", default="", help="image of the daemon (default: --image)")
    parser.add_argument("--image-pull-policy", choices=PULLS, default="", help="when to pull the image")
    _sizes(parser.add_argument_group("size"))
    _endings(parser.add_argument_group("failures and spot"))
    _places(parser.add_argument_group("where and with what"))


def _sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--workers", metavar="N", type=int, default=1, help="workers at the start (1)")
    group.add_argument("--min-workers", metavar="N", type=int, default=1, help="fewest workers (1)")
    group.add_argument(
        "--max-workers", metavar="N", type=int, default=MAX_WORKERS, help=f"most workers ({MAX_WORKERS})"
    )
    group.add_argument("--gpus", metavar="N", type=int, default=0, help="GPUs of each worker (0)")
    group.add_argument("--slots", metavar="N", type=int, default=0, help="processes of each worker (its GPUs, or 1)")
    group.add_argument("--nproc-per-node", metavar="N", default="", help="--slots in arena's form")
    group.add_argument("--device", metavar="NAME=N", action="append", default=[], help="another device of each worker")
    group.add_argument("--share-memory", metavar="SIZE", default="", help="shared memory of each worker (1Gi)")
    group.add_argument("--cpu", metavar="N", default="", help="CPUs of each worker, request and limit")
    group.add_argument("--memory", metavar="SIZE", default="", help="memory of each worker, such as 16Gi")


def _endings(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--spot-instance", action="store_true", help="sleep while there are fewer than --min-workers")
    group.add_argument(
        "--max-wait-time", metavar=METAVAR, type=whole_seconds, default=0, help="longest sleep (0: no limit)"
    )
    group.add_argument("--job-restart-policy", metavar="POLICY", default="", help="Never or OnFailure")
    group.add_argument("--job-backoff-limit", metavar="N", type=int, help="restarts of a failed job (6)")
    group.add_argument(
        "--worker-restart-policy", metavar="POLICY", default="", help="Never, OnFailure, Always or ExitCode"
    )
    group.add_argument("--retry", metavar="N", type=int, help="restarts of a failed launcher by the operator")
    for name, text in (
        ("--running-timeout", "longest run of the job (no limit)"),
        ("--ttl-after-finished", "time from the job's end to its deletion (never)"),
    ):
        group.add_argument(name, metavar=METAVAR, type=whole_seconds, default=0, help=text)
    group.add_argument(
        "--clean-task-policy", choices=CLEANS, default="", help="which pods are deleted when the job ends"
    )


def _places(group: argparse._ArgumentGroup) -> None:
    for name, metavar, text in (
        ("--selector", "KEY=VALUE", "nodes of workers"),
        ("--launcher-selector", "KEY=VALUE", "nodes of the launcher"),
        ("--toleration", "TAINT", "all, KEY or KEY=VALUE:EFFECT,OPERATOR"),
        ("--env", "NAME=VALUE", "environment variable of launcher and workers"),
        ("--label", "KEY=VALUE", "label of the job and its pods"),
        ("--annotation", "KEY=VALUE", "annotation of the job and its pods"),
        ("--launcher-annotation", "KEY=VALUE", "annotation of the launcher's pod"),
        ("--worker-annotation", "KEY=VALUE", "annotation of worker pods"),
        ("--data", "CLAIM:PATH", "a PersistentVolumeClaim, mounted into every pod"),
        ("--image-pull-secret", "NAME", "Secret for a private registry"),
    ):
        short = {"--env": ["-e"], "--label": ["-l"], "--annotation": ["-a"], "--data": ["-d"]}.get(name, [])
        group.add_argument(*short, name, metavar=metavar, action="append", default=[], help=text)
    group.add_argument(
        "--sync",
        metavar="DIR",
        default="",
        help="code for every pod, at /code: a folder, git+https://…@REV or pvc:CLAIM/FOLDER",
    )
    group.add_argument("--sync-secret", metavar="NAME", default="", help="a basic-auth Secret for that repository")
    group.add_argument("--mounts-on-launcher", action="store_true", help="no effect: the launcher always has --data")
    group.add_argument("--shell", choices=SHELLS, default="sh", help="shell for a command that needs one (sh)")
    group.add_argument(
        "--working-dir", "--workingDir", metavar="DIR", default="", help="folder in which the command starts"
    )
    group.add_argument("-p", "--priority", metavar="CLASS", default="", help="priority class of pods")
    group.add_argument("--scheduler", metavar="NAME", default="", help="scheduler of the pods")
    group.add_argument("--ssh-secret", metavar="NAME", default="", help="a Secret with id and id.pub (default: made)")
    group.add_argument("--queue", metavar="KIND/NAME", default="", help="kueue/NAME or volcano/NAME")
    group.add_argument("--gang", action="store_true", help="place --min-workers together or not at all")


def settle(options: argparse.Namespace) -> None:
    """Set name and kind, also if they are given as for arena (``etjob --name=digits``). Raises :class:`UsageError`."""
    if options.name and options.named:
        if options.named not in ARENA_KINDS:
            if options.named in OTHER_KINDS:
                raise UsageError(
                    f"arena's {options.named} is not a kind of job here; there are {', '.join(ARENA_KINDS)}"
                )
            raise UsageError(f"{options.named!r} and --name {options.name!r}: give one name")
        options.kind = options.kind or ARENA_KINDS[options.named]
    elif options.named in {*ARENA_KINDS, *OTHER_KINDS}:
        raise UsageError(f"NAME is missing: {options.named} is a kind of arena's; give --name NAME")
    options.name = options.name or options.named
    if not options.name:
        raise UsageError("NAME is missing: hvd-elastic submit NAME --image IMAGE -- python train.py")


def job_of(options: argparse.Namespace, given: Sequence[str]) -> Job:
    """Return the job that the options describe, after :func:`settle`. Raises :class:`UsageError`."""
    variables = {
        "workers": str(options.workers),
        "minWorkers": str(options.min_workers),
        "maxWorkers": str(options.max_workers),
        "gpus": str(options.gpus),
    }
    command = words.command(given, variables, shell=options.shell)
    run_options, trained = _split(command.words) if command.launcher else ((), command.words)
    run_options, (assigned, trained) = words.without_script(run_options), leading_variables(trained)
    for word in run_options:
        if word.partition("=")[0] in HOSTS:
            raise UsageError(f"{word.partition('=')[0]} in the command: hosts come from the cluster; leave it out")
    return Job(
        name=options.name,
        image=options.image,
        command=trained,
        kind=options.kind,
        run_options=run_options,
        workers=options.workers,
        min_workers=options.min_workers,
        max_workers=options.max_workers,
        gpus=options.gpus,
        slots=words.processes(options.nproc_per_node, slots=options.slots, gpus=options.gpus),
        cpu=options.cpu,
        memory=options.memory,
        discover_image=options.discover_image,
        spot=options.spot_instance,
        max_wait_s=options.max_wait_time,
        restart_policy=options.job_restart_policy,
        backoff_limit=options.job_backoff_limit,
        worker_restart_policy=options.worker_restart_policy,
        working_dir=options.working_dir,
        shared_memory=options.share_memory,
        retries=options.retry,
        timeout_s=options.running_timeout,
        ttl_s=options.ttl_after_finished,
        clean_pods=options.clean_task_policy,
        pull_policy=options.image_pull_policy,
        priority=options.priority,
        scheduler=options.scheduler,
        ssh_secret=options.ssh_secret,
        queue=options.queue,
        sync=options.sync,
        sync_secret=options.sync_secret,
        gang=options.gang,
        tolerations=words.tolerations(options.toleration),
        pull_secrets=tuple(options.image_pull_secret),
        selector=words.pairs("--selector", options.selector),
        launcher_selector=words.pairs("--launcher-selector", options.launcher_selector),
        env={**words.pairs("--env", options.env), **command.variables, **assigned},
        labels=words.pairs("--label", options.label),
        annotations=words.pairs("--annotation", options.annotation),
        launcher_annotations=words.pairs("--launcher-annotation", options.launcher_annotation),
        worker_annotations=words.pairs("--worker-annotation", options.worker_annotation),
        volumes=words.claims(options.data),
        devices=words.pairs("--device", options.device),
    )


def _split(given: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split words into options of ``hvd-elastic run`` and the rest. Raises :class:`UsageError`."""
    from hvd_elastic_ext.launcher.cli.run_options import split  # it takes as long to load as all other modules together

    return split(given)
