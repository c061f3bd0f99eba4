"""``python -m hvd_elastic_ext.checkpoint.programs.agent_requests``: what an agent starts for a checkpoint of its job.

One request of the launcher's, as JSON on standard input (``launcher/state/effects/checkpoints``,
``launcher/state/effects/membership/transfers.py``); one answer on standard output, two of ``send``. To the request the
agent has added ``sides``: for each slot the descriptors of its commit memory; and ``secret`` to one with ``transfer``.
It gives way to everything else that wants processor or disk, but where training waits for it, or with
``"urgent": true``::

    {"do": "write", "place": P, "commit": [l, i, g, n], "parts": 3, "shares": {slot: [part, rank, side]}}
        some of the parts of a commit that is kept, and the own states of these ranks; part null: that alone
        -> {"record": R of part 0 or null, "receipts": [...], "bytes": 3e8, "store": "which storage P is here"}
    {"do": "seal", "place": P, "world": 3, "parts": 3, "written": [those answers, of all parts], "keep": 3,
     "facts": anything}
        makes it exist, and removes older ones
        -> {"path": P/N, "bytes": 6e8}; "not_removed": "why" if older ones could not be removed
    {"do": "load", "place": P, "ranks": {slot: rank}, "done": MARK or null}
        the newest that is whole, into the memory of each slot whose rank has left its own state there; if none has,
        into that of the first, with the own state of another. Nothing is loaded if the newest one has ``finished``
        among its facts, and that is MARK
        -> {} if there is none; {"done": true, "path": P/N, "step": 40, "passed_over": [...]} then; else
           {"path": P/N, "step": 40, "generation": 7, "slots": [those that have it], "passed_over": ["why", ...],
            "facts": what was given at the seal, "commit": [i, g, n] of the checkpoint, "held": [i, g, n, step] of
            what the first of these slots holds now}
    {"do": "held", "place": P, "skip": [N, ...]}
        what lies in each slot's memory, and which checkpoint is the newest that looks whole, but for those
        -> {"held": {slot: [[l, i, g, n], step, side]}, "newest": null or {"name": N, "path": P/N, "identity": [l, i,
           g, n], "step": 40, "finished": that of its facts, or null}}
    {"do": "verify", "place": P, "name": N}
        reads every byte of one
        -> {"whole": true, "why": ""}
    {"do": "send", "transfer": T, "slot": S, "commit": [i, g, n], "address": "127.0.0.1"}
        sends a commit from the slot's memory to the one that proves to be the other end of this transfer
        -> {"listening": [address, port]}, and when the receiver holds it
           {"sent": 3e8, "seconds": 0.6}
    {"do": "receive", "transfer": T, "slot": D, "commit": [i, g, n], "from": [address, port]}
        that commit into the slot's memory, unless one as new as that lies there already
        -> {"held": [i, g, n, step], "bytes": 3e8, "seconds": 0.6}
    {"do": "copy", "from": S, "to": D, "commit": [i, g, n]}
        the same within a host

P is a folder or an fsspec URL, N the name of a checkpoint, R a record (``checkpoint/format/manifest.py``). What cannot
be done is ``{"failed": "why", "for_good": whether trying again is useless}``; of the last three ``for_good`` means that
the memory does not hold the commit. What a slot's memory held before is held after a failure.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from hvd_elastic_ext.checkpoint.archive import catalog, read, retention, write
from hvd_elastic_ext.checkpoint.archive.read import Checkpoint
from hvd_elastic_ext.checkpoint.archive.retention import Entry, Retention
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import (
    LOCAL,
    File,
    file_from_json,
    record_from_json,
    record_to_json,
)
from hvd_elastic_ext.checkpoint.format.naming import name_of
from hvd_elastic_ext.checkpoint.stores import Store, open_store
from hvd_elastic_ext.checkpoint.transfer import slot_memory, transfer
from hvd_elastic_ext.core.commit_record import PAGE, Identity, Record
from hvd_elastic_ext.core.errors import ElasticError, Permanent, Transient
from hvd_elastic_ext.core.json_text import to_text

Request = Mapping[str, Any]
HelperAnswer = dict[str, Any]
Say = Callable[[HelperAnswer], None]

MARK: Final = ".store"
"""File by which a host's storage is known for the same as another's."""
URGENT: Final = ("load", "send", "receive", "copy")
"""What training waits for."""
NICE: Final = 15
"""A busy core leaves this some 3 % of itself."""


def main() -> int:
    """Do what is asked for; the answer says how it went."""
    # Whatever else prints, in this process or a library, must not come between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    if request["do"] not in URGENT and not request.get("urgent"):
        _give_way()

    def say(answer: HelperAnswer) -> None:
        print(to_text(answer), file=answers, flush=True)

    say(answered(request, say))
    return 0


def _give_way() -> None:
    """Let everything else go first; of threads, only this one and those it starts from now on do."""
    with contextlib.suppress(OSError, psutil.Error):
        os.nice(NICE)
        # The lowest of those that always get on: an idle class would wait for ever behind a steady reader.
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)


def answered(request: Request, say: Say = lambda answer: None) -> HelperAnswer:
    """Return the answer to one request, the last one if there are several; ``say`` gets those before."""
    try:
        return _send(request, say) if request["do"] == "send" else _DO[request["do"]](request)
    except (ElasticError, OSError) as error:
        return {"failed": " ".join(str(error).split()), "for_good": isinstance(error, Permanent)}


# --- checkpoints


def _write(request: Request) -> HelperAnswer:
    store, identity = open_store(request["place"]), Identity(*request["commit"])
    first: Record | None = None
    files: list[File] = []
    for slot, (part, rank, side) in request["shares"].items():
        descriptor = request["sides"][slot][side]
        record = _demanded(descriptor, identity)
        commit = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))[PAGE:]
        files += write.write_part(store, record, commit, part=part, parts=request["parts"], rank=rank)
        if _demanded(descriptor, identity) != record:
            raise Permanent(f"commit {name_of(identity)} was replaced in memory while it was written")
        first = record if part == 0 else first
    return {
        "record": None if first is None else record_to_json(first),
        "receipts": [asdict(file) for file in files],
        "bytes": sum(file.bytes for file in files),
        "store": _which(request["place"]),
    }


def _demanded(descriptor: int, identity: Identity) -> Record:
    (found,) = slot_memory.sealed([descriptor])
    if found is None or found.record.identity != identity:
        raise Permanent(f"commit {name_of(identity)} is not in that memory")
    return found.record


def _which(place: str) -> str:
    """Tell storage of the same path apart: hosts that share none must not each write a part of the same checkpoint."""
    if "://" in place:
        return place
    mark = Path(place, MARK)
    with contextlib.suppress(FileExistsError):
        _make(mark)
    # Two hosts may be at it at once: the one that reads before the other has written reads again.
    for _ in range(100):
        if word := mark.read_text():
            return word
        time.sleep(0.01)
    mark.unlink(missing_ok=True)  # or nothing would ever be written here again
    raise Transient(f"{mark} was empty, since its writer was killed; the next attempt writes it again")


def _make(mark: Path) -> None:
    with mark.open("x") as file:
        try:
            file.write(secrets.token_hex(16))
            file.flush()
        except OSError:
            mark.unlink(missing_ok=True)  # a full disk, say
            raise


def _seal(request: Request) -> HelperAnswer:
    store, written = open_store(request["place"]), request["written"]
    made = write.seal(
        store,
        record_from_json(next(each["record"] for each in written if each["record"] is not None)),
        [file_from_json(receipt) for each in written for receipt in each["receipts"]],
        parts=request["parts"],
        world=request["world"],
        facts=request.get("facts"),
    )
    told = {"path": _path(request, name_of(made.record.identity)), "bytes": made.bytes}
    try:
        catalog.prune(store, Retention(last=request["keep"]))
    except ElasticError as error:
        told["not_removed"] = " ".join(str(error).split())
    return told


def _load(request: Request) -> HelperAnswer:
    store, passed_over = open_store(request["place"]), list[str]()
    entries = catalog.listing(store)
    for entry in entries:
        why = entry.why
        if entry.whole:
            try:
                return {**_loaded(request, store, entry, entries), "passed_over": passed_over}
            except (Damaged, Missing) as error:
                why = error.why if isinstance(error, Damaged) else "it was removed"
        if entry.sealed:
            passed_over.append(f"{entry.name}: {why}")
    if not passed_over:
        return {}
    place = request["place"]
    raise Permanent(
        f"{len(passed_over)} checkpoints in {place} and none is whole ({passed_over[0]}); look with "
        f"`hvd-elastic checkpoints verify {place}`, or name another --checkpoint-dir to start training from scratch"
    )


def _loaded(request: Request, store: Store, entry: Entry, entries: Sequence[Entry]) -> HelperAnswer:
    """Load one checkpoint. Raises :class:`Damaged` before anything of it is sealed in memory."""
    told: HelperAnswer = {"path": _path(request, entry.name), "step": entry.step}
    if request.get("done") and entry.facts.get("finished") == request["done"]:
        return {**told, "done": True}
    checkpoint = read.opened(store, entry.name)
    ranks, identity = _who(request, checkpoint), _beyond(entry.identity, entries)
    into = [slot for slot in ranks if not _is_past(request["sides"][slot], identity)]
    _fill(checkpoint, identity, {slot: request["sides"][slot] for slot in into}, ranks)
    _, held = slot_memory.held(request["sides"][next(iter(ranks))]) or (0, None)
    return {
        **told,
        "generation": identity.generation,
        "facts": entry.facts,
        "commit": identity[1:],  # a slot may hold a newer one
        "slots": [int(slot) for slot in ranks],
        "held": None if held is None else slot_memory.commit_numbers(held.record),
    }


def _fill(
    checkpoint: Checkpoint, identity: Identity, memories: Mapping[str, Sequence[int]], ranks: Mapping[str, int]
) -> None:
    """Give it to slots, sealed last of all that lies there: that is what a process takes up."""
    own = {slot: checkpoint.local(ranks[slot]) or b"" for slot in memories}
    with contextlib.ExitStack() as stack:
        first: memoryview | None = None
        for slot, memory in memories.items():
            target = stack.enter_context(slot_memory.writing(memory))
            record = checkpoint.record(own[slot])._replace(identity=identity)
            into = stack.enter_context(slot_memory.room(target.descriptor, record.total))
            if first is None:
                checkpoint.fill(into, own[slot])
                first = into
            else:
                into[: record.shared] = first[: record.shared]
            target.seal(record, own[slot])


def _beyond(identity: Identity, entries: Sequence[Entry]) -> Identity:
    """The loaded commit's identity, in a world that is as late as any that left something here.

    What follows is newer then than what was passed over: it is found first, and kept longer.
    """
    worlds = [(each.identity.incarnation, each.identity.generation) for each in entries if each.sealed]
    incarnation, generation = max([(identity.incarnation, identity.generation), *worlds])
    return identity._replace(incarnation=incarnation, generation=generation)


def _who(request: Request, checkpoint: Checkpoint) -> dict[str, int]:
    """For each slot, the rank from which its own state comes."""
    there = [file.number for file in checkpoint.manifest.files if file.kind == LOCAL]
    own = {slot: rank for slot, rank in request["ranks"].items() if rank in there}
    return own or {min(request["ranks"], key=int): min(there, default=0)}


def _is_past(memory: Sequence[int], identity: Identity) -> bool:
    """Whether a slot's memory has outlived its processes and their launcher, and with it a commit as new as that."""
    lying = [found.record.identity for found in slot_memory.sealed(memory) if found is not None]
    return any(each.lineage and each[1:] >= identity[1:] for each in lying)


