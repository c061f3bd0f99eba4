"""Every pod with its verdict and its reason: what people and programs are shown."""

import json

import pytest

from discover.daemon.once import Row, as_json, explain, pods_table
from discover.pods.views import Key, PodView
from discover.verdicts.damping import DampingFacts, DampingLimits, DampingState, ProbeResults, decide_published
from discover.verdicts.verdicts import Grade, Selection, Verdict, warnings_of
from hvd_elastic_ext.core.hosts import Host

REFUSED = ProbeResults(refused={"uid-w-5": "w-5 port 22: connection refused"})


def verdict(name: str, grade: Grade, reason: str, *, slots: int = 4, space: str = "ns", **more) -> Verdict:
    pod = PodView(Key(space, name), f"uid-{name}", "1", node=f"n-{name}")
    host = None if grade is Grade.UNFIT else Host(name, slots, f"uid-{name}", f"n-{name}")
    return Verdict(pod, grade, reason, host, **more)


VERDICTS = (
    verdict("w-0", Grade.USABLE, "ready"),
    verdict("w-1", Grade.USABLE, "ready", advisory="node n-w-1 is cordoned"),
    verdict("w-2", Grade.LEAVING, "node n-w-2 has a spot notice", deadline=1030.0),
    verdict("w-3", Grade.LEAVING, "pod is being deleted"),
    verdict("w-4", Grade.UNFIT, "pod waits for a node"),
    verdict("w-5", Grade.USABLE, "ready"),
    verdict("w-6", Grade.USABLE, "ready", advisory="node n-w-6 is cordoned"),
    verdict("w-7", Grade.ABSENT, "node n-w-7 is not ready"),
)


def rows(*verdicts: Verdict, published: tuple[str, ...] = ("w-0", "w-1"), answers: ProbeResults = REFUSED):
    selection = Selection(verdicts)
    held = DampingState(published={f"uid-{name}": Host(name, 4, f"uid-{name}") for name in published}, started=True)
    damping, _ = decide_published(100.0, held, DampingFacts(selection, answers), limits=DampingLimits())
    return explain(selection, damping)


def test_each_pod_has_one_verdict_word():
    assert {row.pod: row.verdict for row in rows(*VERDICTS)} == {
        "ns/w-0": "usable",
        "ns/w-1": "usable",
        "ns/w-2": "leaving",
        "ns/w-3": "leaving",
        "ns/w-4": "unfit",
        "ns/w-5": "waiting",
        "ns/w-6": "warned",
        "ns/w-7": "silent",
    }


def test_a_silent_host_that_is_held_has_the_reason():
    (row,) = rows(verdict("w-7", Grade.ABSENT, "node n-w-7 is not ready"), published=("w-7",))
    assert (row.verdict, row.published) == ("held", True)
    assert row.reason == "node n-w-7 is not ready; kept for another 30 s: most hosts fell silent at once"


def test_the_table_of_pods_is_laid_out_in_columns_with_each_verdict_and_reason():
    assert pods_table(rows(*VERDICTS), wall=1000.0).splitlines() == [
        "POD  HOST  SLOTS  NODE   VERDICT  REASON",
        "w-0  w-0   4      n-w-0  usable   ready",
        "w-1  w-1   4      n-w-1  usable   ready; node n-w-1 is cordoned",
        "w-2  w-2   4      n-w-2  leaving  in 30 s: node n-w-2 has a spot notice",
        "w-3  w-3   4      n-w-3  leaving  pod is being deleted",
        "w-4  -     -      n-w-4  unfit    pod waits for a node",
        "w-5  w-5   4      n-w-5  waiting  ready; w-5 port 22: connection refused",
        "w-6  w-6   4      n-w-6  warned   ready; not added: node n-w-6 is cordoned",
        "w-7  w-7   4      n-w-7  silent   node n-w-7 is not ready",
    ]


def test_a_deadline_that_is_over_is_now():
    assert "leaving  now: node n-w-2 has a spot notice" in pods_table(rows(VERDICTS[2]), wall=2000.0)


def test_pods_of_several_namespaces_are_told_apart():
    table = pods_table(rows(VERDICTS[0], verdict("w-0", Grade.UNFIT, "not this job's", space="other")), wall=0.0)
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["ns/w-0", "other/w-0"]


def test_the_json_row_has_all_known_values_and_no_others():
    assert json.loads(json.dumps(as_json(rows(*VERDICTS)[2]))) == {
        "pod": "ns/w-2",
        "verdict": "leaving",
        "reason": "node n-w-2 has a spot notice",
        "published": False,
        "host": "w-2",
        "slots": 4,
        "node": "n-w-2",
        "uid": "uid-w-2",
        "deadline": 1030.0,
    }
    assert as_json(Row("ns/p", "unfit", "pod waits for a node", published=False)) == {
        "pod": "ns/p",
        "verdict": "unfit",
        "reason": "pod waits for a node",
        "published": False,
    }


def test_warnings_are_counted_by_where_they_stand_and_what_follows():
    assert warnings_of(VERDICTS) == {
        ("node", "advisory"): 2,
        ("node", "imminent"): 1,
        ("pod", "imminent"): 1,
        ("node", "absent"): 1,
    }


@pytest.mark.parametrize("verdicts", [(), (VERDICTS[0], VERDICTS[4]), (verdict("w-8", Grade.GONE, "pod was evicted"),)])
def test_without_warnings_nothing_is_counted(verdicts):
    assert warnings_of(verdicts) == {}
