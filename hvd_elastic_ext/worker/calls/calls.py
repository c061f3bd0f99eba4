"""Numbers the training calls of this process, and keeps their results: its past."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.calls import collectives, result
from hvd_elastic_ext.worker.calls.collectives import Entry, Record, Replay
from hvd_elastic_ext.worker.calls.meeting import REFUSED, Meeting, Row, meet
from hvd_elastic_ext.worker.calls.result import Finished, Left
from hvd_elastic_ext.worker.commits import inherited
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.standby import CallOver

log = logging.getLogger(__name__)

Say = Callable[..., None]
Parts = Sequence[bytes | memoryview]


WORTH_A_THREAD: Final = 1 << 20
"""Bytes of a result from which on it is written beside the next call, up to that call's first commit."""


UNEQUAL: Final = "ranks got different ones"
LOST: Final = "a rank was lost before they were compared"
FOREIGN: Final = "its State is Horovod's own; use --adopt, or elastic.TorchState"


class End(NamedTuple):
    """Where the last call ended: the job's step, and the identity of its last commit."""

    step: int = 0
    last: Identity = Identity(0, 0, 0, 0)


class Between:
    """What happens between two calls. ``known`` reads what the others' collectives returned there, and may raise
    ``ValueError``; ``alone``: whether this process has no peers now."""

    def __init__(self, call: int, *, known: Callable[[], Sequence[Entry] | None], alone: Callable[[], bool]) -> None:
        self.call = call
        """The call before it."""
        self.record = Record()
        self.behind = False
        """Whether the others of this process's world have gone on to a later call."""
        self.together = False
        """Whether all processes of this one's world have skipped the call before it: the job was started again."""
        self.barriers = 0
        """How many it has come to."""
        self._known = known
        self._alone = alone
        self._replay: Replay | None = None

    @property
    def replays(self) -> bool:
        """Whether others have passed here before: collectives return what they returned to these."""
        return self.behind or self.together or self._alone()

    @property
    def replay(self) -> Replay:
        """What the others' collectives returned, read when it is first needed."""
        if self._replay is None:
            try:
                self._replay = Replay(self._known())
            except ValueError:  # damaged, or replaced at this moment
                self._replay = Replay(None)
        return self._replay