def _held(request: Request) -> HelperAnswer:
    held = {}
    for slot, memory in request["sides"].items():
        if (found := slot_memory.held(memory)) is not None:
            side, sealed = found
            held[slot] = [list(sealed.record.identity), sealed.record.step, side]
    newest = retention.newest(catalog.listing(open_store(request["place"])), request.get("skip", ()))
    if newest is None:
        return {"held": held, "newest": None}
    told = {"name": newest.name, "path": _path(request, newest.name), "finished": newest.facts.get("finished")}
    return {"held": held, "newest": {**told, "identity": list(newest.identity), "step": newest.step}}


def _verify(request: Request) -> HelperAnswer:
    try:
        read.verify(open_store(request["place"]), request["name"])
    except Damaged as error:
        return {"whole": False, "why": error.why}
    return {"whole": True, "why": ""}


def _path(request: Request, name: str) -> str:
    return f"{request['place']}/{name}"


# --- transfers


def _send(request: Request, say: Say) -> HelperAnswer:
    secret, memory = bytes.fromhex(request["secret"]), request["sides"][str(request["slot"])]
    with (
        slot_memory.reading(memory, tuple(request["commit"])) as source,
        transfer.listening(request["address"]) as listener,
    ):
        say({"listening": list(listener.getsockname()[:2])})
        done_in_s = transfer.send(
            listener, secret, source.record,
            data=source.shared, demand_same=source.demand_same, wait_s=transfer.WAIT_S,
        )  # fmt: skip
        return {"sent": source.record.shared, "seconds": round(done_in_s, 3)}


