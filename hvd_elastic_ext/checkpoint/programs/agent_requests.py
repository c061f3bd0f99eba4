"""``python -m hvd_elastic_ext.checkpoint.programs.agent_requests``: an agent starts it for a checkpoint of its job.

It reads one request of the launcher as JSON from standard input (``launcher/checkpoints``,
``launcher/custody/transfers.py``), and writes one answer to standard output, for ``send`` two. The
agent adds ``sides`` to the request: for each slot the descriptors of its commit memory; ``pasts``: for each slot that
of the results of its finished calls (``core/call_results.py``); with ``transfer`` also ``secret``. The program has a
low priority for processor and disk, except if training waits for it, or with ``"urgent": true``::

    {"do": "write", "place": P, "commit": [l, i, g, n], "parts": 3, "shares": {slot: [part, rank, side]}}
        writes some parts of a kept commit, and the own states of these ranks; part null: only the own state. Part 0
        includes the results of the calls before the commit's that no other checkpoint has written
        -> {"record": R of part 0 or null, "receipts": [...], "results": [...], "bytes": 3e8,
            "store": "which storage P is here"}
    {"do": "seal", "place": P, "world": 3, "parts": 3, "written": [those answers, of all parts], "keep": 3,
     "facts": anything}
        completes the checkpoint, and removes older ones
        -> {"path": P/N, "bytes": 6e8, "call": 2}; "not_removed": "why" if older ones could not be removed;
           "not_resumable": "why" if no job can resume from it, with "resumable": P/N and "resumable_step": 20 of the
           newest one from which a job can, if there is any
    {"do": "load", "place": P, "ranks": {slot: rank}, "done": MARK or null}
        loads the newest whole checkpoint, with the results of the calls before its own, into the memory of each slot
        whose rank has its own state in it; without such a rank, into that of the first slot, with the own state of
        another rank. Passes over one in call 2 or later that lacks such a result. Loads nothing if ``finished`` in the
        facts of the newest one is MARK. Before all this it writes and removes a small file in P
        -> {} without a checkpoint; {"done": true, "path": P/N, "step": 40, "passed_over": [...]} if finished; else
           {"path": P/N, "step": 40, "generation": 7, "call": 2, "slots": [those that have it], "passed_over": ["why",
            ...], "facts": those of the seal, "commit": [i, g, n] of the checkpoint, "held": [i, g, n, step] of the
            commit that the first of these slots holds now}
    {"do": "held", "place": P, "skip": [N, ...]}
        reports the commit in each slot's memory, and the newest checkpoint that looks whole and that a job can resume
        from, or that is the end of training, except those to skip
        -> {"held": {slot: [[l, i, g, n], step, side]}, "newest": null or {"name": N, "path": P/N, "identity": [l, i,
           g, n], "step": 40, "call": 2, "finished": from its facts, or null}}
    {"do": "verify", "place": P, "name": N}
        reads every byte of a checkpoint
        -> {"whole": true, "why": ""}
    {"do": "send", "transfer": T, "slot": S, "commit": [i, g, n], "address": "127.0.0.1"}
        sends a commit from the slot's memory to the program that proves to be the other end of this transfer
        -> {"listening": [address, port]}, and when the receiver holds it
           {"sent": 3e8, "seconds": 0.6}
    {"do": "receive", "transfer": T, "slot": D, "commit": [i, g, n], "from": [address, port]}
        receives that commit into the slot's memory, unless that or a newer commit is there already
        -> {"held": [i, g, n, step], "bytes": 3e8, "seconds": 0.6}
    {"do": "copy", "from": S, "to": D, "commit": [i, g, n]}
        copies it in the same way within a host
    {"do": "send_past", "transfer": T, "slot": S, "results": 2, "address": "127.0.0.1"}
        sends the results of finished calls, at least the first two, in the same way
        -> {"listening": [address, port]}, and when the receiver holds them {"sent": 3e8, "seconds": 0.6}
    {"do": "receive_past", "transfer": T, "slot": D, "results": 2, "from": [address, port]}
        receives those that are not in the slot's memory yet
        -> {"results": how many are there now, "bytes": 3e8, "seconds": 0.6}
    {"do": "copy_past", "from": S, "to": D, "results": 2}
        copies them in the same way within a host

P is a folder or an fsspec URL, N the name of a checkpoint, R a record (``checkpoint/format/manifest.py``). The answer
to a failed request is ``{"failed": "why", "for_good": whether another attempt is useless}``; for "load" also
``"unwritable": true`` if no checkpoint can be written there. For transfers, ``for_good`` means that the memory
does not hold the commit or the results. After a failure, a slot's memory still holds its earlier commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Final

from hvd_elastic_ext.checkpoint.programs import HelperAnswer, Request, Send
from hvd_elastic_ext.core.errors import ElasticError, Permanent
from hvd_elastic_ext.core.json_text import to_text

TRANSFERS: Final = ("send", "receive", "copy", "send_past", "receive_past", "copy_past")
URGENT: Final = ("load", *TRANSFERS)
"""Requests for which training waits."""
NICE: Final = 5
"""CPU priority: of a busy core the program gets about a quarter. With 15, a checkpoint beside busy ranks took eight
times as long (``docs/benchmarks.md``). It also lowers the disk priority; in the idle class, the program could wait for
ever behind a steady reader."""


def main() -> int:
    """Execute the request on standard input, and write the answer."""
    # Other output, of this process or of a library, must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    if request["do"] not in URGENT and not request.get("urgent"):
        _give_way()  # before most of the imports

    def send(answer: HelperAnswer) -> None:
        print(to_text(answer), file=answers, flush=True)

    send(answered(request, send))
    return 0


def _give_way() -> None:
    """Lower the priority of this process, also where Linux shares processors fairly among sessions first: there, nice
    counts only within a session (``sched(7)``, autogroup), and the agent gave this program a session of its own.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE)
    if os.getsid(0) == os.getpid():  # else the session has other programs
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICE))


def answered(request: Request, send: Send = lambda answer: None) -> HelperAnswer:
    """Return the answer to one request. If there are several answers, return the last one; ``send`` gets the others."""
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
