"""The workers of a sleeping job, step by step, in a cluster that obeys, with the tests' own clock."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.launcher.sleep.release_policy import DELETE_RETRY_S, ReleaseLimits
from hvd_elastic_ext.launcher.sleep.releaser import FILE, Need, NoteFile, PodReleases, WorkersNote
from hvd_elastic_ext.launcher.sleep.replica_requests import Pod, Seen, Workload, workload
from tests.support.clock import ManualClock

SECONDS = 60
HOSTS = HostSet.of({"w-0": 4})
EVERY, TIMEOUT = 300.0, 600.0


class Cluster:
    """``replicas``: as requested, all of them ready if ``delivers``. ``told``: each request."""

    def __init__(self, replicas: int, *, annotated: bool = True, delivers: bool = True, leaves: bool = False) -> None:
        self.replicas, self.annotated, self.delivers, self.leaves = replicas, annotated, delivers, leaves
        self.before: int | None = None
        self.left: tuple[Pod, ...] = ()
        self.told: list[Any] = []
        self.looks = 0
        self.fails: list[ApiError] = []
        self.during: Callable[[], None] = lambda: None
        self.before_told: Callable[[], None] = lambda: None

    def look(self) -> Seen:
        self._may_fail()
        self.looks += 1
        self.during()
        ready = self.replicas if self.delivers else max(0, self.replicas - 1)
        pods = tuple(Pod(f"w-{each}", f"u-{each}", each < ready, False) for each in range(self.replicas))
        return Seen(self.replicas, pods + self.left, self.before)

    def tell(self, replicas: int, *, before: int | None) -> None:
        self._may_fail()
        self.before_told()
        self.told.append(replicas)
        if self.leaves and replicas == 0:
            self.left = self.look().pods
        self.replicas = replicas
        self.before = before if self.annotated else None

    def suspend(self, replicas: int) -> None:
        self._may_fail()
        self.told.append(f"suspend with {replicas}")

    def delete(self, pods: tuple[Pod, ...]) -> None:
        self.told.append([pod.name for pod in pods])
        self.left = ()

    def _may_fail(self) -> None:
        if self.fails:
            raise self.fails.pop(0)


class Story:
    """A job that needs 8 slots to continue. Time passes only by :meth:`later`."""

    def __init__(
        self, folder: Path, cluster: Cluster, job: Workload, *, per_host: int | None = None, suspends: bool = False
    ) -> None:
        self.clock, self.cluster = ManualClock(), cluster
        self.journal: list[tuple[str, dict[str, Any]]] = []
        self.releases = PodReleases(
            cluster,
            ReleaseLimits(job, EVERY, TIMEOUT, suspends),
            Need(start=12, least=8, per_host=per_host),
            NoteFile(folder),
            record=lambda event, **fields: self.journal.append((event, fields)),
            clock=self.clock,
        )
        self.at: float | None = None

    async def step(self) -> None:
        """Do steps until nothing is due for now."""
        await self.releases.stop()  # the test does the steps
        while (at := await self.releases.step()) is not None and at <= self.clock.mono():
            pass
        self.at = at

    async def began(self) -> None:
        await self.releases.began()
        await self.step()

    async def asleep(self, hosts: HostSet = HOSTS) -> None:
        await self.releases.asleep(hosts)
        await self.step()

    async def woke(self) -> None:
        await self.releases.woke()
        await self.step()

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.step()

    async def enough(self, enough: bool) -> None:
        await self.releases.look(enough=enough)
        await self.step()

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.journal]


SET, MPI, TORCH = workload("statefulset/w"), workload("mpijob/j"), workload("pytorchjob/j")
ALL = [f"w-{number}" for number in range(5)]
LEAVES, BY_HAND = {"leaves": True}, {"annotated": False}

STORIES = {
    "a kind that takes no 0 keeps one": (4, {}, TORCH, "sleep; later 300; wake", [1, 2, 4]),
    "a job about to wake lets nobody go": (2, {}, SET, "asleep; enough yes; later 6000", []),
    "a job that is not going to wake after all": (2, {}, SET, "asleep; enough yes; enough no", [0]),
    "workers asked for by hand stay": (5, BY_HAND, SET, "sleep; ask 3; later 300; later 599; wake", [0]),
    "workers asked for by hand in vain": (
        *(5, {**BY_HAND, "delivers": False}, SET),
        *("sleep; ask 3; later 300; later 600; later 300; wake", [0, 0, 2, 3]),
    ),
    "ready workers have time to be published": (5, {}, SET, "sleep; later 300; later 600", [0, 2]),
    "ready workers that are not published": (5, {}, SET, "sleep; later 300; later 600; later 60", [0, 2, 0]),
    "a job without workers and a note": (0, {}, SET, "begin", [3]),
    "a job that finds its workers": (2, {}, SET, "begin", []),
    "a number chosen while no launcher was there": (5, BY_HAND, SET, "sleep; ask 3; restart; begin", [0]),
    "an operator that must look again at the end": (5, LEAVES, MPI, "sleep; end 75; restart; begin", [0, ALL, 1, 5]),
    "another kind keeps its number at the end": (5, {}, SET, "sleep; end 75", [0]),
    "workers that were not let go at the end": (5, {}, MPI, "asleep; end 143", []),
    "a job is suspended with exit code 75": (5, LEAVES, MPI, "suspends; sleep; end 75", [0, ALL, "suspend with 5"]),
    "and with no other": (5, LEAVES, MPI, "suspends; sleep; end 143", [0, ALL, 1]),
}
"""The workers at first, the cluster's behaviour, the kind, the events, and the requests to the cluster."""


