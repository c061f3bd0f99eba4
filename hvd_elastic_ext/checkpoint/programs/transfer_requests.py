"""Requests about transfers of commits. See :mod:`agent_requests`."""

from __future__ import annotations

import time

from hvd_elastic_ext.checkpoint.programs.requests import HelperAnswer, Request, Send
from hvd_elastic_ext.checkpoint.transfer import slot_memory, transfer
from hvd_elastic_ext.core.commit_record import Record
from hvd_elastic_ext.core.errors import Transient


def answer(request: Request, send: Send) -> HelperAnswer:
    """Return the last answer. For "send", ``send`` gets an earlier one."""
    if request["do"] == "send":
        return _send(request, send)
    return _receive(request) if request["do"] == "receive" else _copy(request)


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