class Calls:
    """The training calls of this process. ``past``: the memory file of their results; ``program`` as in commits.

    ``apart``: processes that are behind catch up outside the world. ``alone``: whether this process has no peers now,
    and will meet them in the training loop.
    """

    def __init__(
        self,
        past: int,
        *,
        program: str,
        say: Say | None = None,
        limit: int | None = None,
        apart: bool = False,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.number = 0
        """The newest call, begun or over; 0 before the first one."""
        self.running = False
        """Whether it has not ended yet."""
        self._begun = 0
        """The digest of torch's random generators when it began."""
        self.end = End()
        """Where the call before it ended, as far as this process knows."""
        self._past = past
        self._program = program
        self._say: Say = say or (lambda *_, **__: None)
        self._is_told_elsewhere = say is not None
        """Whether a launcher says that a result was not kept."""
        self._limit = call_results.MOST_BYTES if limit is None else limit
        self._left: Left | None = result.left_by(0, None, step=0, last=End().last, content=None, keep_rng=False)
        self._apart = apart
        self._uncompared: Left | None = None
        """What the last call has left behind, if that is in the past, and was not compared with other ranks yet."""
        self._differs = -1
        """The newest call whose result was refused since ranks had returned different values."""
        self._keeping: threading.Thread | None = None
        """Writes the result of the last call. No commit is made meanwhile: what one has must not be lost with it."""
        self._refused = False
        self._named: set[object] = set()
        self._checked = False
        self._alone = alone
        self._over = ""
        """Whose call was over, if this one's was, at the last meeting: of "all" or of "some" ranks."""
        self._between = self._gap()
        self._recorded: Record | None = None
        """What collectives have returned since the last call, if this process has run them together with others."""

    # The calls

    @property
    def upcoming(self) -> int:
        """The call for which a State is that is made now."""
        return self.number if self.running else self.number + 1

    def begin(self, function: Callable[..., Any]) -> None:
        """Note the beginning of a call of ``function``."""
        self._recorded = None if self._between.replays else self._between.record
        self.number += 1
        self.running, self._uncompared = True, None
        self._begun = result.digest_of(rng.capture(), result.TORCHS)
        if self.number > 1:
            self._name_rebound(function)

    def returned(self, left: Left, *, tells: bool = False) -> None:
        """Note that the function has returned, and what it has left behind. If this rank knows by itself that it cannot
        be kept, say so now: the ranks compare the rest when they meet in the next call. ``tells``: whether this rank
        speaks for all where there is no launcher.
        """
        self.running, self._left = False, left
        self.end = End(left.step, left.last)
        self._between = self._gap()
        why = left.unfit or self._no_room(left)
        if why is not None:
            self._say("result", call=left.call, bytes=0, kept=False, reason=why)
            if tells:
                self._tell(left, why, generators=True)

    def returned_to_others(self, value: object) -> None:
        """The same with a State that is not ours: that its result cannot be kept is told if another call follows."""
        left = result.left_by(self.number, value, step=self.end.step, last=self.end.last, content=None, keep_rng=False)
        self.running, self._left = False, left._replace(value=None, unfit=FOREIGN)
        self._between = self._gap()

    def never_compared(self) -> None:
        """Say now that the result of the last call is not kept: the ranks' States do not meet in a sync of ours."""
        if (left := self._left) is not None and left.call and left.unfit:
            self._left = None
            self._append(left, left.unfit, [])

    def raised(self, end: End | None) -> None:
        """Note that the call has ended with an error, and so without a result: the script may catch it, and go on.

        ``end``: where it was then; None if it had not begun.
        """
        if self._left is not None:
            self._left.release()
        self.running, self.end = False, end or self.end
        left = result.left_by(self.number, None, step=self.end.step, last=self.end.last, content=None, keep_rng=False)
        self._left = left._replace(value=None, unfit="it ended with an error")
        self._between = self._gap()

    def skipped(self, finished: Finished) -> None:
        """Note that the call was over already."""
        self.running, self._left = False, None
        self.end = End(finished.step, finished.last)
        self._between = self._gap()
        self._between.behind, self._between.together = self._over == "some", self._over == "all"
        self._over = ""

    @property
    def between(self) -> Between | None:
        """What happens now, between two calls; None within a call."""
        return None if self.running else self._between

    @property
    def has_record(self) -> bool:
        """Whether the present call is the first one, and results of collectives before it will be kept."""
        return self.number == 1 and self._recorded is not None and bool(self._recorded.entries)

    @property
    def unkept(self) -> bool:
        """Whether what the last call has left behind is not in the past yet."""
        return self._left is not None

    def within_another(self, function: Callable[..., Any]) -> None:
        """Note a call of ``function`` while a training function runs. It is told once."""
        if "within" not in self._named:
            self._named.add("within")
            log.warning(
                "%s is called inside another training function: it counts as a part of that one, and only the State of "
                "the outer one outlives this process; call one after the other",
                getattr(function, "__name__", "a training function"),
            )

    def committed_beside(self) -> None:
        """Note a commit of a State that is not the one of the present call, if there is one. It is told once."""
        if self.running and "beside" not in self._named:
            self._named.add("beside")
            log.warning(
                "another State commits while a training function runs with its own: only the State that was given to "
                "the function outlives this process, and is what checkpoints hold; put everything into one State"
            )

    # The past

    def finished(self) -> Finished | None:
        """The result of the present call, if it is over. Raises :class:`StateError` if it cannot be read."""
        self.settle()
        if call_results.count(self._past) <= self.number:
            return None
        try:
            entry = call_results.entries(self._past)[self.number]
            return result.read(entry, call_results.read(self._past, entry))
        except ValueError as error:
            raise StateError(f"the result of call {self.number} cannot be read: {error}") from error

    def check_program(self, *, ours: bool | None) -> None:
        """Forget the results that another program has left in this slot, the first time that this is called.

        ``ours``: whether the commit in the slot's memory is for this program, since an earlier process of it has made
        it, or since the user has named its checkpoint. None: there is no commit, and the results themselves show it.
        """
        if self._checked:
            return
        self._checked = True
        if not call_results.count(self._past):
            return
        if ours is None:
            ours = self._is_ours()
        if not ours:
            log.warning("the results in this slot are of another script, or of other arguments; they are dropped")
            call_results.clear(self._past)

    def row(self) -> Row:
        """This rank's row of a meeting."""
        self.settle()
        past, length = call_results.counts(self._past)
        if not self.running:
            return Row(0, past)
        left = self._left or self._uncompared
        if self._differs == self.number - 1:
            return Row(self.number, past, REFUSED, bytes=length)
        if left is None or left.call != self.number - 1:
            return Row(self.number, past, bytes=length)
        recorded = 0 if self._recorded is None else self._recorded.digest
        known = self._known_digest() if recorded and past and self.number == 1 else 0
        generators, others = map(left.digest_of, (result.TORCHS, result.OTHERS))
        return Row(self.number, past, left.digest, generators, others, recorded, known, self._begun, length)

    def met(self, rows: Sequence[Row], comms: Comms) -> Callable[[], None] | None:
        """Do what follows from the rows of all ranks. Return what to call when their State has been sent: it takes the
        past of another rank, which is on its way beside that. None: they have to meet again.

        Raises :class:`CallOver` if this rank's call is over, and :class:`StateError` if it should be, but its result is
        kept nowhere.
        """
        meeting = meet(rows)
        first = self.has_record and (self._left or self._uncompared) is not None
        if comms.rank() in meeting.amends:
            self._amend(unequal=meeting.unequal, tells=comms.rank() == min(meeting.amends))
        self._keep(meeting, comms)
        received = self._begin_exchange(meeting, rows, comms)

        def end() -> None:
            received()
            if first and call_results.count(self._past):  # who comes later gets it before its first call
                with contextlib.suppress(ValueError):
                    self._say("result", call=0, bytes=call_results.entries(self._past)[0].bytes, kept=True)

        if self._left is None:
            self._recorded = None
        if meeting.sender is not None and not meeting.over:
            return end
        end()
        if comms.rank() in meeting.over:
            self.settle()
            if call_results.count(self._past) <= self.number:
                why = meeting.refused or "no process has kept its result"
                raise StateError(
                    f"call {self.number} of this process is over in the job, and it cannot be skipped: {why}; "
                    "processes that come later wait until the job ends"
                )
            self._over = "all" if len(meeting.over) == comms.size() else "some"
            raise CallOver
        return None if meeting.over else lambda: None

    def lost_world(self) -> None:
        """Add the result of the last call to the past, as it is on this rank, since its world was lost before the ranks
        have compared it.

        Others may need it before this rank can be in a world again: those that are lost in the call before, and they
        catch up outside. If the ranks have different results, they take them away when they meet. If only their random
        generators differ, the result stays with those of one rank, and a warning says what that means.
        """
        if self._apart and self.running and (left := self._left) is not None and left.call == self.number - 1:
            self._left = None
            equal = [*result.TORCHS, *result.OTHERS]
            if self._append(left, *self._ways(left, left.unfit, equal, without=LOST)) is None:
                self._uncompared = left

    # Inside

    def _keep(self, found: Meeting, comms: Comms) -> None:
        """Add the result of the last call to the past, or say why not."""
        if found.refused == call_results.UNEQUAL and comms.rank() not in found.over:
            self._differs = self.number - 1
        if comms.rank() in found.drops:
            call_results.drop_last(self._past, self.number - 1)
            self._say("result", call=self.number - 1, bytes=0, kept=False, reason=found.refused)
        left, self._uncompared = self._left, None
        if found.differs and not found.refused and comms.rank() == 0 and 0 not in found.keeps:
            self._name_generators(self.number - 1)  # a rank that has kept it alone could not know
        if left is None or left.call != self.number - 1:
            return
        self._left = None
        if comms.rank() not in found.keeps and not found.refused:
            left.release()  # another rank has it, and sends it
            return
        equal = [*(result.TORCHS if found.generators else ()), *(result.OTHERS if found.others else ())]
        unequal = UNEQUAL if found.unequal else ""
        why, ways = self._ways(left, left.unfit or found.refused, equal, without=unequal)

        def keep() -> None:
            failed = self._append(left, why, ways)
            if comms.rank() == 0 and not (left.call == 0 and failed is None):
                self._tell(left, failed, generators=not found.differs)

        if ways and sum(map(len, ways[0])) >= WORTH_A_THREAD and left.protect():
            self._keeping = threading.Thread(target=keep, name="hvd-result")
            self._keeping.start()
        else:
            keep()

    def _no_room(self, left: Left) -> str | None:
        """Why a result would not fit, as far as this is known before other ranks are asked."""
        size = len(left.value or "")
        with contextlib.suppress(StateError):  # its last commit is gone: the next meeting says so
            size += 0 if left.content is None else left.content().shared.nbytes
        return call_results.no_room(self._past, size, limit=self._limit)

    def settle(self) -> None:
        """Wait until what the last call has left behind is kept, if that is being done."""
        if self._keeping is not None:
            self._keeping.join()
            self._keeping = None

    def _ways(
        self, left: Left, unfit: str, equal: Sequence[str], *, without: str
    ) -> tuple[str | None, Sequence[Parts]]:
        """Return why what a call has left behind cannot be kept, and its bytes, with these random generators: whole,
        and in less room. ``without``: why it has not what collectives returned; "" if it has that.
        """
        if unfit:
            return unfit, []
        generators = result.Generators(equal)
        try:
            return None, [
                result.parts_of(
                    left, program=self._program, generators=generators, collectives=collectives.plain(entries)
                )
                for entries in self._entries(without=without)
            ]
        except StateError as error:
            return f"its last commit is gone: {error}", []
        except ValueError as error:
            return str(error), []

    def _append(self, left: Left, why: str | None, ways: Sequence[Parts]) -> str | None:
        """Add what a call has left behind to the past, in the first way for which there is room, unless something is
        against it. Return why not.
        """
        size = 0
        try:
            for parts in ways:
                size = sum(map(len, parts))
                why = call_results.append(
                    self._past, parts, call=left.call, step=left.step, number=left.last.number, limit=self._limit,
                    verify=left.content or (lambda: None),
                )  # fmt: skip
                if why is None:
                    break
        except OSError as error:
            why = f"no memory: {error.strerror or error}"
        except StateError as error:
            why = f"its last commit is gone: {error}"
        except ValueError as error:
            why = str(error)
        left.release()
        if not (left.call == 0 and why is None):
            self._say("result", call=left.call, bytes=size, kept=why is None, **({"reason": why} if why else {}))
        return why

    def _amend(self, *, unequal: bool, tells: bool) -> None:
        """Put what collectives returned at this start of the job in the place of what they returned at an earlier one,
        or, if there is no room for that, only which ones they were. ``tells``: whether this rank says what follows."""
        left = self._left or self._uncompared
        assert left is not None
        if tells and not unequal:
            self._name_other_values()
        for entries in self._entries(without=UNEQUAL if unequal else ""):
            parts = result.parts_of(
                left,
                program=self._program,
                generators=result.Generators(),
                collectives=collectives.plain(entries),
            )
            with contextlib.suppress(OSError, ValueError):  # no memory, or damaged
                if call_results.amend(self._past, parts, limit=self._limit) is None:
                    return
        log.warning(
            "there is no room (%s) for what collectives returned before the first call: a process that comes later "
            "gets what they returned at an earlier start of the job",
            call_results.LIMIT,
        )

    def _name_other_values(self) -> None:
        """Say if calls that are over were trained with other values of collectives than those that follow."""
        over, before = call_results.count(self._past) - 1, None
        with contextlib.suppress(ValueError):
            before = self._known(0)
        now = () if self._recorded is None else self._recorded.entries
        other = collectives.first_other(before or (), now) if over > 0 else None
        if other is not None:
            log.warning(
                "%s before the first call returns something else than at an earlier start of the job, when %s trained, "
                "and those results are kept: seed what is random there, such as a permutation of the data",
                other.words,
                "call 1 was" if over == 1 else f"calls 1 to {over} were",
            )

    def _entries(self, *, without: str) -> Iterator[Sequence[Entry]]:
        """What is recorded of collectives after the last call; then the same in less room."""
        whole = () if self._recorded is None else self._recorded.entries
        if not (whole and without):
            yield whole
        if whole:
            yield collectives.without_values(whole, without or "no room is left")

    def _known(self, call: int) -> Sequence[Entry] | None:
        """What collectives returned after a call, by the past; None if it does not tell. Raises ``ValueError``."""
        kept = call_results.entries(self._past)
        if call >= len(kept):
            return None
        head = result.head_of(call_results.read(self._past, kept[call]))
        return collectives.read(head.collectives) if head.program == self._program else None

    def _known_digest(self) -> int:
        """The digest of the record in the past; another number than any digest if there is none of this program."""
        try:
            known = self._known(0)
        except ValueError:
            return 0
        return -1 if known is None else collectives.digest(known)

    def _gap(self) -> Between:
        call = self.number
        return Between(call, known=lambda: self._known(call), alone=self._alone)

    def _tell(self, left: Left, why: str | None, *, generators: bool) -> None:
        if why is not None and not (self._refused or self._is_told_elsewhere):
            self._refused = True
            log.warning(
                "%s: %s; a process that comes from now on waits until the job ends, and the job cannot be resumed "
                "after %s",
                f"call {left.call} cannot be skipped" if left.call else f"{call_results.result_of(0)} was not kept",
                why,
                "this call" if left.call else "the next call",
            )
        elif why is None and left.generators and not generators:
            self._name_generators(left.call)

    def _name_generators(self, call: int) -> None:
        if "generators" not in self._named:
            self._named.add("generators")
            log.warning(
                "the random generators differ between ranks after call %d: what the script draws between two calls is "
                "different in a process that comes later; seed them before each call",
                call,
            )

    def _begin_exchange(self, found: Meeting, rows: Sequence[Row], comms: Comms) -> Callable[[], None]:
        """Begin to send the past from one rank to those that lack results, if any do. Return a function that waits for
        it."""
        root = found.sender
        if root is None:
            return lambda: None
        self.settle()
        count, length = rows[root].past, rows[root].bytes
        if root in found.keeps or root in found.amends:  # it has changed since
            size = torch.tensor(call_results.counts(self._past) if comms.rank() == root else (0, 0))
            comms.sum(size, name="past.size")
            count, length = size.tolist()
        data = torch.empty(length, dtype=torch.uint8)
        if comms.rank() == root:
            at = 0
            for piece in call_results.body(self._past):
                whole = piece[: length - at]  # an agent may have appended results meanwhile
                if whole:
                    data[at : at + len(whole)] = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
                at += len(whole)
        arrived = comms.start_broadcast(data, root=root, name="past")

        def receive() -> None:
            arrived()
            if comms.rank() in found.receives:
                call_results.replace(self._past, [data.numpy().tobytes()], count)
                self._say("result", call=count - 1, bytes=length, kept=True)

        return receive

    def _is_ours(self) -> bool:
        """Whether this program has left the newest result."""
        try:
            entry = call_results.entries(self._past)[-1]
            return result.head_of(call_results.read(self._past, entry)).program == self._program
        except ValueError:  # it is damaged
            return False

    def _name_rebound(self, function: Callable[..., Any]) -> None:
        names = result.rebound_names(function)
        if names and names[0] not in self._named:
            self._named.update(names)
            log.warning(
                "%s assigns %s outside itself, and a process that skips a finished call does not get that; return it, "
                "or keep it in the State",
                getattr(function, "__name__", "the training function"),
                ", ".join(names),
            )


_current: list[Calls] = []


def current() -> Calls:
    """The calls of this process."""
    if not _current:
        process = standby.current()
        _current.append(
            Calls(
                _memory(os.environ),
                program=result.program(),
                say=process.link.send if process.link.connected else None,
                limit=_limit(os.environ),
                apart=process.link.connected and not process.fixed_world,
                alone=lambda: process.parks,
            )
        )
    return _current[0]


def forget() -> None:
    """Begin again with the first call; for tests, several of which share a process."""
    _current.clear()


def _memory(environ: Mapping[str, str]) -> int:
    """The slot's memory file, which outlives this process; else one of its own, for peers."""
    descriptor = inherited.past_descriptor(environ)
    return os.memfd_create("hvd-results", os.MFD_CLOEXEC) if descriptor is None else descriptor


_DIGITS: Final = 15


def _limit(environ: Mapping[str, str]) -> int:
    given = environ.get(call_results.LIMIT, "")
    if given.isdecimal() and len(given) <= _DIGITS:
        return int(given)
    if given:
        log.warning(
            "%s=%s is not used: write a number of bytes, such as %d", call_results.LIMIT, given, call_results.MOST_BYTES
        )
    return call_results.MOST_BYTES
