"""``python -m hvd_elastic_ext.checkpoint.programs.requests``: does the work of checkpoints in a process of its own.

One JSON order a line on standard input, one JSON answer a line on standard output, in order; it ends with its input.
Whoever starts it hands down the descriptors of sides (``core/commit_record.py``: a page with the record, then the
bytes). It gives way to everything else that wants processor or disk, but for an order with ``"urgent": true``. What was
done has ``seconds`` in its answer, and ``nice``, the priority at which it was done.

``store`` is a folder or an fsspec URL, ``options`` (optional) what fsspec is given for it::

    {"do": "write", "store": S, "fd": 7, "identity": [l, i, g, n], "part": 0, "parts": 2, "rank": 0}
        writes part 0 of 2 of the commit of that identity, and the rank's own state; part 0 also what all share. Of
        part null it is the rank's own state alone
        -> {"ok": true, "name": N, "record": R, "receipts": [...], "bytes": 302e6, "seconds": 0.2}
    {"do": "seal", "store": S, "record": R, "parts": 2, "world": 2, "receipts": [... of all parts ...],
     "score": null, "facts": {}}
        makes it exist; ``score`` is what retention's "best" goes by, ``facts`` anything, given back with entries
        -> {"ok": true, "name": N, "bytes": 604e6, "seconds": 0.01}
    {"do": "find", "store": S, "verify": false, "skip": []}
        the newest one that is whole, passing over those named in ``skip``; ``verify`` reads every byte of it
        -> {"ok": true, "newest": E or null, "passed_over": [{"name": N, "why": "..."}], "entries": [E, ...]}
    {"do": "load", "store": S, "name": N, "into": [{"fd": 7, "rank": 0, "sequence": 1}, ...], "identity": [l, i, g, n]}
        fills sides with it, each with its rank's own state, and seals them under ``sequence``; without one, no record
        is written. With an ``identity`` the commit goes by that one. ``local`` says whether the rank's own state was
        there: if not, the side's is empty
        -> {"ok": true, "bytes": 604e6, "seconds": 0.3, "into": [{"rank": 0, "record": R, "local": true}, ...]}
    {"do": "verify", "store": S, "name": N}
        -> {"ok": true, "whole": true, "why": "", "seconds": 0.2}
    {"do": "remove", "store": S, "name": N}
        -> {"ok": true, "seconds": 0.01}
    {"do": "prune", "store": S, "keep": {"last": 3, "every": 1000, "best": 1}, "active": [N, ...]}
        ``active`` are being written now by others: their files stay
        -> {"ok": true, "removed": [{"name": N, "why": "..."}, ...]}

R is ``{"identity": [lineage, incarnation, generation, number], "step": .., "loose": .., "data": .., "layout": ..,
"tree": .., "local": ..}``; of a side that was filled ``stored`` is told in its own record, too. E is ``{"name": ..,
"identity": .., "step": .., "bytes": .., "world": .., "score": .., "facts": .., "whole": true, "sealed": true,
"why": ""}``. What fails is answered with one line: ``{"ok": false, "error": "...", "transient": true,
"damaged": false}``; of a load that failed the sides hold no record.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

import psutil

from hvd_elastic_ext.checkpoint.archive import catalog, read, write
from hvd_elastic_ext.checkpoint.archive.retention import Retention, entry_to_json
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.errors import Damaged
from hvd_elastic_ext.checkpoint.format.manifest import record_from_json, record_to_json
from hvd_elastic_ext.checkpoint.format.naming import name_of
from hvd_elastic_ext.checkpoint.stores import Store, open_store
from hvd_elastic_ext.core import commit_record as sides
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import ElasticError, Permanent, Transient

Order = Mapping[str, Any]
Answer = dict[str, Any]

NICE: Final = 15
"""A busy core leaves this some 3 % of itself: what has to be done is done in seconds, and nobody feels it."""


def main() -> int:
    """Answer orders until there are no more."""
    # Whatever else prints, in this process or a library, must not come between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with ThreadPoolExecutor(1) as hurry:
        hurry.submit(time.monotonic).result()  # this thread is made before, and so stays as it is
        give_way()
        for line in sys.stdin:
            told = hurry.submit(answer, line).result() if _is_urgent(line) else answer(line)
            answers.write(json.dumps(told) + "\n")
            answers.flush()
    return 0


def answer(line: str) -> Answer:
    """Do what one order says; what fails is an answer, too."""
    begun = time.monotonic()
    try:
        order = json.loads(line)
        done = ORDERS[order["do"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return _failed(None, f"no order is understood in {line[:80]!r}")
    try:
        told = done(open_store(order["store"], order.get("options")), order)
    except ElasticError as error:
        return _failed(error, str(error))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return _failed(error, f"the order to {order['do']} is wrong: {type(error).__name__}: {error}")
    except OSError as error:  # of memory and descriptors: stores have errors of their own
        return _failed(error, f"the order to {order['do']} failed: {error}")
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # of this very thread
    return {"ok": True, **told, "seconds": round(time.monotonic() - begun, 6), "nice": nice}


def _write(store: Store, order: Order) -> Answer:
    identity = Identity(*map(int, order["identity"]))
    side = mmap.mmap(order["fd"], 0, prot=mmap.PROT_READ)
    record = _sealed(side, identity)
    commit = memoryview(side)[sides.PAGE :]
    files = write.write_part(store, record, commit, part=order["part"], parts=order["parts"], rank=order.get("rank"))
    if _sealed(side, identity) != record:
        raise Permanent(f"commit {name_of(identity)} was replaced in memory while it was written")
    written = sum(file.bytes for file in files)
    receipts = [asdict(file) for file in files]
    return {"name": name_of(identity), "record": record_to_json(record), "receipts": receipts, "bytes": written}


def _seal(store: Store, order: Order) -> Answer:
    made = write.seal(
        store,
        record_from_json(order["record"]),
        [manifests.file_from_json(receipt) for receipt in order["receipts"]],
        parts=order["parts"],
        world=order["world"],
        score=order.get("score"),
        facts=order.get("facts"),
    )
    return {"name": name_of(made.record.identity), "bytes": made.bytes}


def _find(store: Store, order: Order) -> Answer:
    choice, entries = catalog.look(store, verify=order.get("verify", False), skip=order.get("skip", ()))
    return {
        "newest": None if choice.newest is None else entry_to_json(choice.newest),
        "passed_over": [named._asdict() for named in choice.passed_over],
        "entries": [entry_to_json(entry) for entry in entries],
    }


def _verify(store: Store, order: Order) -> Answer:
    try:
        read.verify(store, order["name"])
    except Damaged as error:
        return {"whole": False, "why": error.why}
    return {"whole": True, "why": ""}


def _load(store: Store, order: Order) -> Answer:
    targets = order["into"]
    for target in targets:
        _forget(target["fd"])
    checkpoint = read.opened(store, order["name"])
    told: list[Answer] = []
    first: tuple[memoryview, Record] | None = None
    for target in targets:
        local = checkpoint.local(target["rank"])
        record = checkpoint.record(local or b"")
        record = record._replace(identity=Identity(*map(int, order.get("identity", record.identity))))
        side = _grown(target["fd"], record.total)
        commit = memoryview(side)[sides.PAGE :]
        if first is None:
            checkpoint.fill(commit, local or b"")
            first = commit, record
        else:
            commit[: record.shared] = first[0][: record.shared]
            commit[record.shared : record.total] = local or b""
        if "sequence" in target:
            _write_record(side, target["sequence"], record)
        told.append({"rank": target["rank"], "record": record_to_json(record), "local": local is not None})
    return {"into": told, "bytes": checkpoint.manifest.bytes}


def _remove(store: Store, order: Order) -> Answer:
    catalog.remove(store, order["name"])
    return {}


def _prune(store: Store, order: Order) -> Answer:
    removed = catalog.prune(store, Retention(**order["keep"]), order.get("active", ()))
    return {"removed": [named._asdict() for named in removed]}


ORDERS: Final[Mapping[str, Callable[[Store, Order], Answer]]] = {
    "write": _write,
    "seal": _seal,
    "find": _find,
    "verify": _verify,
    "load": _load,
    "remove": _remove,
    "prune": _prune,
}


def _sealed(side: mmap.mmap, identity: Identity) -> Record:
    found = sides.newest(side, len(side) - sides.PAGE) if len(side) >= sides.PAGE else None
    if found is None or found.record.identity != identity:
        raise Permanent(f"commit {name_of(identity)} is not in that memory; name one that is kept there")
    return found.record


def _forget(descriptor: int) -> None:
    """What lies on a side is no commit from now on."""
    if os.fstat(descriptor).st_size >= sides.PAGE:
        page = mmap.mmap(descriptor, sides.PAGE)
        for place in sides.PLACES:
            page[place : place + len(sides.NO_HEAD)] = sides.NO_HEAD


def _grown(descriptor: int, length: int) -> mmap.mmap:
    size = sides.PAGE * (1 + -(-length // sides.PAGE))
    size = max(size, os.fstat(descriptor).st_size)
    os.ftruncate(descriptor, size)
    return mmap.mmap(descriptor, size)


def _write_record(side: mmap.mmap, sequence: int, record: Record) -> None:
    head, fields = sides.pack(sequence, record)
    side[len(head) : len(head) + len(fields)] = fields
    side[: len(head)] = head


def _is_urgent(line: str) -> bool:
    try:
        return bool(json.loads(line).get("urgent", False))
    except (ValueError, AttributeError, RecursionError):
        return False


def give_way() -> None:
    """Let everything else go first; of threads, only this one and those it starts from now on do."""
    with contextlib.suppress(OSError, psutil.Error):
        os.nice(NICE)
        # The lowest of those that always get on: an idle class would wait for ever behind a steady reader.
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)


def _failed(error: Exception | None, why: str) -> Answer:
    return {
        "ok": False,
        "error": " ".join(why.split()),
        "transient": isinstance(error, Transient | OSError),
        "damaged": isinstance(error, Damaged),
    }


if __name__ == "__main__":
    sys.exit(main())