def _receive(request: Request) -> HelperAnswer:
    memory, began = request["sides"][str(request["slot"])], time.monotonic()
    if (there := _as_new(memory, request["commit"])) is not None:
        return there
    address, port = request["from"]
    with transfer.receiving((address, port), bytes.fromhex(request["secret"])) as incoming:
        record = incoming.record()
        if list(record.identity[1:]) != request["commit"] or not record.identity.lineage:
            raise Transient("the sender has sent another commit than was asked for")
        with slot_memory.writing(memory) as target:
            with slot_memory.room(target.descriptor, record.shared) as into:
                incoming.read(into)
            target.seal(record)
        incoming.confirm()
    return _got(record, began)


def _copy(request: Request) -> HelperAnswer:
    memory, began = request["sides"][str(request["to"])], time.monotonic()
    if (there := _as_new(memory, request["commit"])) is not None:
        return there
    with (
        slot_memory.reading(request["sides"][str(request["from"])], tuple(request["commit"])) as source,
        slot_memory.writing(memory) as target,
    ):
        with slot_memory.room(target.descriptor, source.record.shared) as into:
            slot_memory.copy(source, into)
        source.demand_same()
        target.seal(source.record)
        return _got(source.record, began)


def _as_new(memory: list[int], commit: list[int]) -> HelperAnswer | None:
    """The answer where nothing has to be transferred: the memory holds that commit already, or a newer one."""
    found = slot_memory.held(memory)
    if found is None or list(found[1].record.identity[1:]) < commit:
        return None
    return {"held": slot_memory.commit_numbers(found[1].record), "bytes": 0, "seconds": 0.0}


def _got(record: Record, began: float) -> HelperAnswer:
    seconds = round(time.monotonic() - began, 3)
    return {"held": slot_memory.commit_numbers(record), "bytes": record.shared, "seconds": seconds}


_DO: Final = {
    "receive": _receive,
    "copy": _copy,
    "write": _write,
    "seal": _seal,
    "load": _load,
    "held": _held,
    "verify": _verify,
}


if __name__ == "__main__":
    sys.exit(main())