async def happens(story: Story, what: str, value: str) -> None:
    match what:
        case "begin":
            await story.began()
        case "asleep":
            await story.releases.asleep(HOSTS)
        case "sleep":
            await story.asleep()
        case "later":
            await story.later(float(value))
        case "enough":
            await story.enough(value == "yes")
        case "ask":
            story.cluster.replicas = int(value)
        case "wake":
            await story.woke()
        case "end":
            await story.releases.launcher_ends(code=int(value))


@pytest.mark.parametrize(("workers", "does", "job", "script", "told"), STORIES.values(), ids=STORIES)
async def test_a_sleeping_job_tells_its_cluster(
    tmp_path: Path, workers: int, does: dict[str, bool], job: Workload, script: str, told: list[Any]
) -> None:
    cluster = Cluster(workers, **does)
    story = Story(tmp_path, cluster, job, per_host=4, suspends=script.startswith("suspends"))
    for word in script.removeprefix("suspends; ").split("; "):
        if word == "restart":
            story = Story(tmp_path, cluster, job)
        await happens(story, *word.partition(" ")[::2])
    assert cluster.told == told


async def test_workers_are_let_go_and_asked_for_and_let_go_again_and_had_back(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5, delivers=False), SET)
    await story.asleep()
    assert (cluster.told, story.at) == ([0], story.clock.mono() + EVERY)
    await story.later(EVERY)
    assert cluster.told == [0, 2]  # 8 slots, 4 for each
    await story.later(TIMEOUT)  # one of the two is not ready
    assert cluster.told == [0, 2, 0]
    cluster.delivers = True
    await story.later(EVERY)
    await story.enough(True)
    await story.later(10 * TIMEOUT)  # waiting for the settle time
    await story.woke()
    assert cluster.told == [0, 2, 0, 2, 5]
    assert story.at is None
    assert story.events == ["released", "workers_requested", "released", "workers_requested", "workers_requested"]
    assert story.journal[0][1] == {
        "reason": "statefulset/w is to have 0 workers: the job sleeps",
        "replicas": 0,
        "before": 5,
    }
    assert story.journal[2][1]["reason"].endswith(": 1 of 2 workers are ready 600 s after they were asked for")


async def test_nothing_is_asked_of_the_cluster_between(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5), SET)
    await story.asleep()
    for _ in range(29):
        await story.later(EVERY / 30)
    assert cluster.looks == 1


async def test_workers_that_their_operator_leaves_are_deleted(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(2, leaves=True), MPI)
    await story.asleep()
    assert cluster.told == [0, ["w-0", "w-1"]]
    cluster.left = (Pod("w-1", "u-9", False, False),)  # made by an operator with the old number
    await story.later(DELETE_RETRY_S)
    await story.later(DELETE_RETRY_S)
    assert cluster.told == [0, ["w-0", "w-1"], ["w-1"]]
    looks = cluster.looks
    await story.later(DELETE_RETRY_S)
    assert cluster.looks == looks


async def test_a_job_that_wakes_while_the_cluster_is_looked_at_loses_nobody(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(2), SET)
    loop = asyncio.get_running_loop()

    def wake() -> None:
        cluster.during = lambda: None
        asyncio.run_coroutine_threadsafe(story.releases.woke(), loop).result(SECONDS)

    cluster.during = wake
    await story.asleep()
    assert cluster.told == []


async def test_a_cluster_that_does_not_answer_is_asked_again_and_never_ends_the_sleep(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5), SET)
    cluster.fails = [ApiError(Reason.UNREACHABLE, "it is down") for _ in range(3)]
    await story.asleep()
    pauses = []
    while not cluster.told:
        assert story.at is not None
        pauses.append(story.at - story.clock.mono())
        await story.later(pauses[-1])
    assert pauses == [5.0, 10.0, 20.0]
    cluster.fails = [ApiError(Reason.UNREACHABLE, "it is down")]
    await story.woke()
    await story.later(5.0)
    assert cluster.told == [0, 5]
    assert story.events == ["workers_not_requested", "released", "workers_not_requested", "workers_requested"]
    assert story.journal[0][1] == {"reason": "statefulset/w: it is down"}


