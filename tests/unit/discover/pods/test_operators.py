"""Which pods are a job's, how they are reached, and how many processes each of them runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.pods.operators import (
    OPERATORS,
    SLOTS_ANNOTATION,
    HostRules,
    JobView,
    host_name,
    job_view,
    operator_named,
    selector_of,
    slots_of,
)
from discover.pods.views import pod_view
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.publication import parse_hosts_text, render_hosts_text
from tests.support.kube import bodies
from tests.unit.discover.pod_and_node_views import pod

TRAINING = "training.kubeflow.org"


def rules(operator: str = "mpi", **more: Any) -> HostRules:
    return HostRules(operator=OPERATORS[operator], **more)


@pytest.mark.parametrize(
    ("operator", "selector"),
    [
        ("mpi", f"{TRAINING}/job-name=j,{TRAINING}/job-role=worker,{TRAINING}/operator-name=mpi-operator"),
        ("mpi-v1", "group-name=kubeflow.org,mpi-job-name=j,mpi-job-role=worker"),
        ("training-mpi", f"{TRAINING}/job-name=j,{TRAINING}/replica-type=worker"),
        ("et", "group-name=kai.alibabacloud.com,training-job-name=j,training-job-role=worker"),
        ("pytorch", f"{TRAINING}/job-name=j,{TRAINING}/replica-type=worker"),
    ],
)
def test_each_operator_labels_its_workers_in_its_own_way(operator: str, selector: str):
    assert selector_of(OPERATORS[operator], job="j") == selector
    assert selector_of(OPERATORS[operator], job="j", own="mine=1") == "mine=1"


def test_the_labels_are_those_that_the_test_cluster_gives_to_workers():
    labels = bodies.mpi_worker_labels("j")
    assert selector_of(OPERATORS["mpi"], job="j") == ",".join(f"{key}={value}" for key, value in labels.items())


def test_a_statefulset_says_itself_which_pods_are_its_own():
    expressions = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "gone", "operator": "DoesNotExist"},
        {"key": "here", "operator": "Exists"},
        {"key": "zone", "operator": "NotIn", "values": ["x"]},
    ]
    raw = {
        "metadata": {"uid": "u"},
        "spec": {"selector": {"matchLabels": {"app": "w"}, "matchExpressions": expressions}},
    }
    view = job_view(raw, OPERATORS["statefulset"])
    assert selector_of(OPERATORS["statefulset"], job="s", view=view) == "app=w,tier in (a,b),!gone,here,zone notin (x)"


@pytest.mark.parametrize(
    "selector", [None, {}, {"matchExpressions": [{"key": "a", "operator": "Like"}]}, {"matchExpressions": ["x"]}]
)
def test_a_statefulset_that_does_not_say_so_needs_a_selector(selector: Any):
    view = job_view({"metadata": {}, "spec": {"selector": selector}}, OPERATORS["statefulset"])
    with pytest.raises(UsageError, match="give --selector LABEL=VALUE"):
        selector_of(OPERATORS["statefulset"], job="s", view=view)


@pytest.mark.parametrize(
    ("operator", "job", "said"),
    [
        ("custom", "j", "give --selector LABEL=VALUE"),
        ("statefulset", "j", "the StatefulSet cannot be read: "),
        ("mpi", "", "--operator mpi needs the job's name; give --job NAME"),
        ("mpi", "j,x=y", "--job 'j,x=y' is not the name of a Kubernetes object"),
        ("mpi", "j" * 64, "has 64 characters; labels of its pods have at most 63"),
    ],
)
def test_a_job_whose_pods_cannot_be_told_is_refused_in_one_line(operator: str, job: str, said: str):
    with pytest.raises(UsageError) as caught:
        selector_of(OPERATORS[operator], job=job)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_operator_is_told_its_neighbour():
    with pytest.raises(UsageError, match=r"--operator 'pytoch' .* did you mean 'pytorch'\?"):
        operator_named("pytoch")


@pytest.mark.parametrize(
    ("of", "body", "name"),
    [
        (rules(), {}, "w-0.job.default.svc"),
        (rules(), {"hostname": "h"}, "h.job.default.svc"),
        (rules(domain="cluster.local"), {}, "w-0.job.default.svc.cluster.local"),
        (rules("statefulset"), {"hostname": "w-0"}, "w-0.job.default.svc"),
        (rules("training-mpi"), {"subdomain": ""}, "w-0"),
        (rules("mpi-v1"), {"subdomain": ""}, "w-0"),
        (rules("pytorch"), {"subdomain": ""}, "w-0"),
        (rules("et"), {"subdomain": "", "labels": {"training-job-name": "j"}}, "w-0"),
        (rules("custom"), {"subdomain": "", "labels": {"training-job-name": "j"}}, "w-0"),
        (rules("custom"), {"subdomain": ""}, "10.0.0.1"),
        (rules("custom"), {"subdomain": "", "hostNetwork": True, "ip": "192.0.2.1"}, "192.0.2.1"),
        (rules(host_name="{name}.x.{namespace}.example"), {}, "w-0.x.default.example"),
        (rules(host_name="{hostname}.{subdomain}"), {"hostname": "h"}, "h.job"),
        (rules(host_name="{ip}"), {}, "10.0.0.1"),
        (rules(host_name="{node}"), {}, "node-0"),
    ],
)
def test_a_pod_is_reached_by_the_first_name_that_it_has(of: HostRules, body: dict, name: str):
    assert host_name(pod(**body), of) == name


@pytest.mark.parametrize(
    ("of", "body", "said"),
    [
        (rules("custom"), {"subdomain": "", "ip": "fd00::1"}, "IPv6 addresses cannot be used with Horovod"),
        (rules("custom"), {"subdomain": "", "ip": ""}, "the pod has no name that others can reach it by"),
        (rules(), {"subdomain": "-x"}, "label '-x' must be"),
        (rules(), {"hostname": "h" * 64}, "must be 1 to 63 letters"),
        (rules(), {"subdomain": "a b"}, "contains white space"),
        (rules("pytorch"), {"subdomain": "", "name": "-oProxyCommand=x"}, "would be read as an option"),
        (rules(host_name="{subdomain}.{name}"), {"subdomain": ""}, "--host-name asks for {subdomain}"),
    ],
)
def test_rule_24_a_pod_without_a_name_that_horovod_can_use_is_told_what_to_do(of: HostRules, body: dict, said: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are looked at
        host_name(pod(**body), of)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{nam}.svc", "{nam} is not one of name, namespace, hostname, subdomain, ip, node; did you mean 'name'?"),
        ("{name.__class__}", "{name.__class__} is not one of"),
        ("fixed.example", "gives every pod one name; put {name} into it"),
        ("{namespace}", "gives every pod one name"),
        ("{name}:22", "makes names like 'x:22'"),
        ("-{name}", "would be read as an option"),
        ("{name", "gives every pod one name"),
    ],
)
def test_a_bad_template_is_refused_before_there_are_pods(template: str, said: str):
    with pytest.raises(UsageError) as caught:
        rules(host_name=template)
    assert said in str(caught.value)


NVIDIA, AMD = {"nvidia.com/gpu": "8"}, {"amd.com/gpu": "4"}


@pytest.mark.parametrize(
    ("of", "body", "job", "slots"),
    [
        (rules(slots=3), {"annotations": {SLOTS_ANNOTATION: "5"}, "limits": NVIDIA}, 2, 5),
        (rules(slots=3), {"limits": NVIDIA}, 2, 3),
        (rules(), {"limits": NVIDIA}, 2, 2),
        (rules("et"), {"limits": NVIDIA}, 1, 1),
        (rules(), {"limits": {"nvidia.com/gpu": "1"}}, 1, 1),
        (rules(), {}, 1, 1),
        (rules(), {"limits": NVIDIA}, None, 8),
        (rules(), {"limits": AMD}, None, 4),
        (rules(), {"limits": {**AMD, **NVIDIA}}, None, 8),
        (rules(), {"limits": {"nvidia.com/gpu": "0"}}, None, 1),
        (rules(), {"limits": {"cpu": "4"}}, None, 1),
        (rules(), {}, None, 1),
        (rules(resources=("habana.ai/gaudi",)), {"limits": {"habana.ai/gaudi": "2"}}, None, 2),
        (
            rules(resources=("nvidia.com/mig-*",)),
            {"limits": {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-2g.10gb": "1"}},
            None,
            3,
        ),
    ],
)
def test_rule_23_slots_come_from_the_first_source_that_has_them(of: HostRules, body: dict, job: int | None, slots: int):
    assert slots_of(pod(**body), of, JobView(slots_per_worker=job)) == (slots, "")


def test_a_default_of_the_server_does_not_outweigh_gpus_and_the_conflict_is_told():
    count, note = slots_of(pod(limits=NVIDIA), rules(), JobView(slots_per_worker=1))
    assert count == 8
    assert note == "slotsPerWorker is 1, the default; its nvidia.com/gpu count"


@pytest.mark.parametrize(
    ("of", "body", "job", "said"),
    [
        (
            rules(),
            {"annotations": {SLOTS_ANNOTATION: "0"}},
            None,
            f"annotation {SLOTS_ANNOTATION} is '0'; write a whole",
        ),
        (
            rules(),
            {"annotations": {SLOTS_ANNOTATION: "eight"}},
            None,
            "is 'eight'; write a whole number from 1 to 1024",
        ),
        (rules(), {"annotations": {SLOTS_ANNOTATION: ""}}, None, "is ''; write a whole number"),
        (rules(), {"annotations": {SLOTS_ANNOTATION: "٣"}}, None, "write a whole number"),
        (rules(), {}, 0, "slotsPerWorker is '0'"),
        (rules(), {}, 4097, "slotsPerWorker is '4097'"),
        (
            rules(),
            {"limits": {"nvidia.com/gpu": "8k"}},
            None,
            "its limit of nvidia.com/gpu is '8k', which is not a whole",
        ),
        (rules(container="main"), {}, None, "the pod has no container 'main' (--container); it has worker"),
    ],
)
def test_rule_23_slots_that_are_no_number_make_no_host(of: HostRules, body: dict, job: int | None, said: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are looked at
        slots_of(pod(**body), of, JobView(slots_per_worker=job))
    assert said in str(caught.value)


def test_the_limits_of_the_chosen_container_count_and_those_of_init_containers_do_not():
    body = bodies.pod("w-0", initContainers=[{"name": "i", "resources": {"limits": NVIDIA}}])
    body["spec"]["containers"] = [{"name": "side"}, {"name": "main", "resources": {"limits": AMD}}]
    assert slots_of(pod_view(body), rules())[0] == 1
    assert slots_of(pod_view(body), rules(container="main"))[0] == 4


def test_of_a_job_its_uid_and_its_slots_are_kept():
    raw = bodies.mpi_job("j", slots=4)
    raw["metadata"] |= {"uid": "u-j", "annotations": {"a": "b"}}
    view = job_view(raw, OPERATORS["mpi"])
    assert (view.uid, view.slots_per_worker, dict(view.annotations)) == ("u-j", 4, {"a": "b"})
    assert job_view(raw, OPERATORS["pytorch"]).slots_per_worker is None


SUCCEEDED, FAILED = ({"type": kind, "status": "True"} for kind in ("Succeeded", "Failed"))
ENDED = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "finished"),
    [
        ({"completionTime": ENDED, "conditions": [{"type": "Created", "status": "True"}, SUCCEEDED]}, True),
        ({"completionTime": ENDED, "conditions": [FAILED]}, True),
        ({"conditions": [{**FAILED, "reason": "MPIJobEvicted"}]}, False),  # a worker was; the launcher runs on
        ({"completionTime": None, "conditions": [SUCCEEDED]}, False),
        ({"completionTime": ENDED, "conditions": [{"type": "Failed", "status": "False"}]}, False),
        ({"completionTime": ENDED, "conditions": [{"type": "Running", "status": "True"}, "odd"]}, False),
        ({"completionTime": ENDED, "conditions": {"Failed": "True"}}, False),
        ({}, False),
        (None, False),
        ("odd", False),
    ],
)
def test_a_job_has_finished_when_it_says_so_and_when(status: Any, finished: bool):
    assert job_view({**bodies.mpi_job("j"), "status": status}, OPERATORS["mpi"]).finished is finished


@pytest.mark.parametrize("slots", [None, "4", True, 1.5, {}])
def test_slots_of_a_job_that_are_no_whole_number_are_not_said(slots: Any):
    assert job_view({"metadata": {}, "spec": {"slotsPerWorker": slots}}, OPERATORS["et"]).slots_per_worker is None
    assert job_view({"metadata": {}, "spec": None}, OPERATORS["et"]).slots_per_worker is None


def test_what_is_no_job_is_refused():
    with pytest.raises(ValueError, match="this is not an object of et: it has no metadata"):
        job_view({"kind": "Status"}, OPERATORS["et"])


TEXTS = st.text(max_size=12) | st.from_regex(r"[a-z0-9.:\- ]{0,70}", fullmatch=True)


@given(
    st.fixed_dictionaries(
        {
            "name": TEXTS.filter(bool),
            "namespace": TEXTS.filter(bool),
            "subdomain": TEXTS,
            "hostname": TEXTS,
            "ip": TEXTS,
            "annotations": st.dictionaries(st.just(SLOTS_ANNOTATION), TEXTS | st.integers().map(str)),
            "limits": st.dictionaries(
                st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]), TEXTS | st.integers().map(str)
            ),
        }
    ),
    st.sampled_from([rules(), rules("custom"), rules("et"), rules(host_name="{hostname}.{ip}")]),
)
def test_rule_24_any_pod_gives_a_host_that_can_be_written_and_read_back_or_no_host(body: dict, of: HostRules):
    view = pod(**body)
    try:
        host = Host(host_name(view, of), slots_of(view, of)[0])
    except ValueError as problem:
        told = str(problem).splitlines()
        assert len(told) == 1
        return
    assert list(parse_hosts_text(render_hosts_text([host]), where="file")) == [host]
