"""What is true of each pod, told with a reason, and the same whatever way it came to be known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.pods.operators import CONTAINER_ANNOTATION, OPERATORS, SLOTS_ANNOTATION, HostRules, JobView
from discover.pods.views import NodeView, PodView, pod_view
from discover.verdicts.signal_config import with_rules
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import UNKNOWN_NODE_GRACE, Grade, Selection, Selector, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Publication, from_json, to_json
from tests.support.kube import bodies
from tests.support.kube.bodies import condition, taint
from tests.unit.discover.pod_and_node_views import NOW, changed, node, picture, pod

GOING = taint("ToBeDeletedByClusterAutoscaler", f"{NOW:.0f}")


def selector(operator: str = "mpi", **more: Any) -> Selector:
    return Selector(HostRules(operator=OPERATORS[operator], **more), BUILT_IN)


def judged(a_pod: PodView, a_node: NodeView | None = None, *, job: JobView | None = None, **rules: Any) -> Verdict:
    snapshot = picture([a_pod], [a_node or node()])
    [verdict] = selector(**rules).select(NOW, snapshot, job=job).verdicts
    return verdict


def grades(selection: Selection) -> dict[str, Grade]:
    return {verdict.pod.key.name: verdict.grade for verdict in selection.verdicts}


def ready(status: str, *, reason: str = "", message: str = "", containers: str = "True") -> dict[str, Any]:
    said = {**condition("Ready", status, reason=reason), "message": message}
    return {"conditions": [condition("ContainersReady", containers), said]}


def test_a_running_and_ready_pod_is_a_host_with_its_name_slots_uid_and_node():
    verdict = judged(pod(limits={"nvidia.com/gpu": "4"}))
    assert verdict.grade is Grade.USABLE
    assert verdict.host == Host("w-0.job.default.svc", 4, "uid-w-0", "node-0", bodies.SINCE)
    assert (verdict.reason, verdict.advisory, verdict.deadline) == ("ready", "", None)


def with_containers(*, annotations: dict[str, str] | None = None, **lives: str) -> PodView:
    body = bodies.pod("w-0", annotations=annotations or {})
    body["spec"]["containers"] = [{"name": name} for name in lives]
    body["status"]["containerStatuses"] = [
        {"name": name, "containerID": f"containerd://{life}", "restartCount": 1}
        for name, life in reversed(lives.items())
    ]
    return pod_view(body)


@pytest.mark.parametrize(
    ("annotations", "rules", "life"),
    [
        ({}, {}, "w1"),
        ({CONTAINER_ANNOTATION: "sidecar"}, {}, "s1"),
        ({CONTAINER_ANNOTATION: "sidecar"}, {"container": "worker"}, "w1"),
        ({}, {"container": "other", "slots": 1}, ""),
    ],
)
def test_the_life_of_a_host_is_that_of_the_container_in_which_processes_run(
    annotations: dict[str, str], rules: dict[str, Any], life: str
):
    verdict = judged(with_containers(annotations=annotations, worker="w1", sidecar="s1"), **rules)
    assert verdict.host is not None
    assert verdict.host.life == life


def test_a_sidecar_that_is_started_again_changes_nothing_and_the_workers_container_does():
    before, sidecar, worker = (
        judged(with_containers(worker=one, sidecar=other)).host for one, other in (("1", "1"), ("1", "2"), ("2", "2"))
    )
    assert before == sidecar
    assert before is not None
    assert worker is not None
    assert not before.same_life(worker)


@pytest.mark.parametrize(
    ("a_pod", "said"),
    [
        (pod(phase="Pending", node=""), "pod waits for a node"),
        (
            pod(
                phase="Pending",
                node="",
                status={"conditions": [{**condition("PodScheduled", False), "message": "0/3 nodes\nfit"}]},
            ),
            "pod waits for a node: 0/3 nodes fit",
        ),
        (pod(phase="Pending"), "pod is being started"),
        (pod(phase=""), "pod is being started"),
        (pod(phase="Succeeded"), "pod has ended, with exit code 0"),
        (pod(status={"conditions": []}), "pod is not ready yet"),
        (
            pod(status=ready("False", reason="ContainersNotReady", message="unready: [worker]", containers="False")),
            "pod is not ready: unready: [worker]",
        ),
        (pod(status=ready("False", reason="ReadinessGatesNotReady")), "pod is not ready: ReadinessGatesNotReady"),
        (
            pod(annotations={SLOTS_ANNOTATION: "0"}),
            f"annotation {SLOTS_ANNOTATION} is '0'; write a whole number from 1",
        ),
        (
            pod(subdomain="", ip="fd00::1"),
            "IPv6 addresses cannot be used with Horovod, give the host a name; give the pods",
        ),
        (pod(subdomain="", ip="fd00::1"), "a headless Service (spec.subdomain) or use --host-name TEMPLATE"),
    ],
)
def test_a_pod_that_is_no_host_says_why_in_one_line(a_pod: PodView, said: str):
    verdict = judged(a_pod)
    assert (verdict.grade, verdict.host) == (Grade.UNFIT, None)
    assert said in verdict.reason
    assert "\n" not in verdict.reason


def test_a_failed_pod_says_how_it_ended_and_what_has_to_be_done():
    ended = {"containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 137}}}]}
    failed = pod(phase="Failed", status=ended)
    assert judged(failed).reason == (
        "pod has failed (worker: exit code 137); MPI Operator does not make a new pod of this name until this one is "
        "deleted; --reap-failed deletes it"
    )
    assert judged(failed, operator="pytorch").reason == "pod has failed (worker: exit code 137)"
    evicted = judged(pod(phase="Failed", status={"reason": "Evicted"}), operator="pytorch")
    assert evicted.reason == "pod was evicted or shut down with its node"


def test_what_a_condition_and_a_taint_both_say_is_told_once_and_with_its_detail():
    unknown = {**condition("Ready", "Unknown", reason="NodeStatusUnknown"), "message": "Kubelet stopped posting"}
    lost = replace(node(taints=[taint("node.kubernetes.io/unreachable")]), conditions=node_conditions(unknown))
    assert judged(pod(), lost).reason == "node node-0 sends no status (NodeStatusUnknown)"


def test_pods_of_another_job_are_not_this_ones():
    job = JobView(uid="u-job")
    mine, other = pod(owner=("MPIJob", "j", "u-job")), pod(owner=("MPIJob", "j", "u-earlier"))
    assert judged(mine, job=job).grade is Grade.USABLE
    for stranger in (other, pod()):
        assert judged(stranger, job=job).grade is Grade.UNFIT
        assert "not this job's" in judged(stranger, job=job).reason
        assert judged(stranger).grade is Grade.USABLE
    evicted = pod(phase="Failed", status={"reason": "Evicted"}, owner=("MPIJob", "j", "u-earlier"))
    assert judged(evicted, job=job).grade is Grade.UNFIT


def test_a_deletion_is_published_with_its_own_time_as_the_deadline():
    verdict = judged(pod(deletion="2026-01-01T00:00:30Z"))
    assert (verdict.grade, verdict.deadline, verdict.reason) == (Grade.LEAVING, NOW + 30, "pod is being deleted")
    assert verdict.host is not None


def test_a_pod_that_is_deleted_before_it_has_run_is_no_departure():
    assert judged(pod(phase="Pending", deletion="2026-01-01T00:00:30Z")).grade is Grade.UNFIT


def test_a_pod_that_leaves_is_published_even_if_it_is_not_ready_any_more():
    verdict = judged(pod(deletion="2026-01-01T00:00:30Z", status=ready("False", reason="ContainersNotReady")))
    assert (verdict.grade, verdict.host and verdict.host.name) == (Grade.LEAVING, "w-0.job.default.svc")


def test_rule_19_a_graceful_shutdown_is_seen_on_the_node_while_the_pod_is_still_ready():
    message = "node is shutting down"
    said = {**condition("Ready", False, reason="KubeletNotReady"), "message": f"[container runtime ok, {message}]"}
    calm = node()
    going = replace(node(version=2), conditions=node_conditions(said))
    look = selector()
    before = look.select(NOW, picture([pod()], [calm]))
    after = look.select(NOW, picture([pod()], [going]))
    assert (grades(before), grades(after)) == ({"w-0": Grade.USABLE}, {"w-0": Grade.LEAVING})
    assert after.verdicts[0].reason == "node node-0 is shutting down (KubeletNotReady)"
    dying = pod(version=2, phase="Failed", status={"reason": "Terminated"})
    last = look.select(NOW, picture([dying], [going]))
    assert grades(last) == {"w-0": Grade.GONE}
    assert last.verdicts[0].host is not None


def node_conditions(said: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        each for each in node(ready=False, conditions=[said]).conditions if each.message or each.type != "Ready"
    )


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_pod_the_node_controller_marks_unready_is_absent_before_its_node_is(status: str):
    verdict = judged(pod(status=ready(status)))
    assert (verdict.grade, verdict.reason) == (Grade.ABSENT, "node node-0 sends no status")
    assert verdict.host is not None


def test_an_unready_pod_on_a_silent_node_is_absent_and_not_merely_unready():
    verdict = judged(pod(ready=False), node(ready="Unknown"))
    assert (verdict.grade, verdict.reason) == (Grade.ABSENT, "node node-0 sends no status")


def test_a_pod_of_which_the_server_does_not_know_the_phase_is_absent():
    assert judged(pod(phase="Unknown")).grade is Grade.ABSENT


def test_a_warning_is_told_with_a_host_that_stays_usable():
    verdict = judged(pod(), node(unschedulable=True, taints=[taint("node.kubernetes.io/unschedulable")]))
    assert (verdict.grade, verdict.advisory) == (Grade.USABLE, "node node-0 is cordoned")
    due = node(labels={"cloud.google.com/scheduled-maintenance-time": f"{NOW + 3600:.0f}"})
    assert judged(pod(), due).advisory == "node node-0 is due for maintenance by GKE, 2026-01-01 01:00 UTC"


def test_properties_and_conflicts_are_told_with_the_host():
    spot = node(labels={"karpenter.sh/capacity-type": "spot"})
    verdict = judged(pod(limits={"nvidia.com/gpu": "8"}), spot, job=JobView(slots_per_worker=1))
    assert verdict.reason.startswith("ready; spot node; slotsPerWorker is 1, ")


def test_rule_23_slots_that_change_are_followed():
    look = selector()
    for version, (said, slots) in enumerate([("2", 2), ("4", 4), ("1", 1)], start=1):
        seen = look.select(NOW, picture([pod(version=version, annotations={SLOTS_ANNOTATION: said})], [node()]))
        host = seen.verdicts[0].host
        assert host is not None
        assert host.slots == slots


def test_the_price_of_a_pod_is_published_as_it_is_annotated():
    (host,) = [judged(pod(annotations={"hvd-elastic-ext/price": "0.9"})).host]
    assert host is not None
    (told,) = from_json(to_json(Publication("s", 1, HostSet((host,)), ())), where="here").hosts
    assert told.price == "0.9"


def test_slots_of_the_job_count_once_it_may_be_read_and_follow_it():
    look, snapshot = selector(), picture([pod()], [node()])
    seen = [look.select(NOW, snapshot, job=job).verdicts[0].host for job in (None, JobView(slots_per_worker=3), None)]
    assert [host.slots for host in seen if host is not None] == [1, 3, 1]


def test_nodes_that_may_not_be_read_are_left_out_of_account():
    selection = selector().select(NOW, picture([pod()]))
    assert (grades(selection), selection.missing, selection.again_at) == ({"w-0": Grade.USABLE}, (), None)


def test_an_unknown_node_is_waited_for_then_read_and_gone_only_after_a_404():
    look, snapshot = selector(), picture([pod()], [])
    first = look.select(NOW, snapshot)
    assert (grades(first), first.missing, first.again_at) == ({"w-0": Grade.USABLE}, (), NOW + UNKNOWN_NODE_GRACE)
    still = look.select(NOW + UNKNOWN_NODE_GRACE - 0.1, snapshot, node_exists={"node-0": False})
    assert grades(still) == {"w-0": Grade.USABLE}
    for answers in ({}, {"node-0": True}):
        asked = look.select(NOW + UNKNOWN_NODE_GRACE, snapshot, node_exists=answers)
        assert (grades(asked), asked.missing, asked.again_at) == ({"w-0": Grade.USABLE}, ("node-0",), None)
    gone = look.select(NOW + UNKNOWN_NODE_GRACE, snapshot, node_exists={"node-0": False})
    assert (grades(gone), gone.verdicts[0].reason) == ({"w-0": Grade.ABSENT}, "node node-0 does not exist any more")
    back = look.select(NOW + UNKNOWN_NODE_GRACE, picture([pod()], [node()]), node_exists={"node-0": False})
    assert (grades(back), back.missing) == ({"w-0": Grade.USABLE}, ())
    assert look.select(NOW + 50, snapshot).again_at == NOW + 50 + UNKNOWN_NODE_GRACE


def test_a_node_that_was_leaving_and_is_deleted_does_not_come_back_meanwhile():
    look, there = selector(), picture([pod()], [node(taints=[GOING])])
    seen = [look.select(NOW, there), look.select(NOW + 1, picture([pod()], []))]
    assert [grades(each)["w-0"] for each in seen] == [Grade.LEAVING, Grade.LEAVING]
    last = look.select(NOW + 11, picture([pod()], []), node_exists={"node-0": False})
    assert grades(last) == {"w-0": Grade.ABSENT}


def test_nobody_asks_for_the_node_of_a_pod_that_has_ended():
    ended = picture([pod(phase="Failed"), pod("w-1", phase="Pending", node="")], [])
    assert selector().select(NOW, ended).again_at is None


def test_a_clock_that_is_set_back_does_not_make_a_node_wait_for_longer():
    look, snapshot = selector(), picture([pod()], [])
    look.select(NOW, snapshot)
    assert look.select(NOW - 3600, snapshot).again_at == NOW - 3600 + UNKNOWN_NODE_GRACE


def test_of_pods_in_the_network_of_one_node_only_the_first_has_the_port():
    shared: dict[str, Any] = {"hostNetwork": True, "subdomain": ""}
    old = pod("w-1", **shared, status={"startTime": "2025-12-31T00:00:00Z"})
    new = pod("w-0", **shared)
    elsewhere = pod("w-2", **shared, status={"hostIP": "192.0.2.2"})
    plain = pod("w-3")
    selection = selector().select(NOW, picture([new, old, elsewhere, plain], [node()]))
    assert grades(selection) == {"w-0": Grade.UNFIT, "w-1": Grade.USABLE, "w-2": Grade.USABLE, "w-3": Grade.USABLE}
    assert "shares the network of node node-0 with pod w-1" in selection.verdicts[0].reason
    assert "podAntiAffinity" in selection.verdicts[0].reason
    going = replace(old, deleting=NOW + 30)
    one = selector()
    for there, grade in (
        ([new, plain], Grade.USABLE),
        ([new, going, plain], Grade.UNFIT),
        ([new, going, pod("w-3", version=2)], Grade.UNFIT),
        ([new, plain], Grade.USABLE),
    ):
        assert grades(one.select(NOW, picture(there, [node()])))["w-0"] is grade


def test_only_what_changed_is_judged_again(monkeypatch: pytest.MonkeyPatch):
    calls: Counter[str] = Counter()

    def counting(a_pod: PodView, table: Any) -> tuple[()]:
        calls[a_pod.key.name] += 1
        return ()

    monkeypatch.setattr("discover.verdicts.verdicts.pod_signals", counting)
    pods = [pod(f"w-{number}", node=f"node-{number // 4}") for number in range(12)]
    snapshot = picture(pods, [node(f"node-{number}") for number in range(3)])
    look = selector()
    looks = [
        ("everything is new", snapshot, 12),
        ("nothing has changed", snapshot, 0),
        ("a list of the same", picture(pods, (snapshot.nodes or {}).values()), 0),
        ("a pod has changed", changed(snapshot, pod("w-5", node="node-1", version=2, phase="Pending")), 1),
        ("a node has a new version only", changed(snapshot, node("node-2", version=2)), 1),
        ("a node is going", changed(snapshot, node("node-2", version=3, taints=[GOING])), 4),
    ]
    for what, picture_now, count in looks:
        calls.clear()
        look.select(NOW, picture_now)
        assert calls.total() == count, what


PODS, NODES = ["w-0", "w-1", "w-2"], ["node-0", "node-1"]
pod_states = st.fixed_dictionaries(
    {
        "uid": st.sampled_from(["u-1", "u-1", "u-2"]),
        "node": st.sampled_from([*NODES, "node-9"]),
        "phase": st.sampled_from(["Pending", "Running", "Running", "Running", "Failed", "Unknown"]),
        "ready": st.booleans(),
        "deletion": st.sampled_from(["", "", "2026-01-01T00:00:30Z"]),
        "annotations": st.sampled_from([{}, {SLOTS_ANNOTATION: "2"}, {SLOTS_ANNOTATION: "0"}]),
        "hostNetwork": st.sampled_from([False, False, True]),
    }
)
node_states = st.fixed_dictionaries(
    {
        "ready": st.sampled_from([True, True, False, "Unknown"]),
        "taints": st.sampled_from([[], [], [GOING]]),
        "unschedulable": st.sampled_from([False, False, True]),
    }
)
steps = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(PODS), st.one_of(pod_states, st.none())),
    st.tuples(st.just("node"), st.sampled_from(NODES), st.one_of(node_states, st.none())),
    st.tuples(st.just("job"), st.sampled_from([None, 1, 3]), st.none()),
    st.tuples(st.just("list"), st.none(), st.none()),
    st.tuples(st.just("hidden"), st.booleans(), st.none()),
)


@given(st.lists(steps, max_size=25))
def test_who_has_looked_before_judges_as_who_looks_for_the_first_time(history: list[tuple[str, Any, Any]]):
    """A verdict that is kept is the one that would be made now."""
    one, there, job, hidden = selector(), picture([], []), None, False
    for version, (what, name, state) in enumerate(history, start=2):
        match what:
            case "pod" if state is None:
                there = changed(there, gone=[pod(name)])
            case "pod":
                there = changed(there, pod(name, version=version, **state))
            case "node" if state is None:
                there = changed(there, gone=[node(name)])
            case "node":
                there = changed(there, node(name, version=version, **state))
            case "job":
                job = None if name is None else JobView(slots_per_worker=name)
            case "list":
                there = picture([replace(each) for each in there.pods.values()], (there.nodes or {}).values())
            case _:
                hidden = name
        snapshot = picture(there.pods.values(), None if hidden else (there.nodes or {}).values())
        kept, anew = (each.select(NOW + version, snapshot, job=job) for each in (one, selector()))
        assert [each.pod.key for each in kept.verdicts] == sorted(there.pods)
        # Who looks for the first time does not know what a node said before it was missing.
        missing = set() if hidden else {"node-9", *NODES} - set(there.nodes or {})
        assert [timeless(each) for each in kept.verdicts if each.pod.node not in missing] == [
            timeless(each) for each in anew.verdicts if each.pod.node not in missing
        ]


def timeless(verdict: Verdict) -> tuple[Any, ...]:
    """The verdict without what depends on when a signal was first seen."""
    return (verdict.pod, verdict.grade, verdict.reason, verdict.host, verdict.advisory)


@pytest.mark.parametrize("what", ["pod", "node", "job"])
def test_after_an_exception_the_next_selection_judges_every_pod(monkeypatch, what):
    """A pod that is deleted meanwhile must not stay a host because another one could not be judged."""
    one, labels = selector(), {"job": JobView(labels={"l": "1"})}
    there = picture([pod("a"), pod("b")], [node()])
    assert set(grades(one.select(NOW, there))) == {"a", "b"}
    gone = picture([pod("b", version=9, annotations={"x": "y"})], [node(version=9, unschedulable=True)])

    def fails(*_: Any) -> Any:
        raise OverflowError("too far away")

    with monkeypatch.context() as broken:
        broken.setattr(f"discover.verdicts.verdicts.{what}_signals", fails)
        for _ in range(2):  # it goes on to be seen for as long as it is there
            with pytest.raises(OverflowError):
                one.select(NOW, gone, job=labels["job"])
    after = one.select(NOW, gone, job=labels["job"])
    assert after == selector().select(NOW, gone, job=labels["job"])
    assert (list(grades(after)), after.verdicts[0].advisory != "") == (["b"], True)


def test_a_failed_look_forgets_nothing_that_no_event_repeats(monkeypatch):
    """Since when a notice is there, and what stood on a node that is gone since."""
    spot = taint("aws-node-termination-handler/spot-itn")
    pods = [pod("a", node="n-0"), pod("b", node="n-1"), pod("c", node="n-2")]
    left = node("n-0", taints=[spot])
    one = selector()
    before = one.select(NOW, picture(pods, [left, node("n-1", taints=[GOING]), node("n-2")]))
    assert grades(before) == {"a": Grade.LEAVING, "b": Grade.LEAVING, "c": Grade.USABLE}
    later = picture([pods[0], pods[1], pod("d", node="n-3")], [left, node("n-3")])

    def fails(*_: Any) -> Any:
        raise OverflowError("too far away")

    with monkeypatch.context() as broken:
        broken.setattr("discover.verdicts.verdicts.pod_signals", fails)
        with pytest.raises(OverflowError):
            one.select(NOW + 30.0, later)
    after = one.select(NOW + 60.0, later)
    assert grades(after) == {"a": Grade.LEAVING, "b": Grade.LEAVING, "d": Grade.USABLE}
    assert after.verdicts[0].deadline == before.verdicts[0].deadline
    assert after.missing == ("n-1",)
    ended = one.select(NOW + 70.0, picture([pod("d", node="n-3")], [node("n-3")]))
    assert (ended.missing, ended.again_at) == ((), None)


def test_a_time_that_no_calendar_has_is_told_all_the_same():
    far = taint("DeletionCandidateOfClusterAutoscaler", "1", "PreferNoSchedule")
    rules = {"far": {"object": "node", "taint": far["key"], "class": "advisory", "deadline": "now+2592000"}}
    one = Selector(HostRules(operator=OPERATORS["mpi"]), with_rules(BUILT_IN, rules, where="f"))
    [verdict] = one.select(1e15, picture([pod()], [node(taints=[far])])).verdicts
    assert verdict.advisory.endswith(", 1000000002592000 s after 1970")
