"""Requests about checkpoints: write, seal, load, list. See :mod:`agent_requests`."""

from __future__ import annotations

import contextlib
import mmap
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hvd_elastic_ext.checkpoint.archive import catalog, read, results, write
from hvd_elastic_ext.checkpoint.archive.catalog import Entry, Retention
from hvd_elastic_ext.checkpoint.archive.read import Checkpoint
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import (
    LOCAL,
    CallResult,
    File,
    file_from_json,
    name_of,
    record_from_json,
    record_to_json,
    result_from_json,
    result_to_json,
)
from hvd_elastic_ext.checkpoint.programs import HelperAnswer, Request, Send
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from hvd_elastic_ext.checkpoint.transfer import slot_memory
from hvd_elastic_ext.core.commit_record import PAGE, Identity, Record
from hvd_elastic_ext.core.errors import ElasticError, Permanent, Transient

MARK: Final = ".store"
"""Name of the file by which hosts recognize that they share storage."""


def answer(request: Request, send: Send) -> HelperAnswer:
    """Return the only answer."""
    return _DO[request["do"]](request)


def _write(request: Request) -> HelperAnswer:
    store, identity = open_store(request["place"]), Identity(*request["commit"])
    first: Record | None = None
    files: list[File] = []
    finished: tuple[CallResult, ...] = ()
    for slot, (part, rank, side) in request["shares"].items():
        descriptor = request["sides"][slot][side]
        record = _demanded(descriptor, identity)
        commit = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))[PAGE:]
        files += write.write_part(store, record, commit, part=part, parts=request["parts"], rank=rank)
        if _demanded(descriptor, identity) != record:
            raise Permanent(f"commit {name_of(identity)} was replaced in memory while it was written")
        if part == 0:
            first = record
            # After the part: what prunes must see that a checkpoint is in progress before it sees these files.
            past = _results_of(request, slot)
            finished = () if past is None else results.write(store, past, record.call)
    return {
        "record": None if first is None else record_to_json(first),
        "receipts": [asdict(file) for file in files],
        "results": [result_to_json(each) for each in finished],
        "bytes": sum(file.bytes for file in files),
        "store": _which(request["place"]),
    }


def _results_of(request: Request, slot: str) -> int | None:
    """Return the memory file with the results of the slot's finished calls; None if the agent has none."""
    found = request.get("pasts", {}).get(slot)
    return None if found is None else int(found)


def _demanded(descriptor: int, identity: Identity) -> Record:
    (found,) = slot_memory.sealed([descriptor])
    if found is None or found.record.identity != identity:
        raise Permanent(f"commit {name_of(identity)} is not in that memory")
    return found.record


def _which(place: str) -> str:
    """Return the identity of the storage: hosts that have the same path, but no shared storage, must not write parts of
    one checkpoint."""
    if "://" in place:
        return place
    mark = Path(place, MARK)
    with contextlib.suppress(FileExistsError):
        _make(mark)
    # Two hosts may do this at the same time. One that reads before the other has written reads again.
    for _ in range(100):
        if word := mark.read_text():
            return word
        time.sleep(0.01)
    mark.unlink(missing_ok=True)  # otherwise the mark would stay empty for ever
    raise Transient(f"{mark} was empty, since its writer was killed; the next attempt writes it again")


def _make(mark: Path) -> None:
    with mark.open("x") as file:
        try:
            file.write(secrets.token_hex(16))
            file.flush()
        except OSError:
            mark.unlink(missing_ok=True)  # on a full disk, for example
            raise


def _seal(request: Request) -> HelperAnswer:
    store, written = open_store(request["place"]), request["written"]
    first = next(each for each in written if each["record"] is not None)
    made = write.seal(
        store,
        record_from_json(first["record"]),
        [file_from_json(receipt) for each in written for receipt in each["receipts"]],
        parts=request["parts"],
        world=request["world"],
        facts=request.get("facts"),
        results=[result_from_json(each) for each in first.get("results", ())],
    )
    fields: HelperAnswer = {"path": _path(request, name_of(made.record.identity)), "bytes": made.bytes}
    fields["call"] = made.record.call
    try:
        catalog.prune(store, Retention(last=request["keep"]))
    except ElasticError as error:
        fields["not_removed"] = " ".join(str(error).split())
    if made.lacks:
        fields["not_resumable"] = made.lacks
        with contextlib.suppress(ElasticError):
            resumable = catalog.newest([entry for entry in catalog.listing(store) if not entry.lacks])
            if resumable is not None:
                fields |= {"resumable": _path(request, resumable.name), "resumable_step": resumable.step}
    return fields


def _load(request: Request) -> HelperAnswer:
    store, passed_over = open_store(request["place"]), list[str]()
    try:
        write.probe(store)
    except Permanent as error:
        if not _is_done(request, store):
            return {"failed": " ".join(str(error).split()), "for_good": True, "unwritable": True}
    entries = catalog.listing(store)
    for entry in entries:
        why = entry.why
        if entry.whole:
            try:
                return {**_loaded(request, store, entry, entries), "passed_over": passed_over}
            except (Damaged, Missing) as error:
                why = error.why if isinstance(error, Damaged) else "it was removed"
        if entry.sealed:
            passed_over.append(f"{entry.shown}: {why}")
    if not passed_over:
        return {}
    place, usable = request["place"], "can be used" if any(entry.whole for entry in entries) else "is whole"
    there = "1 checkpoint" if len(passed_over) == 1 else f"{len(passed_over)} checkpoints"
    if all(entry.lacks for entry in entries if entry.sealed):
        remedy = "let each call return plain values or tensors, or keep its value in the State, and name another"
    else:
        remedy = f"look with `hvd-elastic checkpoints verify {place}`, or name another"
    raise Permanent(
        f"{there} in {place} and none {usable} ({passed_over[0]}); {remedy} --checkpoint-dir to start training from "
        "scratch"
    )


