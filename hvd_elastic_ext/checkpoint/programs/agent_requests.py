"""``python -m hvd_elastic_ext.checkpoint.programs.agent_requests``: what an agent starts for a checkpoint of its job.

One request, as JSON on standard input, of the launcher's (``launcher/planners/checkpoints``,
``launcher/planners/membership/transfers.py``); one answer on standard output, two of ``send``. To the request the agent
has added ``sides``: for each slot the descriptors of its commit memory; and ``secret`` to one with ``transfer``. The
work with storage is the clerk's (:mod:`hvd_elastic_ext.checkpoint.programs.requests`)::

    {"do": "write", "place": P, "commit": [l, i, g, n], "parts": 3, "shares": {slot: [part, rank, side]}}
        some of the parts of a commit that is kept, and the own states of these ranks; part null: that alone
        -> {"record": R of part 0 or null, "receipts": [...], "bytes": 3e8, "store": "which storage P is here"}
    {"do": "seal", "place": P, "world": 3, "parts": 3, "written": [those answers, of all parts], "keep": 3,
     "facts": anything}
        makes it exist, and lets older ones go
        -> {"path": P/N, "bytes": 6e8}
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
        sends a commit that lies in the slot's memory to whoever proves to be the other end of this transfer
        -> {"listening": [address, port]}, and when the receiver holds it
           {"sent": 3e8, "seconds": 0.6}
    {"do": "receive", "transfer": T, "slot": D, "commit": [i, g, n], "from": [address, port]}
        that commit into the slot's memory, unless one as new as that lies there already
        -> {"held": [i, g, n, step], "bytes": 3e8, "seconds": 0.6}
    {"do": "copy", "from": S, "to": D, "commit": [i, g, n]}
        the same within a host

What cannot be done is ``{"failed": "why", "for_good": whether trying again is in vain}``; of these last three
``for_good`` means that the memory does not hold the commit. What a slot's memory held before is held after a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.checkpoint.archive import read
from hvd_elastic_ext.checkpoint.format.manifest import LOCAL
from hvd_elastic_ext.checkpoint.programs import requests
from hvd_elastic_ext.checkpoint.stores import open_store
from hvd_elastic_ext.checkpoint.transfer import slot_memory, transfer
from hvd_elastic_ext.core import commit_record as sides
from hvd_elastic_ext.core.errors import Permanent, Transient

Request = Mapping[str, Any]
Answer = dict[str, Any]
Say = Callable[[Answer], None]

MARK: Final = ".store"
"""File by which a host's storage is known for the same as another's."""
TRANSFERS: Final = ("send", "receive", "copy")
HURRIED: Final = ("load", *TRANSFERS)
"""What training waits for."""


class Failed(Exception):
    """The clerk could not do something; ``answer`` says what."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.get("error"))
        self.answer = answer


