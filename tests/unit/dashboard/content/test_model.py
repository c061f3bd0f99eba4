"""What the page says of a job."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from hvd_elastic_ext.core.events import RESIZES
from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.dashboard.content.host_facts import Hosts
from hvd_elastic_ext.dashboard.content.model import Facts, page_of
from hvd_elastic_ext.dashboard.content.sentences import duration
from tests.support.journals import JournalMaker


def page(journal: JournalMaker, *, live: dict[str, Any] | None = None, ago: float = 1.0) -> dict[str, Any]:
    records = list(read(journal.lines))
    hosts = Hosts()
    for record in records:
        hosts.note(record)
    facts = Facts("digits", records, hosts.known, journal.wall + journal.mono + ago, live=live)
    return {name: json.loads(to_text(part)) for name, part in page_of(facts).parts().items()}


def running(journal: JournalMaker) -> JournalMaker:
    journal.add("started", run="r", command="python", checkpoints="/ck", output="/out")
    journal.add("published", number=1, hosts={"a": 1, "b": 1}, added=["a", "b"], removed=[])
    return journal.resized("start", 2, after=1, hosts={"a": 1, "b": 1}, added=["a", "b"]).steps(30)


def crashed(journal: JournalMaker) -> JournalMaker:
    journal.add("exited", after=1, host="b", slot=0, rank=1, code=1, cause="crashed", reason="crashed: no such module")
    whole = {"host_blocked": "slot 0 of b: crashed", "host_blocked_s": 8}  # it has no other slot
    journal.add("struck", host="b", subject="slot 0 of b", cause="crashed", reason="crashed", cooldown_s=8, **whole)
    return journal.resized("worker failed", 1, after=2, hosts={"a": 1}, failed={"b": 1}, steps_lost=3).steps(5)


LIVE = {
    "said": "waiting: for the cooldown of b; at most 8 s more",
    "ledger": [{"name": "a", "published": True, "slots": 1, "state": "free", "strikes": 0, "left_s": None, "why": ""},
               {"name": "b", "published": True, "slots": 1, "state": "blocked", "strikes": 2, "left_s": 8.0,
                "why": "crashed"}],
    "details": {"hosts": {"a": {"trains": True, "cpu": 0.5, "memory": 0.25, "ranks": [0], "step_s": 0.1,
                                "shares": [0.75]}},
                "scaling": None},
}  # fmt: skip


def test_a_running_job_is_told_in_the_words_of_its_launcher_and_how_many_hosts_train() -> None:
    now = page(crashed(running(JournalMaker())), live=LIVE)["now"]
    assert (now["level"], now["text"]) == (
        "warn",
        f"1 of 2 hosts: {LIVE['said']}. Last fault, 0.5 s ago: worker failed on b: "
        "crashed: no such module; blocked for 8 s.",
    )
    assert now["do"].startswith("Install on b what the script imports")
    assert (now["step"], now["size"], now["hosts"]) == (35, 1, 1)


def test_a_host_that_trains_though_it_is_no_longer_listed_is_one_of_those_that_are_counted() -> None:
    ledger = [LIVE["ledger"][0] | {"published": False}, LIVE["ledger"][1]]  # type: ignore[index]
    now = page(running(JournalMaker()), live={**LIVE, "ledger": ledger, "said": "world 1"})["now"]
    assert now["text"].startswith("1 of 2 hosts: world 1")


def test_a_host_with_one_blocked_slot_of_two_is_not_blocked() -> None:
    journal = JournalMaker().add("started", run="r", command="python")
    journal.resized("start", 2, after=1, hosts={"b": 2}, added=["b"])
    journal.add("struck", host="b", subject="slot 0 of b", cause="crashed", reason="crashed", cooldown_s=8)
    [host] = page(journal)["hosts"]
    assert (host["state"], host["strikes"]) == ("free", 1)


def test_what_the_launcher_says_of_a_host_goes_before_the_journal() -> None:
    one, other = page(crashed(running(JournalMaker())), live=LIVE)["hosts"]
    assert (one["name"], one["trains"], one["cpu"], one["ranks"]) == ("a", True, 0.5, [0])
    assert (one["shares"], other["shares"]) == ([0.75], None)
    assert (other["name"], other["state"], other["strikes"], other["left_s"]) == ("b", "blocked", 2, 8.0)


def test_a_host_whose_process_waits_for_a_loss_is_a_spare_by_the_journal_and_by_the_launcher() -> None:
    journal = running(JournalMaker()).add("standby", host="c", slot=0, spare=True)
    rows = {row["name"]: row for row in page(journal, ago=2.0)["hosts"]}
    assert [rows.get(name, {"spares": None})["spares"] for name in "ab"] == [0, 0]
    journal.add("published", number=2, hosts={"a": 1, "b": 1, "c": 1}, added=["c"], removed=[])
    rows = {row["name"]: row for row in page(journal, ago=2.0)["hosts"]}
    assert (rows["c"]["spares"], rows["c"]["trains"]) == (1, False)
    ledger = [*LIVE["ledger"], {**LIVE["ledger"][0], "name": "c"}]
    told = {"said": "", "ledger": ledger, "details": {"hosts": {"c": {"trains": False, "ranks": [], "spares": 2}}}}
    rows = {row["name"]: row for row in page(journal, live=told)["hosts"]}
    assert (rows["c"]["spares"], rows["a"]["spares"]) == (2, 0)
    called_in = {"hosts": {"a": 1, "c": 1}, "spares": ["c[0]"], "failed": {"b": 1}, "steps_lost": 0}
    journal.resized("worker failed", 2, after=1, **called_in)
    rows = {row["name"]: row for row in page(journal, ago=2.0)["hosts"]}
    assert (rows["c"]["spares"], rows["c"]["trains"]) == (0, True)


def test_gpus_and_prices_are_told_where_the_launcher_knows_them_and_of_hosts_that_train() -> None:
    def now(**more: dict[str, float]) -> dict[str, Any]:
        told = {name: {"trains": True, "ranks": [0], **more.get(name, {})} for name in ("a", "b")}
        told["c"] = {"trains": False, "gpu": 0.0, "price": 9.0}
        live = {**LIVE, "details": {"hosts": told, "scaling": None}}
        parts = page(running(JournalMaker()), live=live)
        rows = {row["name"]: (row["gpu"], row["price"]) for row in parts["hosts"]}
        return {**parts["now"], "rows": rows}

    unknown = now()
    assert [unknown[key] for key in ("gpu", "gpu_memory", "per_hour")] == [None] * 3
    known = now(a={"gpu": 0.5, "gpu_memory": 0.25, "price": 1.5}, b={"gpu": 1.0, "price": 2.0})
    assert [known[key] for key in ("gpu", "gpu_memory", "per_hour")] == [0.75, 0.25, 3.5]
    assert known["rows"]["a"] == (0.5, 1.5)
    assert now(a={"price": 1.5})["per_hour"] is None


def test_without_a_launcher_hosts_are_as_the_journal_tells() -> None:
    rows = {row["name"]: row for row in page(crashed(running(JournalMaker())), ago=2.0)["hosts"]}
    assert rows["a"]["trains"]
    assert (rows["b"]["state"], rows["b"]["strikes"], rows["b"]["why"]) == ("blocked", 1, "crashed")
    assert 0 < rows["b"]["left_s"] < 8


def test_a_failed_job_says_why_and_whose_output_tells_more() -> None:
    journal = crashed(running(JournalMaker())).add("finished", after=1, code=1, reason="too many faults within an hour")
    told = page(journal)
    assert told["now"]["level"] == "bad"
    assert told["now"]["text"].startswith("The job failed with exit code 1 after 8.5 s at step 35: too many faults")
    reasons = [row for row in told["timeline"]["rows"] if row["id"] in told["now"]["why"]]
    assert reasons[0]["means"] == RESIZES["worker failed"].meaning
    assert [(row["event"], row["lost"], row["text"]) for row in reasons] == [
        ("worker failed", 3, "crashed: no such module; blocked for 8 s")
    ]
    assert [who for who, _ in reasons[0]["who"]] == ["1"]
    assert (reasons[0]["do"], reasons[0]["on"]) == (told["now"]["do"], ["b"])
    assert "worker failed on b: crashed: no such module" in told["now"]["text"]  # the reason names no host
    assert told["now"]["do"].startswith("Install on b what the script imports")


def test_a_job_that_is_done_ends_in_what_its_changes_cost() -> None:
    now = page(crashed(running(JournalMaker())).add("finished", after=1, code=0, reason="done"))["now"]
    assert (now["level"], now["ended"]) == ("ok", True)
    assert "1 change of the world cost" in now["text"]
    assert "3 steps had to be done again" in now["text"]


def test_changes_whose_cost_is_not_known_are_not_said_to_have_cost_nothing() -> None:
    journal = JournalMaker().add("started").resized("start", 2).resized("hosts added", 3, after=34.0, added=["c"])
    done = {"after": 1.0, "code": 0, "reason": "done"}
    text = page(journal.add("finished", **done))["now"]["text"]
    assert text.endswith("What 1 change of the world cost is not known.")
    journal = JournalMaker().add("started").resized("start", 2).resized("hosts added", 3, added=["c"])
    journal.resized("hosts removed", 2, after=1.0, removed=["c"], downtime_s=1.5, steps_lost=3)
    text = page(journal.add("finished", **done))["now"]["text"]
    assert "2 changes of the world cost at least 1.5 s without a step (of 1 that is not known)" in text
    assert text.endswith(", and at least 3 steps had to be done again.")


def test_a_job_that_was_told_to_stop_has_not_failed() -> None:
    reason = "stopped by SIGINT; the same command goes on after step 5"
    now = page(running(JournalMaker()).add("finished", after=1, code=130, reason=reason))["now"]
    assert now["level"] == "warn"
    assert re.match(
        r"The job was stopped by SIGINT after [\d.]+ s at step \d+: the same command goes on after step 5\. ",
        now["text"],
    )
    early = page(running(JournalMaker()).add("finished", after=1, code=143, reason="stopped by SIGTERM"))["now"]
    assert re.match(r"The job was stopped by SIGTERM after [\d.]+ s at step \d+\. ", early["text"])


def test_training_that_is_done_is_said_once_and_the_step_of_the_sentence_is_that_of_the_page() -> None:
    """Defect: "Training is done after 1 min 46 s at step 2,031: training is done.", beside another number of a step."""
    journal = running(JournalMaker())
    last = journal.step
    journal.add("sealed", after=1, path="/ck/1", step=last + 4, bytes=1, seconds=1.0)
    uneven = page(journal.add("finished", after=1, code=0, reason="training is done; rank 1 did 2 steps more"))["now"]
    assert uneven["step"] == last + 4
    assert f"at step {uneven['step']:,}: rank 1 did 2 steps more. " in uneven["text"]
    done = page(running(JournalMaker()).add("finished", after=1, code=0, reason="training is done"))["now"]
    assert re.match(rf"Training is done after [\d.]+ s at step {done['step']:,}\. ", done["text"])


def test_the_sentence_on_a_job_that_trains_has_no_step_of_its_own() -> None:
    """Defect: the sentence said step 1371 and the page 1,367."""
    said = "world 1, size 2, step 1371, 9.16 steps/s"
    live = {**LIVE, "ledger": [], "said": said}
    text = page(running(JournalMaker()), live=live)["now"]["text"]
    assert "world 1, size 2, 9.16 steps/s." in text
    waiting = "waiting: for the last checkpoint: step 205 is completed by a; at most 9 s more"
    assert "step 205 is completed" in page(running(JournalMaker()), live={**live, "said": waiting})["now"]["text"]


def test_the_call_in_progress_is_on_the_page_also_where_the_launcher_cannot_be_asked() -> None:
    journal = running(JournalMaker())
    assert page(journal)["now"]["call"] == 1
    journal.add("stepped", after=1, step=40, rank=0, size=2, call=2, host="a", values={})
    assert page(journal)["now"]["call"] == 2
    live = {**LIVE, "ledger": [], "said": "world 1, size 2, call 2, step 40, 9.16 steps/s"}
    assert "world 1, size 2, call 2, 9.16 steps/s." in page(journal, live=live)["now"]["text"]


def test_a_job_that_was_stopped_after_a_fault_says_so() -> None:
    now = page(crashed(running(JournalMaker())).add("finished", after=1, code=143, reason="stopped by SIGTERM"))["now"]
    assert "Last fault, 1.5 s ago: worker failed on b" in now["text"]
    assert (now["do"][:12], len(now["why"])) == ("Install on b", 1)


def test_what_asks_for_a_look_is_told_though_it_is_no_fault() -> None:
    journal = running(JournalMaker()).add("straggler", host="b", slot=0, reason="b[0] takes 2 s a step, 2 × the median")
    now = page(journal.steps(5), live={**LIVE, "ledger": [], "said": "world 1 trains"})["now"]
    assert (now["level"], len(now["why"])) == ("warn", 1)
    assert "Last event, 0.5 s ago: straggler on b: b[0] takes 2 s a step" in now["text"]
    assert now["do"].startswith("See what else runs on b")


def test_a_fault_is_told_where_the_launcher_cannot_be_asked() -> None:
    now = page(crashed(running(JournalMaker())), ago=2.0)["now"]
    assert (now["level"], len(now["why"])) == ("warn", 1)
    assert "worker failed on b" in now["text"]


def test_faults_come_first_and_what_a_host_has_suffered_several_times_is_told_once() -> None:
    journal = crashed(running(JournalMaker()))
    for _ in range(3):
        journal = crashed(journal)
    for host in ("c", "d", "e"):
        journal.add("notice", after=5, host=host, reason="drained by Ops")
    told = page(journal)
    rows = {row["id"]: row for row in told["timeline"]["rows"]}
    shown = [(rows[at]["event"], rows[at]["hosts"]) for at in told["now"]["why"]]
    assert shown == [("worker failed", ["b"]), ("notice", ["e"]), ("notice", ["d"])]
    assert "Last fault" in told["now"]["text"]


def test_a_launcher_that_was_killed_is_told() -> None:
    now = page(running(JournalMaker()), ago=600)["now"]
    assert now["level"] == "bad"
    assert "No launcher answers, and none has ended this run" in now["text"]
    assert "10 min" in now["text"]


def test_a_journal_that_grows_without_a_launcher_to_ask_is_no_fault() -> None:
    assert page(running(JournalMaker()), ago=2)["now"]["level"] == "info"


def test_checkpoints_tell_the_newest_and_when_the_next_is_due() -> None:
    journal = running(JournalMaker()).add("interval", seconds=60.0, reason="every 60 s: a save takes 2 s")
    for step in (10, 20):
        journal.add("sealed", after=1, step=step, path=f"/ck/{step}", bytes=10, seconds=2.0)
    journal.add("not_sealed", after=1, reason="the disk is full")
    told = page(journal)["checkpoints"]
    assert [each["step"] for each in told["sealed"]] == [20, 10]
    assert (told["every_s"], told["place"], told["failed"][0]["why"]) == (60.0, "/ck", "the disk is full")


def test_decisions_about_the_number_of_hosts_are_told_with_their_reasons() -> None:
    journal = running(JournalMaker()).add("scaled", hosts=4, before=2, leaving=[], reason="4 hosts are worth it")
    (decision,) = page(journal)["scaling"]["decisions"]
    assert (decision["before"], decision["hosts"], decision["why"]) == (2, 4, "4 hosts are worth it")


def test_any_journal_gives_a_page_of_plain_json() -> None:
    journal = JournalMaker().add("resized", cause=7, size="x", hosts=[1], failed="y", downtime_s="z")
    journal.add("struck", host=None, cooldown_s=[], until={}).add("sealed", step=[], bytes="x", seconds=None)
    journal.add("stepped", step="x", values=[]).add("scaled", hosts="many").add("published", hosts="none")
    journal.add("blocked", host={}, for_s="x").add("interval", seconds="x").add("finished", code="x")
    assert page(journal, live={"said": "x", "ledger": None, "details": None})["now"]["ended"] is False


@pytest.mark.parametrize(
    ("said", "do"),
    [
        (
            "waiting: processes ready: 0, needed: 2; -np 2 is more than all hosts have (slots: 1)",
            "Add hosts to the list",
        ),
        ("waiting: for a first host: no host in hosts; at most 7 s more", "Add hosts to the list"),
        ("waiting: for the first step of world 1", ""),
        ("world 1, size 2, step 30, 10 steps/s", ""),
    ],
)
def test_a_job_that_waits_for_hosts_says_what_to_do(said: str, do: str) -> None:
    told = page(running(JournalMaker()), live={**LIVE, "said": said})["now"]["do"]
    assert told.startswith(do)
    assert bool(told) == bool(do)


def test_an_end_before_anything_began_took_no_time_and_had_no_world() -> None:
    journal = JournalMaker().add("started", run="r").add("finished", after=0.0003, code=2, reason="no such file")
    assert (
        page(journal)["now"]["text"] == "The job failed with exit code 2 after 0 s: no such file. No world was formed."
    )


def test_a_page_of_no_record_is_a_page() -> None:
    assert page(JournalMaker())["now"]["step"] is None


def test_numbers_that_json_does_not_have_are_null() -> None:
    journal = running(JournalMaker())
    journal.add("sealed", step=1, path="x", bytes=math.inf, seconds=math.nan)
    (sealed,) = page(journal)["checkpoints"]["sealed"]
    assert (sealed["bytes"], sealed["seconds"]) == (None, None)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_ends_no_page(seconds: float) -> None:
    assert duration(seconds) == f"{seconds} s"


TRAINS = "world 1, size 2, step 30, 10 steps/s"
REFUSED = f"{TRAINS}, the newest host list is refused: hosts:2: no number of slots"
STILL = "world 1, size 2, step 30, no step for 70 s: rank 1 (b[0]) is waited for; reported as stalled after 60 s"


@pytest.mark.parametrize(
    ("event", "fields", "later_steps", "said", "level", "do"),
    [
        ("refused", {"reason": "hosts:2: no number of slots"}, 5, REFUSED, "warn", "Correct the host list"),
        ("refused", {"reason": "hosts:2: no number of slots"}, 5, TRAINS, "warn", ""),
        ("refused", {"reason": "hosts:2: no number of slots"}, 7000, REFUSED, "warn", "Correct the host list"),
        ("refused", {"reason": "hosts:2: no number of slots"}, 7000, TRAINS, "ok", ""),
        ("stalled", {"hosts": ["b[0]"], "reason": "no progress for 60 s of rank 1"}, 5, STILL, "warn", "See where"),
        ("stalled", {"hosts": ["b[0]"], "reason": "no progress for 60 s of rank 1"}, 5, TRAINS, "warn", ""),
    ],
)
def test_what_is_to_be_done_is_told_as_long_as_the_launcher_says_that_it_lasts(
    event: str, fields: dict[str, Any], later_steps: int, said: str, level: str, do: str
) -> None:
    journal = running(JournalMaker())
    journal.add(event, after=1, **fields)
    now = page(journal.steps(later_steps), live={**LIVE, "ledger": LIVE["ledger"][:1], "said": said})["now"]
    assert now["level"] == level
    assert now["do"].startswith(do)
    assert bool(now["do"]) is bool(do)


def test_a_checkpoint_that_failed_asks_for_nothing_once_another_is_whole() -> None:
    journal = running(JournalMaker())
    journal.add("not_sealed", after=1, reason="/ck: No space left on device", again_s=30)
    live = {**LIVE, "ledger": LIVE["ledger"][:1], "said": TRAINS}
    assert page(journal, live=live)["now"]["do"].startswith("Make room there")
    journal.add("sealed", after=1, path="/ck/1", step=30, bytes=1, seconds=1.0)
    assert page(journal, live=live)["now"]["do"] == ""


def test_each_checkpoint_has_a_mark_no_later_than_the_row_that_tells_of_it() -> None:
    journal = running(JournalMaker())
    for number, after in enumerate((0.9874, 1.0016, 2.3331)):
        journal.add("sealed", after=after, step=10 * number, path="/ck/1").steps(1)
    journal.resized("hosts added", 3, after=1).steps(3).add("sealed", after=0.4567, step=40, path="/ck/2")
    told = page(journal)["timeline"]
    rows = [row["at"] for row in told["rows"] if row["event"] == "sealed"]
    assert [step for _, step in told["sealed"]] == [0, 10, 20, 40]
    assert len(rows) == 2  # those in a row are one
    assert {told["sealed"][2][0], told["sealed"][3][0]} == set(rows)
