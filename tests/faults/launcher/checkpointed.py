"""Jobs with durable checkpoints: helpers that write them, which a test can stop for a fault, and sealed checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch

from hvd_elastic_ext.checkpoint.archive import catalog, read
from hvd_elastic_ext.checkpoint.archive.catalog import Entry
from hvd_elastic_ext.checkpoint.conversion import export
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from hvd_elastic_ext.core.commit_record import KEPT_AT, PAGE, Identity, newest
from hvd_elastic_ext.core.errors import ElasticError
from tests.faults.launcher.stepping_jobs import Training
from tests.support import marks
from tests.support.processes import RunningProcess
from tests.support.stopped_helpers import Stopping
from tests.support.waiting import wait_until

EVERY: Final = 20
"""Steps from one checkpoint to the next."""


class Helper(NamedTuple):
    """A running helper, and its request."""

    pid: int
    agent: int
    request: Mapping[str, Any]

    @property
    def gone(self) -> bool:
        return marks.start_time(self.pid) is None

    def kept_side(self, slot: int = 0) -> KeptSide:
        """Return the side with the commit that the helper writes. The test may read it until it is closed."""
        side = self.request["shares"][str(slot)][2]
        descriptor = self.request["sides"][str(slot)][side]
        commit = Identity(*self.request["commit"])
        return KeptSide(os.open(f"/proc/{self.pid}/fd/{descriptor}", os.O_RDONLY), commit)


class KeptSide(NamedTuple):
    """A side of a slot's commit memory, and the commit for which it is kept."""

    descriptor: int
    commit: Identity

    @property
    def is_kept(self) -> bool:
        return os.pread(self.descriptor, 1, KEPT_AT) == b"\1"

    def spoiled(self) -> str | None:
        """Return another commit that is sealed on the side while it is kept; None if there is none."""
        kept, page = self.is_kept, os.pread(self.descriptor, PAGE, 0)
        if not kept or not self.is_kept:
            return None
        sealed = newest(page, os.fstat(self.descriptor).st_size - PAGE)
        return None if sealed is not None and sealed.record.identity == self.commit else f"{sealed} is there"

    def close(self) -> None:
        os.close(self.descriptor)


class Checkpointed(Training):
    """A job of the trainee that may outlive its launcher. ``checkpoints``: the folder of its checkpoints."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.checkpoints = directory / "storage" / "checkpoints"
        self.every = str(EVERY)
        self.launchers: list[RunningProcess] = []
        self.stopping = Stopping(directory / "stopping")

    @contextlib.contextmanager
    def go(self, *options: str | Path, wrap: tuple[str, ...] = ()) -> Iterator[RunningProcess]:
        """Run the job, or continue it."""
        where = ("--checkpoint-dir", self.checkpoints, "--checkpoint-every", self.every)
        with self.train("-np", "2", *where, *options, env=self.stopping.env, wrap=wrap) as process:
            self.launchers.append(process)
            yield process

    def sealed(self) -> list[int]:
        """Return the step of each checkpoint."""
        return [record.get("step") for record in self.events("sealed")]

    def wait_for(self, what: str, found: Callable[[], object], *, timeout: float = 120.0) -> None:
        super().wait_for(what, found, timeout=timeout)

    def wait_for_sealed(self, more: int = 1) -> None:
        """Wait for ``more`` further checkpoints."""
        before = len(self.sealed())
        self.wait_for(f"{more} more checkpoints", lambda: len(self.sealed()) >= before + more)

    def helpers(self) -> list[Helper]:
        """Return the living helpers of this job, also stopped ones."""
        return [helper for helper in map(_helper, marks.pids()) if helper and self._is_ours(helper)]

    def _is_ours(self, helper: Helper) -> bool:
        return helper.request.get("place") == str(self.checkpoints)

    def stopped_helpers(self, count: int, *, after: Callable[[], object] = lambda: None) -> list[Helper]:
        """Stop the next writing helpers of ``count`` hosts at once. ``after`` is called before they begin."""
        found: list[Helper] = []

        def all_stopped() -> bool:
            found[:] = [each for each in self.helpers() if each.request["do"] == "write" and _is_stopped(each.pid)]
            return len(found) == count

        with self.stopping.of("write"):
            after()
            self.wait_for(f"{count} helpers to write", all_stopped)
        return found

    def steps(self) -> list[int]:
        """Return every step of the job, under any launcher. A step may be reported twice."""
        told = [(record.mono, record.get("step")) for record in self.events("stepped")]
        return [step for _, step in sorted(dict.fromkeys(told))]

    def check_never_interrupted(self) -> None:
        """Check that each step was done exactly once, under any launcher.

        The steps are compared as a set: at a change of the launcher, times come from the clocks of two journals, and
        may be out of order by the delay of messages on a busy machine.
        """
        steps = sorted(set(self.steps()))
        once = list(range(1, len(steps) + 1))
        assert steps == once, [pair for pair in zip(steps, once, strict=True) if pair[0] != pair[1]][:5]
        assert not self.events("rolled_back")

    def sealed_steps(self) -> list[int]:
        """Return the steps of the sealed checkpoints in the folder."""
        listed = catalog.listing(open_store(str(self.checkpoints))) if self.checkpoints.exists() else []
        return [entry.step for entry in listed if entry.sealed and entry.step is not None]

    def check_whole(self, step: int | None = None) -> None:
        """Check that every checkpoint is whole and has the weights of its step. ``step``: one that must be there."""
        store = open_store(str(self.checkpoints))
        there = [entry for entry in catalog.listing(store) if entry.sealed]
        assert there
        for entry in there:
            try:
                self._check_entry(store, entry)
            except (ElasticError, OSError):
                if any(each.sealed and each.name == entry.name for each in catalog.listing(store)):
                    raise  # otherwise the running job has removed it meanwhile
        assert step is None or step in [entry.step for entry in there]

    def _check_entry(self, store: Store, entry: Entry) -> None:
        read.verify(store, entry.name)
        assert entry.step is not None
        file = self.directory / f"{entry.name}.pt"
        export.export(store, entry.name, file, replace=True)
        [weights] = _weights(torch.load(file, weights_only=True))
        expected = -sum(count % 3 + 1 for count in range(entry.step))
        assert weights.unique().tolist() == [expected], entry


def _helper(pid: int) -> Helper | None:
    """Return the helper that a process is; None if it is none. Its request is the file at its standard input."""
    if "hvd_elastic_ext.checkpoint.programs.agent_requests" not in marks.command_line(pid):
        return None
    try:
        request = json.loads(Path(f"/proc/{pid}/fd/0").read_text())
        agent = marks.parent(pid)
    except (OSError, ValueError):
        return None  # it has ended, or is about to become a helper
    return Helper(pid, agent, request) if isinstance(request, dict) else None


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return marks.stat(pid)[0] == "T"
    return False


def _weights(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and value.shape == (4, 4):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _weights(inner)


def wait_until_gone(helpers: list[Helper], *, timeout: float = 30.0) -> None:
    """Wait for the end of the helpers."""
    wait_until(lambda: all(helper.gone for helper in helpers), what="the end of the helpers", timeout=timeout)


@pytest.fixture
def job(tmp_path: Path) -> Checkpointed:
    checkpointed = Checkpointed(tmp_path)
    (tmp_path / "storage").mkdir()
    return checkpointed
