"""What is rendered is what the manifests say, with a job's own names, sizes and words."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, daemon, main_container, templates
from hvd_elastic_ext.jobs.rendering.render import MANAGED, WORKERS, owned, secret
from hvd_elastic_ext.jobs.spec.job import KINDS, Toleration
from hvd_elastic_ext.launcher.cli import run_options
from tests.support.jobs import CODE, WORKER_IMAGE, everything, example, one, rendered
from tests.support.manifests import Body, documents, of_operator, problems
from tests.support.rights import granted

WITH_DAEMON = [kind for kind in KINDS if kind != "pytorchjob"]


def bare(body: Body) -> Body:
    """An object without the marks that say whose it is."""
    body = copy.deepcopy(body)
    for name in (JOB_LABEL, MANAGED):
        del body["metadata"]["labels"][name]
    body["metadata"].get("annotations", {}).pop(WORKERS, None)
    for name in ("labels", "annotations"):
        if not body["metadata"].get(name, True):
            del body["metadata"][name]
    return body


def pod(kind: str, role: str, **others: Any) -> Body:
    found = {name: each for body in rendered(example(kind, **others)).objects for name, each in templates(body)}
    return found[role]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_the_manifest(kind: str) -> None:
    result = rendered(example(kind))
    others = ("Role", "RoleBinding", "ServiceAccount")
    expected = [body for body in documents(f"{kind}.yaml") if body["kind"] not in others]
    assert [bare(body) for body in result.objects if body["kind"] not in others] == expected
    assert result.notes == ()


@pytest.mark.parametrize("kind", WITH_DAEMON)
def test_a_job_has_the_rights_of_the_manifests_in_one_role_of_its_own(kind: str) -> None:
    objects = rendered(example(kind)).objects
    role, binding = one(objects, "Role"), one(objects, "RoleBinding")
    given = [body for file in ("rbac.yaml", f"{kind}.yaml") for body in documents(file) if body["kind"] == "Role"]
    assert granted(role["rules"]) == granted([rule for body in given for rule in body["rules"]])
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "hvd-discover-digits"
    account = "digits-launcher" if kind == "trainingjob" else "hvd-launcher-digits"
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    made = [body["metadata"]["name"] for body in objects if body["kind"] == "ServiceAccount"]
    assert made == ([] if kind == "trainingjob" else [account])  # that operator makes it


@pytest.mark.parametrize("kind", KINDS)
def test_no_object_of_a_job_has_anothers_name(kind: str) -> None:
    first, second = (
        {(body["kind"], body["metadata"]["name"]) for body in rendered(example(kind, name=name)).objects}
        for name in ("one", "two")
    )
    assert first.isdisjoint(second)
    assert "digits" not in str(rendered(example(kind, name="one", command=("python", "/t.py"))).objects)


FULL: dict[str, Any] = {
    "name": "big",
    "image": "reg/train:1",
    "discover_image": "",
    "command": ("python", "/train.py", "--epochs", "3"),
    "workers": 8,
    "max_workers": 128,
    "gpus": 2,
    "cpu": "4",
    "memory": "16Gi",
    "backoff_limit": 3,
    "restart_policy": "OnFailure",
    "worker_restart_policy": "OnFailure",
    "working_dir": "/code",
    "priority": "high",
    "gang": True,
    "tolerations": (Toleration(), Toleration("spot", "yes", "NoSchedule", "Equal")),
    "pull_secrets": ("registry",),
    "selector": {"pool": "gpu"},
    "launcher_selector": {"pool": "cpu"},
    "env": {"NCCL_DEBUG": "INFO"},
    "labels": {"team": "vision"},
    "annotations": {"example.com/cost": "7"},
    "worker_annotations": {"example.com/worker": "yes"},
    "volumes": {"/data": "images"},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "statefulset"])
def test_an_operator_accepts_a_job_with_all_options(kind: str) -> None:
    assert of_operator(rendered(example(kind, **FULL)).root) == []


def test_an_api_server_accepts_every_object_of_a_job_with_all_options() -> None:
    for body in rendered(example("statefulset", **FULL)).objects:
        assert problems(body) == [], body["metadata"]["name"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_is_last_and_all_objects_are_marked_as_its_own(kind: str) -> None:
    objects = rendered(example(kind, **FULL)).objects
    assert [body["kind"] in ROOTS for body in objects] == [False] * (len(objects) - 1) + [True]
    assert {body["metadata"]["labels"][JOB_LABEL] for body in objects} == {"big"}
    assert objects[-1]["metadata"]["annotations"][WORKERS] == "1:128"
    assert objects[-1]["metadata"]["labels"]["team"] == "vision"


@pytest.mark.parametrize("kind", KINDS)
def test_workers_get_their_devices_places_and_data(kind: str) -> None:
    template = pod(kind, "worker", **FULL)
    spec, container = template["spec"], main_container(template)
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi"},
        "limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"},
    }
    assert (container["image"], container["workingDir"]) == ("reg/train:1", "/code")
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["priorityClassName"] == "high"
    assert spec["tolerations"] == [
        {"operator": "Exists"},
        {"key": "spot", "value": "yes", "effect": "NoSchedule", "operator": "Equal"},
    ]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert template["metadata"]["labels"]["team"] == "vision"
    assert template["metadata"]["annotations"]["example.com/worker"] == "yes"
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
    assert {"name": "data-0", "mountPath": "/data"} in container["volumeMounts"]
    assert {"name": "data-0", "persistentVolumeClaim": {"claimName": "images"}} in spec["volumes"]


@pytest.mark.parametrize("kind", WITH_DAEMON)
def test_the_launcher_is_told_sizes_in_processes_and_the_users_words_come_last(kind: str) -> None:
    template = pod(kind, "launcher", **FULL, run_options=("--checkpoint-dir", "/data/ck"))
    words = main_container(template)["args"]
    assert words[:4] == ["-np", "16", "--min-np=2", "--max-np=256"]
    assert words[-6:] == ["--checkpoint-dir", "/data/ck", *FULL["command"]]
    assert {"--job-restart-policy=OnFailure", "--job-backoff-limit=3"} <= {*words}
    assert template["spec"]["nodeSelector"] == {"pool": "cpu"}
    options, command = run_options.split(words)
    assert command == FULL["command"]
    assert "--state-dir=/var/lib/hvd/big" in options


def as_kubernetes_expands(text: str) -> str:
    """With no variable known: ``$$`` becomes one, and any other reference stays."""
    return re.sub(r"\$(\$)|\$\([^)]*\)", lambda found: found[1] or found[0], text)


@pytest.mark.parametrize("kind", KINDS)
def test_dollar_signs_of_the_user_are_not_kubernetes(kind: str) -> None:
    words = ("sh", "-c", "echo $$ $(HOSTNAME) $HOME $$(PATH) $$$")
    template = pod(kind, "worker" if kind == "pytorchjob" else "launcher", command=words, env={"PASSWORD": "a$$b$(A)"})
    container = main_container(template)
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", container["args"][-1]), "an escaped reference is never expanded"
    assert as_kubernetes_expands(container["args"][-1]) == words[-1]
    value = next(each["value"] for each in container["env"] if each["name"] == "PASSWORD")
    assert as_kubernetes_expands(value) == "a$$b$(A)"


@pytest.mark.parametrize("kind", WITH_DAEMON)
def test_the_daemon_runs_from_the_image_of_training_unless_it_has_its_own(kind: str) -> None:
    own = daemon(pod(kind, "launcher", discover_image="reg/daemon:1"))
    assert own is not None
    assert (own["image"], own.get("command")) == ("reg/daemon:1", None)
    shared = daemon(pod(kind, "launcher", discover_image=""))
    assert shared is not None
    assert (shared["image"], shared["command"]) == (WORKER_IMAGE, ["hvd-discover"])


@pytest.mark.parametrize("kind", WITH_DAEMON)
def test_a_spot_job_sleeps_and_says_that_it_needs_storage(kind: str) -> None:
    job = example(kind, spot=True, max_wait_s=600)
    assert {"--below-min=sleep", "--max-wait-time=600"} <= {
        *main_container(pod(kind, "launcher", spot=True, max_wait_s=600))["args"]
    }
    assert any("--checkpoint-dir" in note for note in rendered(job).notes)
    stored = example(kind, spot=True, run_options=("--checkpoint-dir=s3://b/ck",))
    assert rendered(stored).notes == ()


def test_a_training_job_is_marked_for_alibabas_supervisor_as_arena_marks_it() -> None:
    root = rendered(example("trainingjob", spot=True, max_wait_s=600, gang=True, worker_restart_policy="Always")).root
    marks = root["metadata"]["annotations"]
    assert marks["job-supervisor.kube-ai.io/spot-instance"] == "true"
    assert marks["job-supervisor.kube-ai.io/max-wait-time"] == "600"
    worker = root["spec"]["etReplicaSpecs"]["worker"]
    assert (worker["restartPolicy"], worker["minReplicas"], worker["maxReplicas"]) == ("Always", 1, 8)
    for _, template in templates(root):
        assert template["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io/min-available"] == "2"


@pytest.mark.parametrize(
    ("given", "set_", "noted"), [("Always", "OnFailure", 1), ("ExitCode", "Never", 1), ("Never", "Never", 0)]
)
def test_a_restart_policy_that_an_mpijob_does_not_know_becomes_the_nearest_and_is_told(
    given: str, set_: str, noted: int
) -> None:
    result = rendered(example("mpijob", worker_restart_policy=given))
    assert result.root["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] == set_
    assert len(result.notes) == noted


def test_queues_are_named_as_each_scheduler_documents_it() -> None:
    kueue = rendered(example("mpijob", queue="kueue/user")).root
    assert kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user"
    volcano = rendered(example("mpijob", queue="volcano/batch", min_workers=2)).root
    assert volcano["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": "batch", "minAvailable": 3}  # and the launcher
    torch = rendered(example("pytorchjob", gang=True, min_workers=2)).root
    assert torch["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2}
    plain = one(rendered(example("statefulset", queue="volcano/batch", min_workers=2)).objects, "StatefulSet")
    assert plain["metadata"]["annotations"] == {"scheduling.volcano.sh/group-min-member": "2"}
    assert plain["spec"]["template"]["spec"]["schedulerName"] == "volcano"
    assert plain["spec"]["template"]["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "batch"}


def test_kueue_admits_workers_of_a_statefulset_and_their_launcher_sleeps_without_them() -> None:
    result = rendered(example("statefulset", queue="kueue/user", gang=True))
    workers, launcher = one(result.objects, "StatefulSet"), result.root
    assert workers["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user"
    assert "annotations" not in workers["metadata"]  # nothing for Volcano
    assert "kueue.x-k8s.io/queue-name" not in launcher["metadata"]["labels"]
    ((_, template),) = templates(launcher)
    assert "--below-min=sleep" in main_container(template)["args"]
    assert "schedulerName" not in template["spec"]
    assert any("--gang: Kueue" in note for note in result.notes)
    assert any("sleeps while they are taken back" in note for note in result.notes)


@pytest.mark.parametrize("scheduler", ["kueue", "volcano"])
@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_with_every_option_is_what_the_schemas_of_the_api_and_of_operators_have(
    kind: str, code: str, scheduler: str
) -> None:
    if (kind, code) == ("pytorchjob", "sent"):
        return  # refused
    result = everything(kind, code, scheduler)
    assert [problems(body) for body in result.objects] == [[]] * len(result.objects)


@pytest.mark.parametrize(
    ("kind", "others", "why"),
    [
        ("trainingjob", {"queue": "kueue/q"}, "know TrainingJobs"),
        ("pytorchjob", {"run_options": ("--settle", "3")}, "have no meaning there"),
    ],
)
def test_what_a_kind_cannot_do_is_refused_with_the_reason(kind: str, others: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        rendered(example(kind, **others))


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (("python", "/t.py", "-x"), ["/t.py", "-x"]),
        (("torchrun", "--tee", "3", "/t.py"), ["--tee", "3", "/t.py"]),
        (("/t.py",), ["/t.py"]),
        (("sh", "-c", "a b"), ["--no-python", "sh", "-c", "a b"]),
    ],
)
def test_torchrun_starts_scripts_and_programs(command: tuple[str, ...], args: list[str]) -> None:
    assert main_container(pod("pytorchjob", "worker", command=command))["args"] == args


def test_only_a_statefulset_needs_a_key_and_a_secret_of_ones_own_takes_its_place() -> None:
    assert {kind: rendered(example(kind)).key for kind in KINDS} == {
        kind: "digits-ssh" if kind == "statefulset" else "" for kind in KINDS
    }
    result = rendered(example("statefulset", ssh_secret="mine"))
    assert result.key == ""
    for body in result.objects:
        for _, template in templates(body):
            (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == "ssh")
            assert volume["secret"]["secretName"] == "mine"
    assert secret("digits-ssh", "digits", key="aQ==", public="Yg==")["data"] == {"id": "aQ==", "id.pub": "Yg=="}


def test_what_belongs_to_a_job_goes_with_it() -> None:
    root = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "uid": "u"}}
    (reference,) = owned(root)
    assert (reference["kind"], reference["name"], reference["uid"]) == ("Job", "j", "u")