def _is_done(request: Request, store: Store) -> bool:
    """Whether the newest checkpoint is the end of this job's training."""
    with contextlib.suppress(ElasticError):
        newest, mark = catalog.newest(catalog.listing(store)), request.get("done")
        return newest is not None and mark is not None and newest.facts.get("finished") == mark
    return False


def _loaded(request: Request, store: Store, entry: Entry, entries: Sequence[Entry]) -> HelperAnswer:
    """Load one checkpoint. Raises :class:`Damaged` before anything is sealed in memory."""
    fields: HelperAnswer = {"path": _path(request, entry.name), "step": entry.step}
    if request.get("done") and entry.facts.get("finished") == request["done"]:
        return {**fields, "done": True}
    if entry.lacks:
        raise Damaged(entry.name, entry.lacks)
    checkpoint = read.opened(store, entry.name)
    ranks, identity = _who(request, checkpoint), _beyond(entry.identity, entries)
    into = [slot for slot in ranks if not _is_past(request["sides"][slot], identity)]
    memories = {slot: (request["sides"][slot], _results_of(request, slot)) for slot in into}
    fill(checkpoint, identity, memories, ranks)
    _, held = slot_memory.held(request["sides"][next(iter(ranks))]) or (0, None)
    return {
        **fields,
        "generation": identity.generation,
        "call": checkpoint.manifest.record.call,
        "facts": entry.facts,
        "commit": identity[1:],  # a slot may hold a newer commit
        "slots": [int(slot) for slot in ranks],
        "held": None if held is None else slot_memory.commit_numbers(held.record),
    }


def fill(
    checkpoint: Checkpoint,
    identity: Identity,
    memories: Mapping[str, tuple[Sequence[int], int | None]],
    ranks: Mapping[str, int],
) -> None:
    """Write a checkpoint to the memory of slots, with the highest sequence number: processes then continue from it. The
    results of earlier calls come before the commit: a process that finds the commit then also finds these."""
    own = {slot: checkpoint.local(ranks[slot]) or b"" for slot in memories}
    with contextlib.ExitStack() as stack:
        first: memoryview | None = None
        first_past: int | None = None
        for slot, (memory, past) in memories.items():
            target = stack.enter_context(slot_memory.writing(memory))
            record = checkpoint.record(own[slot])._replace(identity=identity)
            into = stack.enter_context(slot_memory.room(target.descriptor, record.total))
            if first is None:
                checkpoint.fill(into, own[slot])
                first = into
            else:
                into[: record.shared] = first[: record.shared]
            if past is not None and first_past is None:
                results.load(checkpoint.store, checkpoint.name, checkpoint.manifest.results, past)
                first_past = past
            elif past is not None and first_past is not None:
                results.copy(first_past, past, checkpoint.manifest.results)
            target.seal(record, own[slot])


def _beyond(identity: Identity, entries: Sequence[Entry]) -> Identity:
    """Return the loaded commit's identity, with a world number not below that of any checkpoint here. So later
    checkpoints are newer than those that were skipped.
    """
    worlds = [(each.identity.incarnation, each.identity.generation) for each in entries if each.sealed]
    incarnation, generation = max([(identity.incarnation, identity.generation), *worlds])
    return identity._replace(incarnation=incarnation, generation=generation)


def _who(request: Request, checkpoint: Checkpoint) -> dict[str, int]:
    """Return, for each slot, the rank from which its own state is taken."""
    there = [file.number for file in checkpoint.manifest.files if file.kind == LOCAL]
    own = {slot: rank for slot, rank in request["ranks"].items() if rank in there}
    return own or {min(request["ranks"], key=int): min(there, default=0)}


def _is_past(memory: Sequence[int], identity: Identity) -> bool:
    """Whether a slot's memory, which may outlive processes and launcher, has a commit that is at least as new."""
    lying = [found.record.identity for found in slot_memory.sealed(memory) if found is not None]
    return any(each.lineage and each[1:] >= identity[1:] for each in lying)


def _held(request: Request) -> HelperAnswer:
    held = {}
    for slot, memory in request["sides"].items():
        if (found := slot_memory.held(memory)) is not None:
            side, sealed = found
            held[slot] = [list(sealed.record.identity), sealed.record.step, side]
    listed = catalog.listing(open_store(request["place"]))
    usable = [entry for entry in listed if not entry.lacks or entry.facts.get("finished")]
    newest = catalog.newest(usable, request.get("skip", ()))
    if newest is None:
        return {"held": held, "newest": None}
    fields = {"name": newest.name, "path": _path(request, newest.name), "finished": newest.facts.get("finished")}
    return {
        "held": held,
        "newest": {**fields, "identity": list(newest.identity), "step": newest.step, "call": newest.call},
    }


def _verify(request: Request) -> HelperAnswer:
    try:
        read.verify(open_store(request["place"]), request["name"])
    except Damaged as error:
        return {"whole": False, "why": error.why}
    return {"whole": True, "why": ""}


def _path(request: Request, name: str) -> str:
    return f"{request['place']}/{name}"


_DO: Final = {
    "write": _write,
    "seal": _seal,
    "load": _load,
    "held": _held,
    "verify": _verify,
}
