"""Every signal of the table: set, it has its consequence and its deadline; unset, all is as before. (Rule 18.)"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from discover.pods.operators import OPERATORS, HostRules
from discover.pods.views import NodeView
from discover.verdicts.signal_config import as_rule, with_rules
from discover.verdicts.signals import (
    BUILT_IN,
    Deadline,
    Evidence,
    Finding,
    Signal,
    SignalClass,
    Table,
    node_signals,
    pod_signals,
)
from discover.verdicts.verdicts import Grade, Selector
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import read_config
from tests.support.kube.bodies import condition, taint
from tests.unit.discover.pod_and_node_views import NOW, node, picture, pod

RULES = HostRules(operator=OPERATORS["mpi"])
LATER = "2026-01-01T00:00:40Z"
GRACE = 90
"""Seconds of grace of all pods here."""


@dataclass(frozen=True)
class Case:
    """``grade`` None: usable as before, with an advisory. ``deadline``: seconds after NOW. ``seen``: when the signal
    is first seen, in seconds after NOW."""

    name: str
    pod: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)
    grade: Grade | None = Grade.LEAVING
    deadline: float | None = None
    seen: float = 100.0


def tainted(
    name: str, *taints: dict[str, Any], grade: Grade | None = Grade.LEAVING, deadline: float | None = None
) -> Case:
    return Case(name, node={"taints": taints}, grade=grade, deadline=deadline)


def failed(name: str, reason: str) -> Case:
    return Case(name, pod={"phase": "Failed", "status": {"reason": reason}}, grade=Grade.GONE)


def with_condition(kind: str, status: str = "True", *, reason: str = "", message: str = "") -> list[dict[str, Any]]:
    return [condition(kind, status, reason=reason, since=LATER) | {"message": message}]


def shutdown(labels: dict[str, str]) -> dict[str, Any]:
    ready = with_condition("Ready", "False", reason="KubeletNotReady", message="node is shutting down")
    return {"ready": None, "conditions": ready, "labels": labels}


AWS, GKE = "aws-node-termination-handler", "cloud.google.com"
ABSENT, KEPT, UNFIT = Grade.ABSENT, None, Grade.UNFIT

CASES = [
    Case("pod-deleted", pod={"deletion": "2026-01-01T00:01:00Z"}, deadline=60),
    Case(
        "pod-terminated-by-kubelet",
        pod={"conditions": with_condition("DisruptionTarget", reason="TerminationByKubelet")},
    ),
    *(
        Case(
            "pod-disruption", pod={"conditions": with_condition("DisruptionTarget", reason=reason)}, deadline=40 + GRACE
        )
        for reason in ("EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC")
    ),
    failed("pod-evicted", "Evicted"),
    failed("pod-evicted", "Terminated"),
    Case("gke-spot-shutdown", node=shutdown({f"{GKE}/gke-spot": "true"}), deadline=40 + 15),
    Case("node-shutdown", node=shutdown({})),
    Case("node-not-ready", node={"ready": False}, grade=ABSENT),
    Case("node-unknown", node={"ready": "Unknown"}, grade=ABSENT),
    tainted("node-unreachable", taint("node.kubernetes.io/unreachable", effect="NoSchedule"), grade=ABSENT),
    tainted("node-unreachable", taint("node.kubernetes.io/unreachable", effect="NoExecute"), grade=ABSENT),
    tainted("node-not-ready-taint", taint("node.kubernetes.io/not-ready", effect="NoSchedule"), grade=ABSENT),
    tainted("node-not-ready-taint", taint("node.kubernetes.io/not-ready", effect="NoExecute"), grade=ABSENT),
    tainted("node-out-of-service", taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute")),
    tainted("node-cloud-shutdown", taint("node.cloudprovider.kubernetes.io/shutdown")),
    Case("node-cordoned", node={"unschedulable": True}, grade=KEPT),
    tainted("node-unschedulable", taint("node.kubernetes.io/unschedulable"), grade=KEPT),
    tainted("node-memory-pressure", taint("node.kubernetes.io/memory-pressure"), grade=KEPT),
    tainted("node-disk-pressure", taint("node.kubernetes.io/disk-pressure"), grade=KEPT),
    tainted("node-pid-pressure", taint("node.kubernetes.io/pid-pressure"), grade=KEPT),
    tainted("node-network", taint("node.kubernetes.io/network-unavailable"), grade=KEPT),
    tainted("autoscaler-deleting", taint("ToBeDeletedByClusterAutoscaler", f"{NOW + 7:.0f}"), deadline=7 + GRACE),
    tainted("autoscaler-deleting", taint("ToBeDeletedByClusterAutoscaler", "who knows"), deadline=None),
    tainted(
        "autoscaler-candidate",
        taint("DeletionCandidateOfClusterAutoscaler", f"{NOW:.0f}", "PreferNoSchedule"),
        grade=KEPT,
    ),
    tainted("karpenter-disrupted", taint("karpenter.sh/disrupted")),
    tainted("karpenter-disrupting", taint("karpenter.sh/disruption", "disrupting")),
    tainted("aws-spot", taint(f"{AWS}/spot-itn", "i-1"), deadline=100 + 120),
    tainted("aws-spot", taint(f"{AWS}/spot-itn", "i-1", "NoExecute", added=LATER), deadline=40 + 120),
    tainted("aws-asg", taint(f"{AWS}/asg-lifecycle-termination")),
    tainted("aws-maintenance", taint(f"{AWS}/scheduled-maintenance"), grade=KEPT),
    tainted("aws-rebalance", taint(f"{AWS}/rebalance-recommendation"), grade=KEPT),
    tainted("gke-termination", taint(f"{GKE}/impending-node-termination")),
    Case(
        "gke-maintenance-time", node={"labels": {f"{GKE}/scheduled-maintenance-time": f"{NOW + 3600:.0f}"}}, grade=KEPT
    ),
    Case(
        "gke-maintenance-latest",
        node={"labels": {f"{GKE}/scheduled-maintenance-time-latest": f"{NOW + 3600:.0f}"}},
        grade=KEPT,
    ),
    Case("gke-maintenance-active", node={"labels": {f"{GKE}/active-node-maintenance": "ONGOING"}}),
    tainted("gke-maintenance-window", taint(f"{GKE}/maintenance-window-started"), grade=KEPT),
    tainted("aks-remediation", taint("remediator.kubernetes.azure.com/unschedulable"), deadline=100 + 30),
    tainted("aks-remediation-old", taint("remediator.aks.microsoft.com/unschedulable"), deadline=100 + 30),
    Case("aks-event", node={"conditions": with_condition("VMEventScheduled")}, grade=KEPT),
    tainted("oke-termination", taint("ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination")),
    Case("eci-expired", pod={"conditions": with_condition("ContainerInstanceExpired")}, deadline=40 + 180),
    *(
        Case(
            "eci-released",
            pod={"conditions": with_condition("ContainerInstanceCreated", status, reason="SpotToBeReleased")},
            deadline=40 + 180,
        )
        for status in ("True", "False")
    ),
    failed("eci-bid-failed", "BidFailed"),
]

NOTES = [
    ("acs-best-effort", {"labels": {"alibabacloud.com/compute-qos": "best-effort"}}, {}),
    ("aks-spot", {}, {"labels": {"kubernetes.azure.com/scalesetpriority": "spot"}}),
    ("gke-spot", {}, {"labels": {f"{GKE}/gke-spot": "true"}}),
    ("karpenter-spot", {}, {"labels": {"karpenter.sh/capacity-type": "spot"}}),
]
JOB_NOTES = {"arena-spot", "arena-max-wait", "arena-status", "arena-suspended"}
"""Cases of these: test_job_signals.py."""


def a_node(**more: Any) -> NodeView:
    """``ready`` None leaves the condition to ``conditions``."""
    if more.get("ready", True) is not None:
        return node(**more)
    made = node(**{**more, "ready": True})
    return replace(made, conditions=made.conditions[:3] + made.conditions[4:])


def grade_and_deadline(case: Case, selector: Selector) -> tuple[Any, ...]:
    a_pod = pod(terminationGracePeriodSeconds=GRACE, **case.pod)
    [verdict] = selector.select(NOW + case.seen, picture([a_pod], [a_node(**case.node)])).verdicts
    return verdict.grade, verdict.deadline, bool(verdict.advisory), verdict.reason


CALM = Case("nothing")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule_18_a_signal_has_its_consequence_while_it_is_set_and_none_afterwards(case: Case):
    selector = Selector(RULES, BUILT_IN)
    calm = (Grade.USABLE, None, False, "ready")
    assert grade_and_deadline(CALM, selector) == calm
    assert findings_of(case)[0].signal.name == case.name
    grade, deadline, advised, reason = grade_and_deadline(case, selector)
    assert grade is (case.grade or Grade.USABLE), reason
    assert deadline == (None if case.deadline is None else NOW + case.deadline), reason
    assert advised is (case.grade is None), reason
    assert grade_and_deadline(CALM, selector) == calm


def findings_of(case: Case) -> list[Finding]:
    return [*pod_signals(pod(**case.pod), BUILT_IN), *node_signals(a_node(**case.node), BUILT_IN)]


def test_rule_18_no_row_of_the_table_is_without_a_case():
    tested = {case.name for case in CASES} | {name for name, _, _ in NOTES} | JOB_NOTES | {"node-gone"}
    assert tested == {signal.name for signal in BUILT_IN.signals}
    assert len({signal.name for signal in BUILT_IN.signals}) == len(BUILT_IN.signals)


@pytest.mark.parametrize(("name", "on_pod", "on_node"), NOTES)
def test_what_only_describes_a_node_is_told_and_has_no_consequence(name: str, on_pod: dict, on_node: dict):
    [finding] = findings_of(Case(name, on_pod, on_node))
    assert (finding.signal.name, finding.signal.category) == (name, SignalClass.NOTE)
    grade, deadline, advised, reason = grade_and_deadline(Case(name, on_pod, on_node), Selector(RULES, BUILT_IN))
    assert (grade, deadline, advised) == (Grade.USABLE, None, False)
    assert finding.signal.says in reason


@pytest.mark.parametrize(
    "harmless",
    [
        Case("", node={"labels": {f"{GKE}/active-node-maintenance": "NONE"}}),
        Case("", node={"taints": [taint("karpenter.sh/disruption", "candidate")]}),
        Case("", node={"taints": [taint("node.kubernetes.io/unreachable-not")]}),
        Case("", node={"conditions": with_condition("VMEventScheduled", "False")}),
        Case("", pod={"conditions": with_condition("DisruptionTarget", "False", reason="EvictionByEvictionAPI")}),
        Case("", pod={"conditions": with_condition("ContainerInstanceCreated", reason="Created")}),
        Case("", pod={"labels": {"karpenter.sh/disrupted": "true"}}),
    ],
)
def test_what_is_like_a_signal_and_none_changes_nothing(harmless: Case):
    assert grade_and_deadline(harmless, Selector(RULES, BUILT_IN)) == (Grade.USABLE, None, False, "ready")


def test_of_rows_about_one_key_only_the_worst_and_narrowest_is_told():
    case = Case("", node=shutdown({f"{GKE}/gke-spot": "true"}))
    assert [finding.signal.name for finding in findings_of(case)] == ["gke-spot-shutdown", "gke-spot"]
    reason = grade_and_deadline(case, Selector(RULES, BUILT_IN))[3]
    assert reason == "node node-0 is a spot instance that GKE shuts down (KubeletNotReady)"


def test_the_order_is_by_weight_whatever_else_is_found_of_a_key():
    first, last = taint("ToBeDeletedByClusterAutoscaler"), taint("karpenter.sh/disrupted")
    signs = node_signals(node(ready=False, taints=[last, first, first], unschedulable=True), BUILT_IN)
    assert [sign.signal.name for sign in signs] == [
        "karpenter-disrupted",
        "autoscaler-deleting",
        "node-not-ready",
        "node-cordoned",
    ]


def test_a_notice_outweighs_silence_and_the_earliest_deadline_counts():
    both = Case(
        "",
        pod={"deletion": "2026-01-01T00:03:00Z"},
        node={"ready": "Unknown", "taints": [taint(f"{AWS}/spot-itn"), taint("karpenter.sh/disrupted")]},
    )
    grade, deadline, _, reason = grade_and_deadline(both, Selector(RULES, BUILT_IN))
    assert (grade, deadline) == (Grade.LEAVING, NOW + 180)
    assert reason == (
        "pod is being deleted; node node-0 is a spot instance that AWS takes back; "
        "node node-0 is being removed by Karpenter"
    )


def test_a_deadline_from_the_first_sight_does_not_move_when_the_node_changes():
    selector = Selector(RULES, BUILT_IN)
    going = [taint(f"{AWS}/spot-itn")]
    for seen, version, extra in ((100, 2, []), (150, 3, [taint("x")]), (190, 4, [])):
        snapshot = picture([pod()], [node(version=version, taints=[*going, *extra])])
        [verdict] = selector.select(NOW + seen, snapshot).verdicts
        assert verdict.deadline == NOW + 100 + 120
    calm = picture([pod()], [node(version=5)])
    assert selector.select(NOW + 200, calm).verdicts[0].grade is Grade.USABLE
    again = selector.select(NOW + 300, picture([pod()], [node(version=6, taints=going)])).verdicts[0]
    assert again.deadline == NOW + 300 + 120


def test_a_node_that_was_made_anew_under_its_name_has_its_own_time():
    selector, going = Selector(RULES, BUILT_IN), [taint(f"{AWS}/spot-itn")]
    deadlines = [
        selector.select(NOW + seen, picture([pod()], [node(uid=uid, taints=going)])).verdicts[0].deadline
        for seen, uid in ((0, "u1"), (50, "u2"))
    ]
    assert deadlines == [NOW + 120, NOW + 170]


OWN = {"object": "node", "taint": "example.com/going", "class": "imminent"}


def rows(**rules: Any) -> Table:
    return with_rules(BUILT_IN, {name.replace("_", "-"): rule for name, rule in rules.items()}, where="signals.yaml")


def row(name: str, table: Table) -> Signal:
    return next(signal for signal in table.signals if signal.name == name)


def test_a_signal_of_ones_own_comes_first():
    table = rows(mine={**OWN, "value": "now", "deadline": "taint-time+60", "says": "is being taken by Ops"})
    assert table.signals[0] == Signal(
        name="mine",
        object="node",
        kind="taint",
        key="example.com/going",
        category=SignalClass.IMMINENT,
        says="is being taken by Ops",
        value="now",
        deadline=Deadline("taint-time", 60),
    )
    assert table.signals[1:] == BUILT_IN.signals
    verdict = Selector(RULES, table).select(NOW, picture([pod()], [node(taints=[taint("example.com/going", "now")])]))
    assert (verdict.verdicts[0].grade, verdict.verdicts[0].deadline) == (Grade.LEAVING, NOW + 60)


def test_a_built_in_signal_can_be_changed_in_part():
    changed = row("aws-rebalance", rows(aws_rebalance={"class": "imminent"}))
    was = row("aws-rebalance", BUILT_IN)
    assert changed.category is SignalClass.IMMINENT
    assert as_rule(changed) == {**as_rule(was), "class": "imminent"}
    assert row("aws-spot", rows(aws_spot={"deadline": "none"})).deadline is None


def test_a_built_in_signal_changed_to_another_kind_drops_its_narrowing():
    changed = row("gke-spot-shutdown", rows(gke_spot_shutdown={"taint": "x/y"}))
    assert (changed.kind, changed.key, changed.message, changed.status, changed.only_on) == (
        "taint",
        "x/y",
        "",
        None,
        (),
    )


def test_a_built_in_signal_can_be_left_out():
    assert "node-cordoned" not in {signal.name for signal in rows(node_cordoned=False).signals}


def test_every_built_in_row_is_what_it_says_in_the_words_of_a_user():
    written = {signal.name: as_rule(signal) for signal in BUILT_IN.signals}
    assert with_rules(Table(()), written, where="x").signals == BUILT_IN.signals


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"mine": {**OWN, "clas": "gone"}}, "signal 'mine': 'clas' is not a key of a signal (did you mean 'class'?)"),
        (
            {"mine": {**OWN, "class": "iminent"}},
            "class 'iminent' is not one of gone, imminent, advisory, note (did you mean",
        ),
        ({"mine": {**OWN, "object": "nod"}}, "object 'nod' is not one of pod, node, job (did you mean 'node'?)"),
        ({"mine": {"object": "node", "class": "gone"}}, "is exactly one of taint, condition, label, annotation, field"),
        ({"mine": {**OWN, "label": "x"}}, "it has taint and label"),
        ({"mine": {"object": "pod", "taint": "x", "class": "gone"}}, "a signal of a pod is exactly one of condition"),
        (
            {"mine": {"object": "pod", "field": "phas", "class": "gone"}},
            "field 'phas' is not one of deletionTimestamp, phase",
        ),
        ({"mine": {**OWN, "status": "True"}}, "a taint has no status; it is narrowed down by value or effect"),
        ({"mine": {**OWN, "value": True}}, 'value is text, not True; put it in quotes: "true"'),
        (
            {"mine": {**OWN, "deadline": "condition-time+5"}},
            "deadline 'condition-time+5' is not a deadline of a taint (did you mean",
        ),
        ({"mine": {**OWN, "deadline": "taint-time-5"}}, "deadline 'taint-time-5' is not a deadline of a taint"),
        (
            {"mine": {**OWN, "deadline": "now+2592001"}},
            "deadline 'now+2592001' is too far away; write at most +2592000 (30 days)",
        ),
        (
            {"mine": {**OWN, "deadline": 60}},
            "deadline 60 is not a deadline of a taint; write none, or epoch-value or taint-time or now",
        ),
        ({"mine": {**OWN, "evidence": "silence"}}, "evidence 'silence' is not one of notice, absence"),
        ({"mine": {**OWN, "only-on": "x"}}, "only-on is a table of labels and their values, not 'x'"),
        ({"mine": {**OWN, "only-on": {"x": 1}}}, 'x is text, not 1; put it in quotes: "1"'),
        ({"mine": True}, "signal 'mine' is True; write a table of its keys, or false to leave a built-in one out"),
        ({"aws-spit": False}, "signal 'aws-spit' is not built in and cannot be left out (did you mean 'aws-spot'?)"),
        ({"aws-spit": {"class": "gone"}}, "signal 'aws-spit' (did you mean 'aws-spot'?) has no object; write one of"),
        ({7: OWN}, "signal 7: a signal's name is text; put it in quotes"),
    ],
)
def test_a_bad_rule_is_refused_in_one_line_that_names_file_and_row(rules: dict, said: str):
    with pytest.raises(UsageError) as caught:
        with_rules(BUILT_IN, rules, where="/etc/signals.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("/etc/signals.yaml: signal ")
    assert "\n" not in str(caught.value)


DOCUMENT = (Path(__file__).parents[4] / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_example_in_the_documentation_works(tmp_path: Path):
    example = tmp_path / "signals.yaml"
    example.write_text(DOCUMENT.split("```yaml\n")[1].split("```")[0])
    table = with_rules(BUILT_IN, read_config(example, option="--signals"), where=f"--signals {example}")
    drain = table.signals[0]
    assert (drain.name, drain.value, str(drain.deadline)) == ("ops-drain", "yes", "taint-time+300")
    assert drain.only_on == (("example.com/pool", "gpu"),)
    assert row("aws-rebalance", table).category is SignalClass.IMMINENT
    assert len(table.signals) == len(BUILT_IN.signals)


def test_a_file_of_signals_that_is_none_is_named_by_its_option(tmp_path: Path):
    bad = tmp_path / "signals.yaml"
    bad.write_text("a: [")
    with pytest.raises(UsageError, match=r"--signals .*signals\.yaml: "):
        read_config(bad, option="--signals")


def test_the_table_in_the_documentation_is_the_table():
    lines = {line.split("`")[1]: line for line in DOCUMENT.splitlines() if line.startswith("| `")}
    for signal in BUILT_IN.signals:
        line = lines.get(signal.name, "")
        deadline = "–" if signal.deadline is None else f"`{signal.deadline}`"
        assert f"`{signal.key}`" in line, signal.name
        assert f"| {signal.category.value} |" in line, signal.name
        assert line.rstrip().endswith(f"| {deadline} |"), signal.name
        assert (signal.evidence is Evidence.ABSENCE) is ("silence" in line), signal.name
