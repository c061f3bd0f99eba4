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
        among its facts, and that is MARK. Before that a small file is written there, and removed
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
be done is ``{"failed": "why", "for_good": whether trying again is useless}``, and of "load" ``"unwritable": true`` if
it could write no checkpoint; of the last three ``for_good`` means that
the memory does not hold the commit. What a slot's memory held before is held after a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Final

from hvd_elastic_ext.checkpoint.programs.requests import HelperAnswer, Request, Send
from hvd_elastic_ext.core.errors import ElasticError, Permanent
from hvd_elastic_ext.core.json_text import to_text

TRANSFERS: Final = ("send", "receive", "copy")
URGENT: Final = ("load", *TRANSFERS)
"""Requests for which training waits."""
NICE: Final = 15
"""CPU priority: on a busy core the program gets some 3 %. The disk priority follows from it, the lowest that always
makes progress: an idle class could wait for ever behind a steady reader."""


def main() -> int:
    """Execute the request on standard input, and write the answer."""
    # Other output, of this process or of a library, must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    if request["do"] not in URGENT and not request.get("urgent"):
        with contextlib.suppress(OSError):
            os.nice(NICE)  # before most of the imports

    def send(answer: HelperAnswer) -> None:
        print(to_text(answer), file=answers, flush=True)

    send(answered(request, send))
    return 0


def answered(request: Request, send: Send = lambda answer: None) -> HelperAnswer:
    """Return the answer to one request, the last one if there are several; ``send`` gets those before."""
    # Imports take most of the processor time, so each request imports only what it needs.
    if request["do"] in TRANSFERS:
        from hvd_elastic_ext.checkpoint.programs.transfer_requests import answer
    else:
        from hvd_elastic_ext.checkpoint.programs.checkpoint_requests import answer
    try:
        return answer(request, send)
    except (ElasticError, OSError) as error:
        return {"failed": " ".join(str(error).split()), "for_good": isinstance(error, Permanent)}


if __name__ == "__main__":
    sys.exit(main())