def main() -> int:
    """Do what is asked for; the answer says how it went."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    if request["do"] not in HURRIED and not request.get("urgent"):
        requests.give_way()

    def say(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    say(answered(request, say))
    return 0


def answered(request: Request, say: Say = lambda answer: None) -> Answer:
    """Return the answer to one request, the last one if there are several; ``say`` gets those before."""
    try:
        return _send(request, say) if request["do"] == "send" else _DO[request["do"]](request)
    except Failed as failed:
        return {"failed": str(failed), "for_good": not failed.answer.get("transient", True)}
    except (Transient, Permanent) as error:
        return {"failed": " ".join(str(error).split()), "for_good": isinstance(error, Permanent)}
    except OSError as error:
        if request["do"] not in TRANSFERS:
            raise
        return {"failed": " ".join(str(error).split()), "for_good": False}


def _write(request: Request) -> Answer:
    record, receipts, length = None, [], 0
    for slot, (part, rank, side) in request["shares"].items():
        order = {"identity": request["commit"], "part": part, "parts": request["parts"], "rank": rank}
        done = _have_done(request, do="write", fd=request["sides"][slot][side], **order)
        record = done["record"] if part == 0 else record
        receipts += done["receipts"]
        length += done["bytes"]
    return {"record": record, "receipts": receipts, "bytes": length, "store": _which(request["place"])}


def _which(place: str) -> str:
    """Tell storage of the same path apart: hosts that share none must not each write a part of the same checkpoint."""
    if "://" in place:
        return place
    mark = Path(place, MARK)
    with contextlib.suppress(FileExistsError):
        _make(mark)
    # Two hosts may be at it at once: who reads before the other has written reads again.
    for _ in range(100):
        if word := mark.read_text():
            return word
        time.sleep(0.01)
    mark.unlink(missing_ok=True)  # or nothing would ever be written here again
    raise Failed({"error": f"{mark} was empty: whoever made it was killed; it is made anew", "transient": True})


def _make(mark: Path) -> None:
    with mark.open("x") as file:
        try:
            file.write(secrets.token_hex(16))
            file.flush()
        except OSError:
            mark.unlink(missing_ok=True)  # a full disk, say
            raise


def _seal(request: Request) -> Answer:
    written = request["written"]
    record = next(each["record"] for each in written if each["record"] is not None)
    receipts = [receipt for each in written for receipt in each["receipts"]]
    counts = {"parts": request["parts"], "world": request["world"]}
    done = _have_done(request, do="seal", record=record, receipts=receipts, facts=request.get("facts"), **counts)
    removed = requests.answer(_line(request, do="prune", keep={"last": request["keep"]}))
    more = {} if removed["ok"] else {"not_removed": removed["error"]}
    return {"path": f"{request['place']}/{done['name']}", "bytes": done["bytes"], **more}


def _load(request: Request) -> Answer:
    passed_over: list[str] = []
    skip: list[str] = []
    while True:
        found = _have_done(request, do="find", skip=skip)
        if not skip:
            passed_over += [f"{each['name']}: {each['why']}" for each in found["passed_over"]]
        newest = found["newest"]
        if newest is None:
            return _none(request, passed_over)
        if request.get("done") and newest["facts"].get("finished") == request["done"]:
            path = f"{request['place']}/{newest['name']}"
            return {"done": True, "path": path, "step": newest["step"], "passed_over": passed_over}
        ranks = _who(request, newest["name"])
        identity = _beyond(newest["identity"], found["entries"])
        with contextlib.ExitStack() as stack:
            empty = [slot for slot in ranks if not _is_past(request, slot, identity)]
            into = [_into(request, slot, rank=ranks[slot], stack=stack) for slot in empty]
            order = {"name": newest["name"], "identity": identity, "into": into, "urgent": True}
            done = requests.answer(_line(request, do="load", **order))
        if done["ok"]:
            path, facts = f"{request['place']}/{newest['name']}", newest["facts"]
            told = {"path": path, "step": newest["step"], "generation": identity[2], "facts": facts}
            told["commit"] = identity[1:]  # a slot may hold a newer one
            held = _held_in(request, next(iter(ranks)))
            return {**told, "slots": [int(slot) for slot in ranks], "passed_over": passed_over, "held": held}
        if not done.get("damaged"):
            raise Failed(done)
        skip.append(newest["name"])
        passed_over.append(f"{newest['name']}: {done['error']}")


def _beyond(identity: list[int], entries: list[Answer]) -> list[int]:
    """The loaded commit's identity, in a world that is as late as any that left something here.

    What follows is newer then than what was passed over: it is found first, and kept longer.
    """
    worlds = [(each["identity"][1], each["identity"][2]) for each in entries if each["sealed"]]
    lineage, incarnation, generation, number = identity
    return [lineage, *max([(incarnation, generation), *worlds]), number]


def _held(request: Request) -> Answer:
    newest = _have_done(request, do="find", skip=request.get("skip", []))["newest"]
    held = {slot: found for slot in request["sides"] if (found := _newest_in(request, slot)) is not None}
    if newest is None:
        return {"held": held, "newest": None}
    name = newest["name"]
    told = {"name": name, "path": f"{request['place']}/{name}", "finished": newest["facts"].get("finished")}
    return {"held": held, "newest": {**told, "identity": newest["identity"], "step": newest["step"]}}


def _newest_in(request: Request, slot: str) -> list[Any] | None:
    """The commit that the process of a slot would take up: which, of what step, on which side."""
    found = slot_memory.held(request["sides"][slot])
    return None if found is None else [list(found[1].record.identity), found[1].record.step, found[0]]


def _verify(request: Request) -> Answer:
    done = _have_done(request, do="verify", name=request["name"])
    return {"whole": done["whole"], "why": done["why"]}


def _into(request: Request, slot: str, *, rank: int, stack: contextlib.ExitStack) -> Answer:
    """Where a slot gets it, sealed last of all that lies there: that is what a process takes up."""
    memory = request["sides"][slot]
    target = stack.enter_context(slot_memory.writing(memory))
    return {"fd": target.descriptor, "rank": rank, "sequence": slot_memory.next_sequence(memory)}


def _is_past(request: Request, slot: str, identity: list[int]) -> bool:
    """Whether a slot's memory has outlived its processes and their launcher, and with it a commit as new as that."""
    lying = [found.record.identity for found in slot_memory.sealed(request["sides"][slot]) if found is not None]
    return any(each.lineage and list(each[1:]) >= identity[1:] for each in lying)


def _held_in(request: Request, slot: str) -> list[int] | None:
    found = slot_memory.held(request["sides"][slot])
    return None if found is None else slot_memory.told(found[1].record)


def _who(request: Request, name: str) -> dict[str, int]:
    """Whose own state each slot gets."""
    try:
        manifest = read.read_manifest(open_store(request["place"]), name)
    except (Permanent, Transient):
        return dict(request["ranks"])  # loading it says what is wrong
    there = [file.number for file in manifest.files if file.kind == LOCAL]
    own = {slot: rank for slot, rank in request["ranks"].items() if rank in there}
    return own or {min(request["ranks"], key=int): min(there, default=0)}


def _none(request: Request, passed_over: list[str]) -> Answer:
    sealed = [why for why in passed_over if not why.endswith("never sealed")]
    if not sealed:
        return {}
    raise Failed(
        {
            "error": f"{len(sealed)} checkpoints in {request['place']} and none is whole ({sealed[0]}); "
            f"look with `hvd-elastic checkpoints verify {request['place']}`, or name another --checkpoint-dir to begin "
            "anew",
            "transient": False,
        }
    )


def _have_done(request: Request, **order: Any) -> Answer:
    done = requests.answer(_line(request, **order))
    if not done["ok"]:
        raise Failed(done)
    return done


def _line(request: Request, **order: Any) -> str:
    return json.dumps({"store": request["place"], **order})


def _send(request: Request, say: Say) -> Answer:
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


def _receive(request: Request) -> Answer:
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


def _copy(request: Request) -> Answer:
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


def _as_new(memory: list[int], commit: list[int]) -> Answer | None:
    """The answer where nothing has to be transferred: the memory holds that commit already, or a newer one."""
    found = slot_memory.held(memory)
    if found is None or list(found[1].record.identity[1:]) < commit:
        return None
    return {"held": slot_memory.told(found[1].record), "bytes": 0, "seconds": 0.0}


def _got(record: sides.Record, began: float) -> Answer:
    seconds = round(time.monotonic() - began, 3)
    return {"held": slot_memory.told(record), "bytes": record.shared, "seconds": seconds}


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
