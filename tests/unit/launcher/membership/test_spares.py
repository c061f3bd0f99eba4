"""Spares: which seats have one, and what happens when a rank is lost."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.agent.orders import MAX_SLOT
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.exports.prometheus import of_job
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import SLOTS_WINDOW_S
from hvd_elastic_ext.launcher.membership.processes import plans
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.membership.spares import (
    Counts,
    HostSeats,
    SpareFacts,
    SpareLimits,
    bars,
    by_host,
    choose,
    counted,
    exchanges,
    extra_seats,
    offered,
    parse_spares,
)
from hvd_elastic_ext.launcher.membership.world_change import (
    Process,
    Situation,
    Stage,
    WorldLimits,
    decide,
)
from hvd_elastic_ext.launcher.reporting.all_waits import lacking, status
from tests.unit.launcher.scenarios import Scenario, play
from tests.unit.launcher.simulated_processes import Training

A, B, C, D = (Seat(name, 0) for name in "abcd")
A1, C1 = Seat("a", 1), Seat("c", 1)
THEMSELVES, NONE = SpareLimits(), SpareLimits(number=0)


# --- which seats have one


def facts(wanted: list[Seat], surplus: list[Seat], quiet: bool = True, **more: object) -> SpareFacts:
    found: dict[str, object] = {"taken": {}, "before": (), "due": (), **more}
    return SpareFacts(wanted, surplus, quiet=quiet, **found)  # type: ignore[arg-type]


def test_without_the_option_surplus_hosts_have_spares_and_free_slots_of_hosts_that_train_have_none() -> None:
    assert choose(facts([A, B], [A1, C, D]), THEMSELVES) == (C, D)
    assert choose(facts([A, B], [A1, C, D]), SpareLimits(number=3)) == (A1, C, D)
    assert choose(facts([A, B], [A1, C, D]), NONE) == ()


def test_by_themselves_there_are_no_more_spares_than_members() -> None:
    assert choose(facts([A], [C, C1, D]), THEMSELVES) == (C,)
    assert choose(facts([A], [C, C1, D]), SpareLimits(number=2)) == (C, C1)


@pytest.mark.parametrize(("percent", "size", "most"), [(10, 8, 1), (10, 11, 2), (50, 4, 2), (0, 4, 0)])
def test_a_share_of_the_world_is_rounded_up(percent: float, size: int, most: int) -> None:
    assert SpareLimits(percent=percent).most(size) == most


def test_nothing_is_started_while_the_world_changes_and_what_runs_is_kept() -> None:
    taken = {A: Stage.LIVE, D: Stage.BOOTING}
    assert choose(facts([A], [C, D], quiet=False, taken=taken), THEMSELVES) == (D,)
    assert choose(facts([A], [C], quiet=False), THEMSELVES) == ()


def test_a_ready_process_comes_before_one_that_starts_and_that_before_none() -> None:
    taken = {D: Stage.PARKED, C1: Stage.BOOTING}
    assert choose(facts([A, B], [C, C1, D], taken=taken), THEMSELVES) == (D, C1)
    assert choose(facts([A, B], [C, C1, D], taken=taken), SpareLimits(number=1)) == (D,)


def test_a_spare_stays_when_the_rest_of_its_host_begins_to_train() -> None:
    ready = {A: Stage.LIVE, C: Stage.LIVE, C1: Stage.PARKED}
    assert choose(facts([A, C], [B, C1], taken=ready, before=(C, C1)), THEMSELVES) == (C1, B)
    assert choose(facts([A, C], [B, C1], taken=ready), THEMSELVES) == (B,)  # not a spare before
    dead = {A: Stage.LIVE, C: Stage.LIVE}
    assert choose(facts([A, C], [B, C1], taken=dead, before=(C, C1)), THEMSELVES) == (B,)


def test_a_slot_that_is_due_comes_first_and_beside_as_many_as_there_may_be() -> None:
    taken = {A: Stage.LIVE, D: Stage.PARKED}
    assert choose(facts([A], [C, D], taken=taken, due={C}), SpareLimits(number=1)) == (C, D)
    assert choose(facts([A], [C, D], taken=taken, due={C}), NONE) == (C,)
    assert choose(facts([A], [C, D], taken=taken, due={C}, quiet=False), NONE) == ()


def test_a_former_member_that_ends_is_no_spare() -> None:
    assert choose(facts([A], [C], taken={C: Stage.LIVE}), THEMSELVES) == ()


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("auto", SpareLimits()),
        ("0", SpareLimits(number=0)),
        (" 12 ", SpareLimits(number=12)),
        ("10%", SpareLimits(percent=10.0)),
    ],
)
def test_the_option_is_read(text: str, limits: SpareLimits) -> None:
    assert parse_spares(text) == limits


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "%", "٣", "10 %"])
def test_any_other_text_is_refused_in_one_line_that_says_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match=r"--spares .*write a number, such as 1 or 0, a share such as 10%, or auto"):
        parse_spares(text)


@pytest.mark.parametrize("text", ["1025", "1001%", "9" * 30, "9" * 5000, "9" * 5000 + "%"])
def test_more_spares_than_any_host_has_slots_are_refused_in_one_line_that_says_how_many_there_may_be(text: str) -> None:
    with pytest.raises(UsageError, match="--spares is too large; write 1024 at most, or 1000%") as error:
        parse_spares(text)
    assert len(str(error.value)) < 100
    assert (parse_spares("1024"), parse_spares("01000%")) == (SpareLimits(number=1024), SpareLimits(percent=1000.0))


# --- who joins


def test_a_spare_shows_the_last_rank_and_never_rank_0() -> None:
    planned = plans((A, B), {}, spares=(C, C1), joining=True)
    assert [(each.seat, *each.place) for each in planned if each.seat.host == "c"] == [
        (C, 1, 2, 0, 2, 1, 2),
        (C1, 1, 2, 1, 2, 1, 2),
    ]
    alone = plans((A,), {}, spares=(C,), joining=True)
    assert [each.place.rank for each in alone] == [1, 1]


def _begins(*, others: dict[Seat, Stage], now: float) -> tuple[Seat, ...]:
    """Whom a world begins with at ``now`` if all were lost at 100, and a spare was called in then."""
    spare = Process(ProcessId(C, 1), Stage.PARKED, since=100.0, created=10.0, spare=True)
    rest = {seat: Process(ProcessId(seat, 2), stage, since=101.0, created=100.0) for seat, stage in others.items()}
    found = decide(now, Situation((A, B, C), {C: spare, **rest}, begun=True), WorldLimits(settle_s=3.0))
    return tuple(life.seat for life in found.members or ())


def test_when_all_others_are_lost_a_spare_does_not_begin_without_those_that_start_again() -> None:
    both = {A: Stage.BOOTING, B: Stage.BOOTING}
    assert _begins(others=both, now=129.9) == ()
    assert _begins(others=both, now=130.1) == (C,)  # they take longer than any newcomer is waited for
    one = {A: Stage.PARKED, B: Stage.BOOTING}
    assert _begins(others=one, now=103.9) == ()
    assert _begins(others=one, now=104.1) == (A, C)  # as without a spare: 3 s after the last one that is ready
    assert _begins(others={A: Stage.PARKED, B: Stage.PARKED}, now=103.1) == (A, B, C)


# --- in a job

READY = "begin start=2 most=2 cooldown_s=(5.0,9.0); hosts a b c; until a b; parked c; run 1; world a b; generation 1"
STORIES = {
    "a surplus host is ready, and nobody is interrupted for it": f"""
        {READY}; run 60; world a b; generation 1; is resized.cause start; last parked.host c; no struck exited
        messages update 0""",
    "a lost rank is replaced in the very next world": f"""
        {READY}; kill b; until a c <0.3; generation 2; is resized.size 2, 2
        is resized.cause start, worker failed; only struck.host b""",
    "so is rank 0, and a holder of the commit takes its rank": f"{READY}; kill a; until b c <0.3; generation 2",
    "so is a host that is silent": f"{READY}; cut b; until a c <12; generation 2; is fenced.host b",
    "so is one that is not listed any more, without a roll-back": f"""
        {READY}; hosts a c; until a c <0.5; generation 2; is resized.size 2, 2; no rolled_back struck""",
    "so is one with notice": f"{READY}; departs b spot reclaim / a c; until a c <0.5; generation 2; no struck",
    "one host after the other is replaced, and each is a spare again after its cooldown": f"""
        {READY}; kill b; until a c; state b parked <20; kill c; until a b <0.3; generation 3; state c parked <20
        kill a; until b c <0.3; is resized.size 2, 2, 2, 2; run 30; generation 4""",
    "a spare that dies is made again after its cooldown, and each time later": f"""
        {READY}; kill c; run 4; number spawned 3; state c parked <5; kill c; run 8; number spawned 4
        state c parked <5; only struck.host c; generation 1; goes-on; kill b; until a c <0.3; generation 2""",
    "one that dies at the same time as a member leaves the others to train": f"""
        {READY}; kill c; kill b; run 0.2; world a; generation 2; goes-on; size 2; run 20; size 2""",
    "one that dies as it is called in is left out": f"{READY}; kill b; begun 2; kill c; until a <1; size 2",
    "one that fails again and again ends nothing": f"""
        {READY}; {6 * "state c parked <30; kill c 1; run 0.5; "} world a b; generation 1; goes-on""",
    "a host that is removed while its process waits goes at once": f"""
        {READY}; hosts a b; gone c <2; world a b; generation 1; no struck""",
    "nobody is a spare before the others train": """
        begin start=2 most=2; boot a 20; hosts a b c; run 15; is spawned.host a, b; until a b; run 2
        is spawned.host a, b, c""",
    "the job ends as ever": f"{READY}; finish; over <40; goes-on",
    "a host that is back is the next spare, and does not displace its replacement": f"""
        {READY}; kill b; until a c; run 60; world a c; number resized 2; state b parked""",
    "with one rank, its state comes from its agent": """
        begin start=1 most=1 cooldown_s=(30.0,60.0); hosts a b; until a; parked b; run 3; kill a; until b <2
        sent a>b; last resized.steps_lost 0; generation 2""",
    "all processes may be killed at once": f"{READY}; kill a; kill b; has c <1; size 2; goes-on; sees resized 2",
}


@pytest.mark.parametrize("text", STORIES.values(), ids=STORIES)
def test_in_a_job(text: str) -> None:
    play(text)


def test_a_job_without_surplus_hosts_or_with_0_spares_starts_nothing_more() -> None:
    play("train a b; run 30; number spawned 2; generation 1")
    play("begin start=2 most=2; hosts a b c; until a b; run 30; number spawned 2", spares=NONE)
    play("begin start=3 most=3; hosts a:2 b:2; until a a b; run 30; number spawned 3")


def test_free_slots_of_hosts_that_train_have_spares_if_the_user_asks_for_some() -> None:
    play(
        """begin start=3 most=3; hosts a:2 b:2; until a a b; sees parked 4; run 1; number spawned 4
        kill a 1; until a b b <0.3; generation 2""",
        spares=SpareLimits(number=1),
    )


def test_engines_that_start_new_processes_for_each_world_have_none() -> None:
    play("begin start=2 most=2 engine=torchrun; hosts a b c; until a b; run 20; only spawned.host a, b")


class Loopless(Training):
    """A script that never begins an elastic loop."""

    def enters(self, process):  # type: ignore[no-untyped-def]
        if process.state == "training":
            process.agent.report(process, "entered", generation=process.generation)


def test_a_script_without_a_loop_has_none_as_none_could_join() -> None:
    play("begin start=2 most=2; hosts a b c; size 2; run 60; only spawned.host a, b", kind=Loopless)


def test_the_journal_the_status_line_and_the_metrics_show_spares() -> None:
    cluster = play(READY)
    job = cluster.driver.job
    assert "spares: 1 ready" in status(job)
    assert by_host(job) == {"c": Counts(ready=1, starting=0)}
    assert "starting:" not in status(job)
    found = {metric.name: metric.samples for metric in of_job(job, job.now, cluster.driver.job.fleet.hosts)}
    assert found["spares"] == {("ready",): 1.0, ("starting",): 0.0}
    (standby,) = cluster.events("standby")
    assert (standby["host"], standby["spare"]) == ("c", True)
    assert EVENTS["standby"].line(standby) == "c slot 0 starts a spare beside the training"
    cluster.kill("b", 0)
    cluster.until(lambda: len(cluster.events("resized")) == 2)
    line = cluster.events("resized")[-1]
    assert line["spares"] == ["c[0]"]
    assert "spare called in: c[0]" in EVENTS["resized"].line(line)
    assert "spares" not in status(job)


# --- extra seats of a host in use


def host(slots: int, usable: str, taken: dict[int, Stage], **more: object) -> HostSeats:
    return HostSeats(slots, tuple(map(int, usable)), taken, **more)  # type: ignore[arg-type]


LIVE, PARKED, BOOTING = Stage.LIVE, Stage.PARKED, Stage.BOOTING


@pytest.mark.parametrize(
    ("there", "seats"),
    {
        "a host without a spare offers its slots": (host(3, "02", {0: LIVE, 2: LIVE}), (0, 2)),
        "a spare is not beside all slots": (host(2, "01", {0: LIVE, 1: LIVE, 2: PARKED}), (0, 1)),
        "it takes the place of a lost one": (host(2, "1", {1: LIVE, 2: PARKED}), (1, 2)),
        "also before it is ready": (host(2, "1", {1: LIVE, 2: BOOTING}), (1, 2)),
        "a ready one comes first": (host(2, "1", {1: LIVE, 2: BOOTING, 3: PARKED}), (1, 3)),
        "two take two places": (host(2, "", {2: PARKED, 3: PARKED}), (2, 3)),
        "it keeps its place when the slot may work again": (host(2, "01", {1: LIVE, 2: LIVE}), (1, 2)),
        "so the slot is its spare": (host(2, "01", {1: LIVE, 2: LIVE, 0: PARKED}), (1, 2)),
        "a slot that is about to start comes after it": (host(2, "01", {0: LIVE, 2: PARKED}), (0, 2)),
        "no process is started for a blocked slot": (host(2, "1", {1: LIVE}), (1,)),
        "a blocked seat is not used": (host(2, "1", {1: LIVE, 2: PARKED}, blocked=(2,)), (1,)),
        "nor any in place of a barred slot": (host(2, "1", {1: LIVE, 2: PARKED}, barred=(0,)), (1,)),
        "a member stays though a spare is barred": (host(2, "01", {0: LIVE, 1: LIVE, 3: PARKED}, barred=(2,)), (0, 1)),
        "a host that has fewer slots now has fewer members": (host(1, "0", {0: LIVE, 1: LIVE}), (0,)),
        "with devices it stands for one slot": (host(2, "0", {0: LIVE, 2: PARKED}, devices=True), (0,)),
        "and for that one it comes in": (host(2, "1", {1: LIVE, 2: PARKED}, devices=True), (1, 2)),
        "the second for the second": (host(2, "0", {0: LIVE, 2: PARKED, 3: PARKED}, devices=True), (0, 3)),
        "never two on one device": (host(2, "01", {0: PARKED, 1: LIVE, 2: LIVE}, devices=True), (1, 2)),
        "nor on a barred one": (host(2, "1", {1: LIVE, 2: PARKED}, devices=True, barred=(0,)), (1,)),
        "a spare that has failed bars no slot": (
            host(2, "01", {1: LIVE, 3: PARKED}, blocked=(2,), barred=(2,)),
            (1, 3),
        ),
        "and none with devices": (
            host(2, "01", {0: LIVE, 3: PARKED}, devices=True, blocked=(5,), barred=(5,)),
            (0, 1),
        ),
        "but other spares on its device": (
            host(2, "1", {1: LIVE, 4: PARKED}, devices=True, blocked=(2,), barred=(2,)),
            (1,),
        ),
        "a member has the device that it was started with": (
            host(4, "0123", {1: LIVE, 2: LIVE, 0: BOOTING}, devices=True, stands={2: 0}),
            (1, 2, 3),
        ),
        "until a process of that slot is ready, which leaves it its own": (
            host(4, "0123", {1: LIVE, 2: LIVE, 0: PARKED}, devices=True, stands={2: 0}, exchanged=(2,)),
            (0, 1, 3),
        ),
        "where the world gets larger by it": (
            host(4, "0123", {1: LIVE, 2: LIVE, 0: PARKED}, devices=True, stands={2: 0}),
            (1, 2, 3),
        ),
        "if it gets one": (
            host(3, "012", {1: LIVE, 4: LIVE, 0: PARKED}, devices=True, stands={4: 0}),
            (1, 2, 4),
        ),
        "and a host that has fewer slots now not more of them": (
            host(2, "01", {0: LIVE, 1: LIVE, 2: LIVE}, devices=True, stands={2: 2}),
            (0, 1),
        ),
    }.values(),
    ids=str,
)
def test_a_host_offers_as_many_seats_as_it_has_slots(there: HostSeats, seats: tuple[int, ...]) -> None:
    assert offered(there) == seats


MISPLACED = host(4, "0123", {1: LIVE, 2: LIVE}, devices=True, stands={2: 0})


@pytest.mark.parametrize(
    ("there", "limits", "gone"),
    {
        "a member gives way if its own slot then works": (MISPLACED, WorldLimits(), [(0, 2)]),
        "not at the largest size": (MISPLACED, WorldLimits(most=4), []),
        "below it": (MISPLACED, WorldLimits(most=5), [(0, 2)]),
        "not for a size that may not be": (MISPLACED, WorldLimits(allowed=(2, 4)), []),
        "but for one that may": (MISPLACED, WorldLimits(allowed=(2, 5)), [(0, 2)]),
        "without devices all slots work": (MISPLACED._replace(devices=False), WorldLimits(), []),
        "where its own slot is blocked nothing is gained": (MISPLACED._replace(usable=(0, 1, 3)), WorldLimits(), []),
        "nobody can take over a blocked one": (MISPLACED._replace(usable=(1, 2, 3)), WorldLimits(), []),
        "nor is an extra seat a slot": (MISPLACED._replace(slots=2, usable=(0, 1)), WorldLimits(), []),
        "as many give way as make the world larger": (
            host(4, "0123", {2: LIVE, 3: LIVE}, devices=True, stands={2: 0, 3: 1}),
            WorldLimits(most=4),
            [(0, 2)],
        ),
    }.values(),
    ids=str,
)
def test_a_member_with_the_device_of_another_slot_gives_way_only_for_a_larger_world(
    there: HostSeats, limits: WorldLimits, gone: list[tuple[int, int]]
) -> None:
    other = host(1, "0", {0: LIVE})
    assert exchanges([there, other], limits) == gone


@pytest.mark.parametrize(
    ("cause", "detail", "held", "devices", "why"),
    [
        (Cause.CRASHED, "crashed: killed by SIGKILL", False, True, None),
        (Cause.CRASHED, "crashed: exit code 1", False, False, None),
        (Cause.SILENT, "silent", False, True, None),
        (Cause.STALLED, "stalled", False, True, None),
        (Cause.MEMORY, "out of memory: killed by the kernel", False, False, "memory"),
        (Cause.CRASHED, "crashed: CUDA error: uncorrectable ECC error", False, True, "device"),
        (Cause.CRASHED, "crashed: exit code 1, in 3 starts without a step", False, False, "each start"),
        (None, "", True, False, "by hand"),
    ],
)
def test_no_spare_stands_in_after_a_fault_that_would_meet_it_too(
    cause: Cause | None, detail: str, held: bool, devices: bool, why: str | None
) -> None:
    found = bars(cause, detail, held=held, devices=devices)
    assert found is None if why is None else why in str(found)


def test_spares_are_spread_over_sound_hosts_the_larger_ones_first() -> None:
    hosts = [host(1, "0", {}), host(4, "0123", {}), host(2, "1", {}), host(1, "0", {}, blocked=(1,))]
    assert extra_seats(hosts, 0) == []
    assert extra_seats(hosts, 2) == [(1, 4), (0, 1)]
    assert extra_seats(hosts, 4) == [(1, 4), (0, 1), (1, 5), (0, 2)]


def test_no_extra_seat_has_a_number_that_agents_refuse() -> None:
    assert extra_seats([HostSeats(1022, range(1022), {})], 4) == [(0, 1022), (0, MAX_SLOT)]
    assert extra_seats([HostSeats(1, (0,), {})], 9999)[-1] == (0, MAX_SLOT)


def test_a_spare_in_an_extra_seat_has_the_local_rank_of_its_slot_and_so_its_device() -> None:
    living = {Seat("a", slot): _lives(Seat("a", slot), local) for slot, local in ((0, 1), (1, 0))}
    (plan,) = plans((A, A1), living, spares=(Seat("a", 2),), joining=True, slots={"a": 2})
    assert (plan.seat.slot, plan.place.local_rank, plan.place.local_size) == (2, 1, 2)
    assert plan.neighbours == {0: 1, 1: 0}


def _lives(seat: Seat, local_rank: int) -> Worker:
    worker = Worker(ProcessId(seat, 1), Host(seat.host, 2), LIVE, 0.0)
    worker.local_rank = local_rank
    return worker


ONE = SpareLimits(number=1)
SPARE = "cooldown_s=(5.0,9.0); sees standby; state a parked; run 1; number spawned"
IN_USE = {
    "a spare beside the training replaces a lost rank of its host at once": f"""
        train a:2 b {SPARE} 4; world a a b; kill a:0; until a a b <0.3; generation 2; is resized.size 3, 3
        run 20; generation 2; number resized 2; number spawned 5""",
    "one after the other, and the slots are spares in turn": f"""
        train a:2 {SPARE} 3; kill a:0; until a a <0.3; run 40; state a parked; kill a:1; until a a <0.3; run 40
        state a parked; kill a:2; until a a <0.3; generation 4; is resized.size 2, 2, 2, 2""",
    "after an out-of-memory it does not": f"""
        train a:2 {SPARE} 3; memory a 0; until a <0.3; run 1; world a; is resized.size 2, 1; until a a <20""",
    "of another host it replaces nobody": f"train a:2 b {SPARE} 4; kill b; until a a <0.3; run 1; world a a",
    "a host without its only slot trains in the spare": f"""
        train a b {SPARE} 3; kill a; together a b <0.3; generation 2; run 30; generation 2""",
    "no second process is started in place of a blocked slot": f"""
        train a:2 {SPARE} 3; kill a:0; until a a <0.3; kill a:2; until a <0.3; run 3; world a; number spawned 3""",
    "a spare that dies costs no member, and is made again": f"""
        train a:2 {SPARE} 3; kill a:2; run 1; world a a; generation 1; is struck.subject slot 2 of a
        state a parked <20; run {SLOTS_WINDOW_S}; kill a:1; until a a <0.3; generation 2""",
    "a surplus host is preferred": """
        begin start=2 most=2 cooldown_s=(5.0,9.0); hosts a b c; until a b; parked c; run 9; number spawned 3
        kill b; until a c <0.3""",
    "a host that leaves takes its spare along": f"train a b {SPARE} 3; hosts b; until b <1; gone a <2; no struck",
}


class Steps(Scenario):
    def memory_(self, where: str, slot: str) -> None:
        """The kernel kills a process for memory."""
        life = self.cluster.agents[where].processes[int(slot)].life
        ended = {"event": "exited", "slot": int(slot), "life": life, "code": 137, "oom": True}
        self.cluster.driver.tell(News(where, ended))
        self.cluster.kill(where, int(slot))


@pytest.mark.parametrize("text", IN_USE.values(), ids=IN_USE)
def test_on_hosts_in_use(text: str) -> None:
    play(text, steps=Steps, spares=ONE)


FOUR = SpareLimits(number=4)
BESIDE = "train a:2 b:2 cooldown_s=(5.0,9.0); sees parked 8; run 1; number spawned 8; generation 1"
FAILING = {
    "two spares of a host fail together, and its ranks train on": f"""
        {BESIDE}; kill a:2 1; kill a:3 1; run 3; world a a b b; generation 1
        is struck.subject slot 2 of a, slot 3 of a""",
    "a rank is killed and a spare fails": f"""
        {BESIDE}; kill a:0; kill a:3 1; until a a b b <0.5; is struck.subject slot 0 of a, slot 3 of a
        run 2; world a a b b""",
    "a spare fails and then a rank is killed": f"""
        {BESIDE}; kill a:3 1; run 1; kill a:0; until a a b b <0.5; is struck.subject slot 3 of a, slot 0 of a
        run 2; world a a b b""",
}


@pytest.mark.parametrize("text", FAILING.values(), ids=FAILING)
def test_failing_spares_cost_only_their_own_seats(text: str) -> None:
    play(text, spares=FOUR)


def test_a_spare_in_a_free_slot_that_fails_costs_the_ranks_of_its_host_nothing() -> None:
    play(
        """begin start=3 most=3 cooldown_s=(5.0,9.0); hosts a b:4; until a b b; sees parked 5; run 1
        kill b:2 1; kill b:3 1; run 1; world a b b; generation 1; is struck.subject slot 2 of b, slot 3 of b""",
        spares=SpareLimits(number=2),
    )


def test_a_spare_ends_when_the_number_of_slots_of_its_host_changes_as_it_has_the_device_of_another_slot() -> None:
    cluster = play("train a:2 cooldown_s=(5.0,9.0); sees parked 3; run 1; hosts a:4; until a a a a; run 20", spares=ONE)
    assert sorted(line["slot"] for line in cluster.events("spawned")) == [0, 1, 2, 2, 3, 4]
    cluster = play("train a:4 cooldown_s=(5.0,9.0); sees parked 5; run 1; hosts a:3; until a a a; run 20", spares=ONE)
    assert {line["slot"] for line in cluster.events("spawned")[5:]} == {3}
    play(
        """train a:2 cooldown_s=(5.0,9.0); sees parked 3; hosts a:4; kill a:0; until a a a a <5
        is resized.size 2, 1, 4""",  # it is not called in
        spares=ONE,
    )


ELSEWHERE = """
    sees parked 4; run 1; is standby.host a; kill a:0; until a a b <0.3; sees parked 5; last standby.host b; run 30
    hosts a:4 b; until a a a b"""
"""On a, a rank in seat 2 has the device of slot 0; then its seat is a slot of its own. The spare stands on b."""


def test_a_rank_gives_the_device_of_another_slot_back_though_the_only_spare_stands_on_another_host() -> None:
    cluster = play(
        f"train a:2 b cooldown_s=(5.0,9.0); {ELSEWHERE}; until a a a a b <30; run 30",
        spares=ONE,
        names_devices=True,
    )
    workers = cluster.driver.job.roster.workers
    assert {seat.slot: worker.stands_for for seat, worker in workers.items() if seat.host == "a"} == {
        slot: slot for slot in range(4)
    }


def test_no_rank_gives_it_back_where_the_world_is_as_large_as_it_may_be() -> None:
    cluster = play(
        """begin start=2 most=3 cooldown_s=(5.0,9.0); hosts a:2; until a a; sees parked 3; kill a:0; until a a <0.3
        run 30; state a parked; hosts a:4; until a a a; run 60; generation 3""",
        spares=ONE,
        names_devices=True,
    )
    taken = cluster.driver.job.roster.taken()
    assert (taken[Seat("a", 2)], taken[Seat("a", 0)]) == (Stage.LIVE, Stage.PARKED)


def test_a_seat_in_which_no_spare_may_start_yet_does_not_count_as_one_that_starts() -> None:
    cluster = play(f"{READY}; kill c 143; run 1; number spawned 3")  # somebody else has ended it
    job = cluster.driver.job
    assert job.spares == (C,)
    assert (counted(job), by_host(job), lacking(job)) == ((0, 0), {}, [])
    assert "spares" not in status(job)
    cluster.until(lambda: counted(job) == (0, 1), within=9.0)
    cluster.until(lambda: counted(job) == (1, 0), within=9.0)


def test_a_host_that_only_has_spares_is_to_blame_when_they_fail_together() -> None:
    cluster = play(
        """begin start=3 most=3 cooldown_s=(5.0,9.0); hosts a:3 b:2; until a a a; sees parked 5; run 1
        kill b:0 1; kill b:1 1; run 1; world a a a""",
        spares=SpareLimits(number=2),
    )
    assert "2 slots failed" in cluster.events("struck")[-1]["host_blocked"]


def test_the_seat_of_a_spare_that_has_failed_is_named_as_long_as_it_is_blocked() -> None:
    job = play(f"{BESIDE}; kill a:3 1; run 2", spares=FOUR).driver.job
    assert "blocked: spare a[3] (2 s ago, for 3 s more: slot 3 of a: crashed: exit code 1)" in status(job)
    assert lacking(job) == ["blocked: spare a[3] (for 3 s more: slot 3 of a: crashed: exit code 1)"]
    job = play(f"{BESIDE}; kill a:3 1; run 6", spares=FOUR).driver.job
    assert "blocked" not in status(job)


def test_one_that_has_been_called_in_is_a_member_like_any_other() -> None:
    cluster = play(f"train a:2 {SPARE} 3; kill a:0; until a a <0.3", spares=ONE)
    assert not any(worker.spare for worker in cluster.driver.job.roster.workers.values() if worker.stage is LIVE)


def test_a_share_of_the_world_has_spares_on_as_many_hosts() -> None:
    play("train a b c; run 20; number spawned 5; is standby.host a, b", spares=SpareLimits(percent=50.0))