async def test_pauses_begin_anew_when_the_job_wakes(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5), SET)
    cluster.fails = [ApiError(Reason.UNREACHABLE, "it is down") for _ in range(3)]
    await story.asleep()
    await story.later(5.0)
    assert story.at == story.clock.mono() + 10.0
    await story.woke()
    assert story.at == story.clock.mono() + 5.0


@pytest.mark.parametrize("annotated", [True, False])
async def test_the_next_launcher_has_back_what_the_last_one_let_go(tmp_path: Path, annotated: bool) -> None:
    cluster = Cluster(5, annotated=annotated)
    await Story(tmp_path, cluster, MPI if annotated else SET).asleep()
    assert cluster.replicas == 0
    if annotated:
        (tmp_path / FILE).unlink()  # another pod: its folder is empty
    await Story(tmp_path, cluster, MPI if annotated else SET).began()
    assert (cluster.replicas, cluster.before) == (5, None)
    assert NoteFile(tmp_path).read().before is None


async def test_workers_that_a_new_launcher_asked_for_have_their_time_although_it_sleeps_before_they_are_there(
    tmp_path: Path,
) -> None:
    cluster = Cluster(0)
    cluster.before = 5
    story = Story(tmp_path, cluster, MPI)
    await story.began()
    assert cluster.told == [5]
    story.clock.advance(30.0)
    await story.asleep(HostSet())
    assert (cluster.told, story.at) == ([5], story.clock.mono() - 30.0 + TIMEOUT)
    cluster.delivers = False
    await story.later(TIMEOUT)
    assert cluster.told == [5, 0]


async def test_a_note_about_another_job_of_the_same_name_does_not_count(tmp_path: Path) -> None:
    first, second = Cluster(5, leaves=True), Cluster(1)
    await Story(tmp_path, first, MPI).asleep()
    await Story(tmp_path, second, MPI).began()  # it was deleted and made again, with 1
    assert second.told == []
    assert NoteFile(tmp_path).read().before is None


async def test_slots_are_remembered_where_no_host_is_left_to_learn_them_from(tmp_path: Path) -> None:
    cluster = Cluster(5)
    await Story(tmp_path, cluster, SET).asleep()
    later = Story(tmp_path, cluster, SET)
    await later.began()
    later.clock.advance(TIMEOUT)
    await later.asleep(HostSet())
    await later.later(EVERY)
    assert cluster.replicas == 2


async def test_the_last_word_comes_after_whatever_is_under_way(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5, leaves=True), MPI)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        cluster.before_told = lambda: None
        begun.set()
        assert go_on.wait(SECONDS)

    cluster.before_told = slowly
    await story.releases.asleep(HOSTS)
    assert await asyncio.to_thread(begun.wait, SECONDS)
    leaving = asyncio.create_task(story.releases.launcher_ends(code=143))
    done, _ = await asyncio.wait({leaving}, timeout=0.2)
    assert not done
    go_on.set()
    await leaving
    assert cluster.told == [0, 1]


async def test_a_defect_is_told_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    story = Story(tmp_path, cluster := Cluster(5), SET)

    def breaks() -> None:
        cluster.during = lambda: None
        raise RuntimeError("a defect")

    cluster.during = breaks
    await story.releases.asleep(HOSTS)
    while "a defect of hvd-elastic" not in caplog.text:
        await asyncio.sleep(0.01)
    await story.step()
    assert cluster.told == [0]


async def test_the_last_word_is_not_waited_for_if_it_fails(tmp_path: Path) -> None:
    story = Story(tmp_path, cluster := Cluster(5, leaves=True), MPI)
    await story.asleep()
    cluster.fails = [ApiError(Reason.UNREACHABLE, "it is down")]
    await story.releases.launcher_ends(code=75)
    assert story.events[-1] == "workers_not_requested"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"before":"5","requested":0,"slots":[]}',
        '{"before":"","requested":0,"slots":[]}',
        '{"before":5,"requested":false,"slots":[]}',
        '{"before":5}',
        '{"before":5,"requested":0,"slots":["4"]}',
    ],
)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert NoteFile(tmp_path).read() == WorkersNote()


def test_a_note_that_cannot_be_written_costs_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    NoteFile(tmp_path / "nowhere").write(WorkersNote(5, 0, (4,)))
    assert "cannot be written" in caplog.text
    NoteFile(tmp_path).write(WorkersNote(5, 0, (4,)))
    assert NoteFile(tmp_path).read() == WorkersNote(5, 0, (4,))
    assert json.loads((tmp_path / FILE).read_text()) == {"before": 5, "requested": 0, "slots": [4]}
