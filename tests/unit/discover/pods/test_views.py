"""API objects become views, whatever is missing in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.pods.views import MAX_TEXT, Container, Key, Taint, node_view, older, pod_view, unix_seconds
from tests.support.kube import bodies

BARE = {"metadata": {"name": "w-0", "namespace": "ns"}}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_pod_with_hardly_any_fields_is_an_empty_view():
    view = pod_view(BARE)
    assert (view.key, view.uid, view.phase, view.node, view.deleting) == (Key("ns", "w-0"), "", "", "", None)
    assert (view.containers, view.conditions, dict(view.labels), view.grace) == ((), (), {}, 30.0)


def test_a_pod_keeps_what_hosts_and_signals_are_read_from():
    body = bodies.pod(
        "w-0",
        labels={"job": "j"},
        annotations={"a": "b"},
        limits={"nvidia.com/gpu": "8"},
        owner=("MPIJob", "j", "u-j"),
        hostname="h",
        terminationGracePeriodSeconds=600,
        hostNetwork=True,
    )
    view = pod_view(body)
    assert (view.node, view.phase, view.ip, view.host_ip) == ("node-0", "Running", "10.0.0.1", "192.0.2.1")
    assert (view.hostname, view.subdomain, view.host_network) == ("h", "job", True)
    assert (dict(view.labels), dict(view.annotations), view.owner) == ({"job": "j"}, {"a": "b"}, "u-j")
    assert view.containers == (Container("worker", {"nvidia.com/gpu": "8"}, life=bodies.SINCE),)
    assert (view.grace, view.started) == (600.0, unix_seconds(bodies.SINCE))
    ready = view.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.since) == ("True", unix_seconds(bodies.SINCE))


def test_a_node_keeps_its_taints_with_the_times_that_the_server_tells():
    added = bodies.taint("a", "v", "NoExecute", added="2026-01-01T00:00:10Z")
    view = node_view(bodies.node("n", taints=[added, bodies.taint("b")], unschedulable=True))
    assert view.key == Key("", "n")
    assert view.taints == (Taint("a", "v", "NoExecute", unix_seconds(bodies.SINCE) + 10), Taint("b", "", "NoSchedule"))
    assert view.unschedulable


def test_an_owner_that_is_not_the_controller_is_not_the_owner():
    body = bodies.pod("w-0")
    body["metadata"]["ownerReferences"] = [{"uid": "other"}, {"uid": "job", "controller": True}]
    assert pod_view(body).owner == "job"


def test_of_several_addresses_the_one_that_horovod_can_use_is_kept():
    body = bodies.pod("w-0", ip="fd00::1")
    assert pod_view(body).ip == "fd00::1"
    body["status"]["podIPs"] = [{"ip": "fd00::1"}, {"ip": "10.0.0.9"}]
    assert pod_view(body).ip == "10.0.0.9"


@pytest.mark.parametrize(
    ("policy", "code", "phase", "finished"),
    [
        ("Always", 0, "Running", None),
        ("OnFailure", 0, "Running", 0),
        ("OnFailure", 137, "Running", None),
        ("Never", 137, "Running", 137),
        ("Always", 137, "Failed", 137),
        (None, 0, "Running", None),
    ],
)
def test_a_container_has_ended_when_it_is_not_started_again(policy, code, phase, finished):
    more = {"restartPolicy": policy} if policy else {}
    body = bodies.pod("w-0", phase=phase, **more)
    body["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code}}
    assert pod_view(body).containers[0].finished == finished


@pytest.mark.parametrize(
    ("status", "life"),
    [
        ({"containerID": "containerd://" + "0123456789" * 6, "restartCount": 3}, "01234567890123456789"),
        ({"containerID": "docker://abc", "state": {"terminated": {"exitCode": 137}}}, "abc"),
        ({"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 3}, "2026-01-01T00:00:00Z"),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}, ""),
        ({"containerID": 7, "state": {"running": {"startedAt": None}}}, ""),
        ({}, ""),
    ],
)
def test_the_life_of_a_container_is_its_id_or_else_the_time_of_its_start(status, life):
    body = bodies.pod("w-0")
    other = {"name": "sidecar", "containerID": "containerd://other", "restartCount": 9}
    body["spec"]["containers"].append({"name": "sidecar"})
    body["status"]["containerStatuses"] = [other, {"name": "worker", **status}]  # in no particular order
    body["status"]["initContainerStatuses"] = [{"name": "worker", "containerID": "containerd://init"}]
    assert [(each.name, each.life) for each in pod_view(body).containers] == [("worker", life), ("sidecar", "other")]


def test_limits_that_are_numbers_are_read_like_text():
    body = bodies.pod("w-0")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8, "cpu": 1.5, "odd": True}}
    assert dict(pod_view(body).containers[0].limits) == {"nvidia.com/gpu": "8", "cpu": "1.5"}


def test_long_annotations_are_left_out_and_long_messages_cut():
    body = bodies.pod("w-0", annotations={"kept": "x" * MAX_TEXT, "huge": "x" * (MAX_TEXT + 1)})
    body["status"]["conditions"][0]["message"] = "y" * 5000
    view = pod_view(body)
    assert list(view.annotations) == ["kept"]
    assert len(view.conditions[0].message) == MAX_TEXT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-01T00:00:00Z", 1_767_225_600.0),
        ("2026-01-01T00:00:00.5Z", 1_767_225_600.5),
        ("2026-01-01T00:00:00.123456789Z", 1_767_225_600.123456789),
        ("2026-01-01t01:30:00+01:30", 1_767_225_600.0),
        ("2016-12-31T23:59:60Z", 1_483_228_800.0),
        ("2026-01-01", None),
        ("2026-13-01T00:00:00Z", None),
        ("2026-01-01T00:00:00", None),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139.0),
        ("", None),
        (None, None),
        (17, None),
    ],
)
def test_times_are_read_in_every_form_that_rfc_3339_has(text, seconds):
    assert unix_seconds(text) == (seconds if seconds is None else pytest.approx(seconds, abs=1e-6))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (None, "a pod is a JSON object, not NoneType"),
        ([], "a pod is a JSON object, not list"),
        ({"kind": "Status", "metadata": {"name": "x"}}, "this is a 'Status', not a Pod"),
        ({"kind": "Node", "metadata": {"name": "x", "namespace": "ns"}}, "this is a 'Node', not a Pod"),
        ({}, "a pod without metadata.name"),
        ({"metadata": {"name": 7}}, "a pod without metadata.name"),
        ({"metadata": {"name": "x"}}, "pod 'x' has no metadata.namespace"),
    ],
)
def test_what_is_no_pod_is_refused_in_one_line(raw, said):
    with pytest.raises(ValueError, match=said) as caught:
        pod_view(raw)
    assert "\n" not in str(caught.value)


def test_a_deletion_whose_time_cannot_be_read_does_not_pass_for_none():
    body = {"metadata": {**BARE["metadata"], "deletionTimestamp": "soon"}}
    with pytest.raises(ValueError, match=r"pod ns/w-0: metadata\.deletionTimestamp 'soon'"):
        pod_view(body)


@given(ANYTHING, st.sampled_from(["spec", "status", "metadata.labels", "metadata.ownerReferences"]), ANYTHING)
def test_whatever_stands_in_an_object_it_is_a_view_or_refused(junk, where, more):
    body = json.loads(json.dumps(bodies.pod("w-0")))
    head, _, tail = where.partition(".")
    if tail:
        body[head][tail] = junk
    else:
        body[head] = junk
        if isinstance(junk, dict):
            junk.update({"conditions": more, "containers": more, "taints": more, "containerStatuses": more})
    for view in (pod_view, node_view):
        view(body)


@pytest.mark.parametrize(
    ("version", "than", "is_older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("99999999999999999999", "100000000000000000000", True),
        *((odd, "10", False) for odd in ("abc", "007", "٣")),
        *(("10", odd, False) for odd in ("abc", "007", "٣")),
    ],
)
def test_versions_compare_as_numbers_of_any_length_and_others_not_at_all(version, than, is_older):
    assert older(version, than) is is_older
