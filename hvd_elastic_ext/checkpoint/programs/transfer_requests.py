"""Requests about transfers of commits, and of the results of finished calls. See :mod:`agent_requests`."""

from __future__ import annotations

import mmap
import time

from hvd_elastic_ext.checkpoint.programs import HelperAnswer, Request, Send
from hvd_elastic_ext.checkpoint.transfer import slot_memory, transfer
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import Permanent, Transient


def answer(request: Request, send: Send) -> HelperAnswer:
    """Return the last answer. For "send", ``send`` gets an earlier one."""
    match request["do"]:
        case "send":
            return _send(request, send)
        case "receive":
            return _receive(request)
        case "copy":
            return _copy(request)
        case "send_past":
            return _send_past(request, send)
        case "receive_past":
            return _receive_past(request)
        case _:
            return _copy_past(request)


def _send(request: Request, send: Send) -> HelperAnswer:
    secret, memory = bytes.fromhex(request["secret"]), request["sides"][str(request["slot"])]
    with (
        slot_memory.reading(memory, tuple(request["commit"])) as source,
        transfer.listening(request["address"]) as listener,
    ):
        send({"listening": list(listener.getsockname()[:2])})
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
    """Return the answer if no transfer is needed, because the memory already holds that commit or a newer one."""
    found = slot_memory.held(memory)
    if found is None or list(found[1].record.identity[1:]) < commit:
        return None
    return {"held": slot_memory.commit_numbers(found[1].record), "bytes": 0, "seconds": 0.0}


def _got(record: Record, began: float) -> HelperAnswer:
    seconds = round(time.monotonic() - began, 3)
    return {"held": slot_memory.commit_numbers(record), "bytes": record.shared, "seconds": seconds}


# --- the results of finished calls


def _send_past(request: Request, send: Send) -> HelperAnswer:
    secret, past = bytes.fromhex(request["secret"]), request["pasts"][str(request["slot"])]
    number, body = _enough(past, request["results"])
    with transfer.listening(request["address"]) as listener:
        send({"listening": list(listener.getsockname()[:2])})
        # Only the result of call 0 is ever changed, and then it arrives damaged: there is nothing to compare.
        seconds = transfer.send(
            listener, secret, _past_record(number, len(body)), data=body, demand_same=lambda: None,
            wait_s=transfer.WAIT_S,
        )  # fmt: skip
        return {"sent": len(body), "seconds": round(seconds, 3)}


def _receive_past(request: Request) -> HelperAnswer:
    past, began, wanted = request["pasts"][str(request["slot"])], time.monotonic(), request["results"]
    if call_results.count(past) >= wanted and not _with_record(request):
        return _got_past(past, 0, began)
    address, port = request["from"]
    with transfer.receiving((address, port), bytes.fromhex(request["secret"])) as incoming:
        record = incoming.record()
        number = record.identity.number
        if record != _past_record(number, record.data) or number < wanted or not record.data:
            raise Transient("the sender has sent other results than were asked for")
        body = memoryview(mmap.mmap(-1, record.data))
        incoming.read(body)
        _extend(past, body, number, record=_with_record(request))
        incoming.confirm()
    return _got_past(past, record.data, began)


def _copy_past(request: Request) -> HelperAnswer:
    past, began = request["pasts"][str(request["to"])], time.monotonic()
    number, body = _enough(request["pasts"][str(request["from"])], request["results"])
    _extend(past, body, number, record=_with_record(request))
    return _got_past(past, len(body), began)


def _enough(past: int, wanted: int) -> tuple[int, memoryview]:
    """The results of a slot, and how many they are. Raises :class:`Permanent` if they are fewer than ``wanted``."""
    number, body = call_results.mapped(past)
    if number < wanted:
        raise Permanent(f"the memory holds {number} results, not {wanted}")
    return number, body


def _extend(past: int, body: memoryview, number: int, *, record: bool) -> None:
    try:
        call_results.extend(past, body, number, record=record)
    except ValueError as error:
        raise Transient(str(error)) from error


def _with_record(request: Request) -> bool:
    """Whether the result of call 0 in the target is of an earlier start of the job."""
    return request.get("record") is True


def _past_record(number: int, length: int) -> Record:
    """The record with which a past is sent."""
    return Record(Identity(1, 0, 0, number), step=0, loose=0, data=length, layout=0, tree=0, local=0)


def _got_past(past: int, size: int, began: float) -> HelperAnswer:
    seconds = round(time.monotonic() - began, 3)
    return {"results": call_results.count(past), "bytes": size, "seconds": seconds}
