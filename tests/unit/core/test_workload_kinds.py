"""The table of workload kinds: each row is complete, and is what a server, the manifests and the pages have."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from hvd_elastic_ext.core.workload_kinds import KINDS, NAMED, ROOTS, SUBMITTED, WorkloadKind, at, nested
from hvd_elastic_ext.jobs.rendering.operator_objects import CHANGES
from tests.support.kube.resources import BY_PATH
from tests.support.manifests import documents, pod_templates

DOCS = Path(__file__).parents[3] / "docs"
EVERY = [pytest.param(each, id=each.name or each.operator or each.plural) for each in KINDS]
JOBS = [pytest.param(each, id=each.kind) for each in ROOTS.values()]


def test_a_name_that_users_give_is_of_one_kind() -> None:
    for names in (
        [each.name for each in KINDS],
        [each.operator for each in KINDS],
        [name for each in KINDS for name in (each.manifest, each.older_manifest)],
        [each.kind for each in KINDS if each.manifest],
    ):
        assert [name for name, count in Counter(filter(None, names)).items() if count > 1] == []
    assert all(each.name or each.operator or each.manifest for each in KINDS)


@pytest.mark.parametrize("kind", EVERY)
def test_a_kind_is_what_a_server_calls_it_and_is_scaled_where_the_server_allows_it(kind: WorkloadKind) -> None:
    served = BY_PATH[kind.group, kind.version, kind.plural]
    assert (served.kind, served.api_version, served.custom) == (kind.kind, kind.api_version, not kind.built_in)
    assert (served.scale is not None) == kind.scale
    if served.scale is not None:
        assert served.scale.replicas == kind.replicas_at
    for plural, name in zip(kind.scaled_by_plurals, kind.scaled_by, strict=True):
        assert BY_PATH[kind.group, kind.version, plural].kind == name


@pytest.mark.parametrize("kind", EVERY)
def test_a_row_is_whole(kind: WorkloadKind) -> None:
    assert bool(kind.labels) == any("{job}" in each for each in kind.labels) == bool(kind.job_label)
    assert bool(kind.roles_at) == bool(kind.worker_role)
    assert len(kind.scaled_by) == 2 * bool(kind.workers_at)
    assert not kind.workers_in or kind.workers_in in NAMED
    assert not kind.operator or bool(kind.labels) != kind.selects_pods
    assert not kind.name or bool(kind.replicas_at)
    assert (kind.default_slots is None) or kind.slots_at


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_can_be_submitted_has_a_manifest_with_what_its_row_says(kind: WorkloadKind) -> None:
    assert kind.kind in CHANGES
    assert bool(kind.suspend_at) != bool(kind.not_suspended), "it can be suspended, or says why not"
    for manifest in filter(None, (kind.manifest, kind.older_manifest)):
        assert SUBMITTED[manifest] is kind
        made = {(each["apiVersion"], each["kind"]): each for each in documents(f"{manifest}.yaml")}
        root = made[kind.api_version, kind.kind]
        maker, _ = kind.workers("digits")
        assert isinstance(at(made[maker.api_version, maker.kind], *maker.replicas_at), int)
        assert not kind.slots_at or isinstance(at(root, *kind.slots_at), int)
        roles = {role for each in made.values() for role, _ in pod_templates(each)}
        assert roles == ({"launcher", "worker"} if kind.has_launcher else {"worker"})
        assert {kind.only_role} == {role for role, _ in pod_templates(root)} or kind.roles_at


def test_each_kind_has_a_smallest_number_that_is_valid() -> None:
    assert {name: (kind.fewest, kind.valid) for name, kind in NAMED.items()} == {
        "mpijob": (0, 1),
        "mpijob.v1": (0, 0),
        "pytorchjob": (1, 1),
        "trainingjob": (1, 1),
        "statefulset": (0, 0),
        "deployment": (0, 0),
    }


def test_only_a_launcher_that_sets_flag_and_number_in_one_patch_suspends_its_job() -> None:
    assert [name for name, kind in NAMED.items() if kind.suspends_itself] == ["mpijob"]


def test_pods_of_one_role_or_of_all_are_selected_as_kubernetes_writes_it() -> None:
    mpi, job = NAMED["mpijob"], ROOTS["Job"]
    name, role, own = (f"training.kubeflow.org/{each}" for each in ("job-name", "job-role", "operator-name"))
    assert mpi.selector("j") == f"{name}=j,{own}=mpi-operator"
    assert mpi.selector("j", role="launcher") == f"{name}=j,{role}=launcher,{own}=mpi-operator"
    assert job.selector("j", role="launcher") == job.selector("j") == "job-name=j", "they have one role"
    assert NAMED["statefulset"].selector("j") == ""


def test_the_workers_of_a_job_are_made_by_it_or_by_an_object_beside_it() -> None:
    assert NAMED["mpijob"].workers("j") == (NAMED["mpijob"], "j")
    assert ROOTS["Job"].workers("j") == (NAMED["statefulset"], "j-worker")
    assert ROOTS["Job"].replicas_at == ()


def test_a_path_is_read_and_set() -> None:
    patch = nested(("spec", "roles", "n"), 3)
    assert patch == {"spec": {"roles": {"n": 3}}}
    assert at(patch, "spec", "roles", "n") == 3
    assert at(patch, "spec", "other", "n") is None
    assert at({"spec": [1]}, "spec", "n") is None


def test_the_page_has_the_labels_that_each_operator_gives() -> None:
    page = (DOCS / "kubernetes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| [^|]*\| ([^|]*) \| [^|]* \|$", page, re.MULTILINE))
    for kind in KINDS:
        if not kind.operator or kind.selects_pods:
            continue
        labels, last = [], ""
        for label in re.findall(r"`([^`]+)`", rows[kind.operator]):  # "…" is the group of the label before
            labels.append(label.replace("…", last))
            last = labels[-1].partition("/")[0]
        assert ",".join(labels) == kind.selector("JOB", role="worker")


def test_the_page_has_each_kind_that_is_submitted() -> None:
    page = (DOCS / "submit.md").read_text(encoding="utf-8")
    table = page[page.index("| `--kind`") :].partition("\n\n")[0]
    assert {*re.findall(r"^\| `(\w[\w-]*)` \|", table, re.MULTILINE)} == {*SUBMITTED}
