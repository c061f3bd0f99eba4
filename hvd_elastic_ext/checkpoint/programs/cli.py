"""``hvd-elastic checkpoints``: list, verify, export and remove checkpoints.

It needs no running job: a store alone says what is in it. Secrets for a store are not taken on the command line, where
others see them.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

from hvd_elastic_ext.checkpoint.archive import catalog, read
from hvd_elastic_ext.checkpoint.archive.catalog import Entry, Retention
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.journal import FILE
from hvd_elastic_ext.core.journal import read as read_journal
from hvd_elastic_ext.core.secrets import USER, secret_in_options, secret_in_url
from hvd_elastic_ext.core.sizes import size_text
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.job_folders import find_journal, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import open_regular, read_given

MAX_OPTIONS: Final = 1 << 20
"""Most bytes of a file of ``--store-options``."""
CALL: Final = "call"
"""A column that is there only if a checkpoint is of the second training call or a later one."""
HEADINGS: Final = ("checkpoint", CALL, "step", "ranks", "size", "state")
OPTIONS_HELP: Final = "options of fsspec for the URL, as a JSON object; if it holds secrets: @FILE, a file with it"


def parser() -> argparse.ArgumentParser:
    """Return the parser for the options of ``hvd-elastic checkpoints``."""
    where = Parser(add_help=False)
    where.add_argument(
        "store",
        metavar="DIR",
        nargs="?",
        help="a folder, an fsspec URL such as s3://bucket/folder, or a job (default, not for prune: the newest here)",
    )
    where.add_argument("--job", metavar="NAME", help="a job, instead of DIR")
    where.add_argument("--store-options", metavar="JSON|@FILE", help=OPTIONS_HELP)
    output = Parser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON")
    options = Parser(
        prog="hvd-elastic checkpoints",
        description="List, verify, export and remove checkpoints. No code in a checkpoint is run.",
    )
    commands = options.add_subparsers(dest="do", metavar="COMMAND", required=True)
    commands.add_parser("list", parents=[where, output], help="list checkpoints, the newest first; checks only lengths")
    verify = commands.add_parser("verify", parents=[where, output], help="read every byte; exit code 1 if one is wrong")
    verify.add_argument("names", metavar="NAME", nargs="*", help="default: all complete ones")
    export = commands.add_parser("export", parents=[where], help="write one as a plain file for other programs")
    export.add_argument("--name", metavar="NAME", help="default: the newest complete one")
    export.add_argument(
        "--to",
        metavar="FILE",
        type=Path,
        required=True,
        help="FILE.pt (torch.save) or FILE.safetensors; of a Keras model FILE.keras or FILE.weights.h5; a new folder "
        "for files of your own functions",
    )
    export.add_argument(
        "--model",
        metavar="FILE.py:FUNCTION",
        help="your function that returns the Keras model, built: for a model that Keras cannot build by itself",
    )
    export.add_argument(
        "--call",
        metavar="K",
        type=int,
        help="the end of the finished training call K (1, 2, …; default: the call in progress)",
    )
    export.add_argument("--force", action="store_true", help="replace an existing FILE")
    prune = commands.add_parser("prune", parents=[where, output], help="remove old ones, and files of unfinished ones")
    prune.elsewhere["--(checkpoint-)?keep"] = "is an option of `hvd-elastic run`; here it is --last N"
    prune.add_argument("--last", metavar="N", type=int, default=3, help="keep the newest N (default: 3)")
    prune.add_argument("--every", metavar="STEPS", type=int, help="also keep the first of every so many steps")
    prune.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    return options


def main(argv: Sequence[str]) -> int:
    """Run one command. Raises :class:`UsageError` with one line for invalid arguments."""
    options = parser().parse_args(argv)
    if options.do == "verify" and None not in (options.store, options.job):
        options.store, options.names = None, [options.store, *options.names]
    named = one_job(options.store, options.job)
    if options.do == "prune" and named is None:
        raise UsageError(_unnamed(argv))
    options.store = place_of(named)
    if "://" not in options.store and not Path(options.store).is_dir():
        raise UsageError(f"there is no folder {options.store}; a job's is STATE_DIR/checkpoints or --checkpoint-dir")
    secret = secret_in_url(options.store)
    if secret not in (None, USER):
        raise UsageError(f"the URL holds {secret}, which others see in the list of processes; {_INSTEAD}")
    store = open_store(options.store, _store_options(options.store_options))
    commands = {"list": _list, "verify": _verify, "export": _export, "prune": _prune}
    return commands[options.do](store, options)


def _unnamed(argv: Sequence[str]) -> str:
    """The error of a command that removes something, and is not told of which job: it is never guessed."""
    given = [word for word in argv if word != "prune"]
    try:
        newest = shlex.join(["hvd-elastic", "checkpoints", "prune", place_of(None), *given])
    except UsageError:
        return "prune removes checkpoints: name their DIR or their job"
    return f"prune removes checkpoints: name their DIR or their job; for the newest job here: {newest}"


def place_of(given: str | None) -> str:
    """Return the place of checkpoints: the given one, or that of the last checkpoint of the named or newest job. Raises
    :class:`UsageError` if that job has made none.
    """
    if given is not None and ("://" in given or (Path(given).is_dir() and not (Path(given) / FILE).exists())):
        return given
    journal = find_journal(given)
    if given is not None and not journal.exists():
        return given
    try:
        with io.TextIOWrapper(open_regular(journal), encoding="utf-8", errors="replace") as lines:
            records = [record for record in read_journal(lines) if record.event in ("sealed", "started")]
    except OSError as error:
        remedy = "name a job, its folder or its journal"
        raise UsageError(f"{journal}: cannot be read: {error.strerror}; {remedy}") from None
    made = [str(record.get("path")) for record in records if record.event == "sealed"]
    if not made:
        if records and (place := records[-1].get("checkpoints")):
            raise UsageError(f"{journal}: no checkpoint has been completed; they go to {place}")
        raise UsageError(f"{journal} has no record of a checkpoint; give the folder or URL of --checkpoint-dir")
    return made[-1].rpartition("/")[0]


_INSTEAD: Final = (
    "give it by --store-options @FILE, a file that only you can read, or as the driver takes it, in the environment"
)


def _store_options(given: str | None) -> Mapping[str, Any]:
    """Return the options of ``--store-options``, or of the file that it names. Errors quote none of them."""
    is_file = given is not None and given.startswith("@")
    text, where = given or "{}", "--store-options"
    if given is not None and is_file:
        where = f"--store-options {given}"
        try:
            text = read_given(given[1:], most=MAX_OPTIONS).decode("utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"{where}: {why}; name a file that holds a JSON object") from None
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where} is JSON that cannot be read") from None
    if not isinstance(options, dict):
        raise UsageError(f"{where}: write a JSON object, such as '{{\"anon\": true}}'")
    secret = None if is_file else secret_in_options(options)
    if secret is not None:
        raise UsageError(
            f"--store-options: {secret!r} is a secret that others see in the list of processes; {_INSTEAD}"
        )
    return options


def _list(store: Store, options: argparse.Namespace) -> int:
    _show(catalog.listing(store), sys.stdout, as_json=options.json, empty=f"no checkpoints in {store.where}")
    return 0


def _verify(store: Store, options: argparse.Namespace) -> int:
    entries = [entry for entry in catalog.listing(store) if entry.sealed]
    unknown = set(options.names) - {entry.name for entry in entries}
    if unknown:
        raise Missing(f"checkpoint {min(unknown)} in {store.where}")
    wanted = [entry for entry in entries if not options.names or entry.name in options.names]
    checked = [_checked(store, entry) for entry in wanted]
    _show(checked, sys.stdout, as_json=options.json, empty=f"no checkpoints in {store.where}")
    if checked and not options.json:
        sys.stdout.write(f"{summary(checked)}\n")
    return 0 if all(entry.whole for entry in checked) else 1


def summary(checked: Sequence[Entry]) -> str:
    """Return what was checked, and how many are whole. Pure."""
    whole = [entry for entry in checked if entry.whole]
    damaged = f"; {len(checked) - len(whole)} damaged" * (len(whole) < len(checked))
    read_ = size_text(sum(entry.bytes or 0 for entry in whole))
    return f"verified: {len(whole)} of {len(checked)} whole; all {read_} of them match their checksums{damaged}"


def _checked(store: Store, entry: Entry) -> Entry:
    if entry.whole:
        try:
            read.verify(store, entry.name)
        except Damaged as error:
            return replace(entry, whole=False, why=error.why)
    return entry


def _export(store: Store, options: argparse.Namespace) -> int:
    from hvd_elastic_ext.checkpoint.conversion import export  # torch, for this only

    name = options.name or _newest(store)
    count = export.export(store, name, options.to, replace=options.force, call=options.call, model=options.model)
    what = "file" if options.to.is_dir() else "tensor"
    shown = next((entry.shown for entry in catalog.listing(store) if entry.name == name), name)
    call = "" if options.call is None else f", call {options.call}"
    sys.stdout.write(f"{shown}{call}: {count} {what}{'' if count == 1 else 's'} to {options.to}\n")
    return 0


def _newest(store: Store) -> str:
    for entry in catalog.listing(store):
        if entry.whole:
            return entry.name
        if entry.sealed:
            sys.stderr.write(f"hvd-elastic checkpoints: {entry.shown} is passed over: {entry.why}\n")
    raise Permanent(
        f"{store.where} does not hold a complete checkpoint; `hvd-elastic checkpoints list` shows what is there"
    )


def _prune(store: Store, options: argparse.Namespace) -> int:
    keep = Retention(options.last, options.every)
    gone = catalog.removable(catalog.listing(store), keep) if options.dry_run else catalog.prune(store, keep)
    if options.json:
        sys.stdout.write(json.dumps([named._asdict() for named in gone], indent=1, allow_nan=False) + "\n")
        return 0
    done = "would be removed" if options.dry_run else "removed"
    for named in gone:
        sys.stdout.write(f"{named.shown}: {done}: {named.why}\n")
    sys.stdout.write(f"{len(gone)} {done}\n")
    return 0


def _show(entries: Sequence[Entry], stream: TextIO, *, as_json: bool, empty: str) -> None:
    if as_json:
        listed = [catalog.entry_to_json(entry) for entry in entries]
        stream.write(json.dumps(listed, indent=1, allow_nan=False) + "\n")
    elif not entries:
        stream.write(f"{empty}\n")
    else:
        headings = [each for each in HEADINGS if each != CALL or any(entry.call > 1 for entry in entries)]
        rows = (
            ([_cells(entry)[each] for each in headings], "" if entry.whole else "red" if entry.sealed else "dim")
            for entry in entries
        )
        tables.show(stream, headings, rows, right=(CALL, "step", "ranks", "size"))


def _cells(entry: Entry) -> dict[str, str]:
    """Return the cells of a row by their headings; "" for unknown values."""
    state = _whole(entry) if entry.whole else f"damaged: {entry.why}" if entry.sealed else entry.why
    call, world = _number(entry.call or None), _number(entry.world or None)
    return dict(
        zip(HEADINGS, (entry.name, call, _number(entry.step), world, size_text(entry.bytes), state), strict=True)
    )


def _whole(entry: Entry) -> str:
    state = "whole, the end of training" if entry.facts.get("finished") else "whole"
    return f"{state}; no job can resume from it: {entry.lacks}" if entry.lacks else state


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
