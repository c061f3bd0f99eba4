"""Old and foreign manifests become ones that today's operators accept; nothing vanishes without a word."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cli.convert import convert, converted, flattened, known_options
from hvd_elastic_ext.jobs.conversion.document import Conversion
from tests.support.manifests import Body, of_operator

BY_HAND = "# NO EQUAL: arena is called within this line; write the call on a line of its own"
NO_OPTION = "# NO EQUAL: hvd-elastic has no such option: "
WORKER = (
    "{replicas: 2, restartPolicy: Always, "
    "template: {spec: {containers: [{name: mpi, image: y, command: [sleep, 365d]}]}}}"
)
LAUNCHER = (
    "{replicas: 1, template: {spec: {containers: [{name: side, image: x}, "
    "{name: mpi, image: y, "
    "command: [horovodrun, --host-discovery-script, /etc/mpi/discover_hosts.sh, python, t.py]}]}}}"
)


def made(text: str) -> Conversion:
    (body,) = yaml.safe_load_all(text)
    return convert(body)


def mpi_job(version: str, **spec: Any) -> Body:
    specs = {"Launcher": yaml.safe_load(LAUNCHER), "Worker": yaml.safe_load(WORKER)}
    whole = {"mpiReplicaSpecs": specs, **spec}
    return {"apiVersion": f"kubeflow.org/{version}", "kind": "MPIJob", "metadata": {"name": "j"}, "spec": whole}


@pytest.mark.parametrize("version", ["v1alpha2", "v1"])
def test_an_mpijob_of_an_old_version_is_accepted_by_todays_operator(version: str) -> None:
    old = mpi_job(version, slotsPerWorker=2, cleanPodPolicy="Running", backoffLimit=3, activeDeadlineSeconds=60)
    new = convert(old).body
    assert of_operator(new) == []
    assert new["spec"]["runPolicy"] == {"backoffLimit": 3, "activeDeadlineSeconds": 60, "cleanPodPolicy": "Running"}
    specs = new["spec"]["mpiReplicaSpecs"]
    assert (specs["Launcher"]["restartPolicy"], specs["Worker"]["restartPolicy"]) == ("Never", "OnFailure")
    assert "command" not in specs["Worker"]["template"]["spec"]["containers"][0]
    assert old == mpi_job(version, slotsPerWorker=2, cleanPodPolicy="Running", backoffLimit=3, activeDeadlineSeconds=60)


def test_a_run_policy_counts_more_than_the_fields_beside_it() -> None:
    conversion = convert(mpi_job("v1", backoffLimit=3, runPolicy={"backoffLimit": 5}))
    assert conversion.body["spec"]["runPolicy"] == {"backoffLimit": 5}
    assert any("spec.backoffLimit = 3: left out" in line for line in conversion.changes)


def test_the_main_container_is_the_first_and_the_distribution_has_its_new_name() -> None:
    new = convert(mpi_job("v1alpha2", mainContainer="mpi", mpiDistribution="intel_mpi")).body
    first = new["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert (first["name"], new["spec"]["mpiImplementation"]) == ("mpi", "Intel")
    assert of_operator(new) == []


def test_hosts_without_slots_are_told_with_the_option_that_mends_it() -> None:
    assert any(
        "--slots-per-host 4" in line for line in convert(mpi_job("v1", mainContainer="mpi", slotsPerWorker=4)).dropped
    )


@pytest.mark.parametrize(
    ("spec", "workers", "slots", "limits"),
    [
        ("gpus: 8", 8, 1, {"nvidia.com/gpu": 1}),
        ("gpus: 8, gpusPerNode: 4", 2, 4, {"nvidia.com/gpu": 4}),
        ("gpus: 2, gpusPerNode: 4", 1, 2, {"nvidia.com/gpu": 2}),
        ("processingUnits: 6, processingUnitsPerNode: 3, processingResourceType: cpu", 2, 3, {"cpu": 3}),
        ("replicas: 3", 3, None, None),
    ],
)
def test_a_number_of_gpus_becomes_workers(spec: str, workers: int, slots: int | None, limits: Any) -> None:
    template = "{spec: {restartPolicy: OnFailure, containers: [{name: a, image: b, command: [mpirun, x]}]}}"
    spec = f"{{{spec}, template: {template}}}"
    text = f"{{apiVersion: kubeflow.org/v1alpha1, kind: MPIJob, metadata: {{name: j}}, spec: {spec}}}"
    new = made(text).body
    assert of_operator(new) == []
    launcher, worker = (new["spec"]["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    assert (worker["replicas"], new["spec"].get("slotsPerWorker")) == (workers, slots)
    container = worker["template"]["spec"]["containers"][0]
    assert container.get("resources", {}).get("limits") == limits
    assert "command" not in container
    assert launcher["template"]["spec"]["containers"][0]["command"] == ["mpirun", "x"]
    assert launcher["restartPolicy"] == "OnFailure"


HPA = (
    "{apiVersion: %s, kind: HorizontalPodAutoscaler, metadata: {name: h}, "
    "spec: {scaleTargetRef: %s, maxReplicas: 4, metrics: [%s]}}"
)
SET = "{apiVersion: apps/v1, kind: StatefulSet, name: s}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "{type: Resource, resource: {name: cpu, targetAverageUtilization: 80}}",
            "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}",
        ),
        (
            "{type: Pods, pods: {metricName: q, targetAverageValue: '1'}}",
            "{type: Pods, pods: {metric: {name: q}, target: {type: AverageValue, averageValue: '1'}}}",
        ),
        (
            "{type: External, external: {metricName: q, metricSelector: {matchLabels: {a: b}}, targetValue: '7'}}",
            "{type: External, external: {metric: {name: q, selector: {matchLabels: {a: b}}}, "
            "target: {type: Value, value: '7'}}}",
        ),
        (
            "{type: Object, object: {target: {kind: Service, name: s}, metricName: q, targetValue: '7'}}",
            "{type: Object, object: {describedObject: {kind: Service, name: s}, metric: {name: q}, "
            "target: {type: Value, value: '7'}}}",
        ),
        (
            "{type: Pods, pods: {metric: {name: q}, target: {type: AverageValue, averageValue: '1'}}}",
            "{type: Pods, pods: {metric: {name: q}, target: {type: AverageValue, averageValue: '1'}}}",
        ),
    ],
)
@pytest.mark.parametrize("version", ["autoscaling/v2beta1", "autoscaling/v2beta2"])
def test_a_metric_of_an_autoscaler_is_written_as_v2_has_it(version: str, old: str, new: str) -> None:
    body = made(HPA % (version, SET, old)).body
    assert body["apiVersion"] == "autoscaling/v2"
    assert body["spec"]["metrics"] == [yaml.safe_load(new)]


def test_an_autoscaler_of_what_cannot_be_scaled_is_told() -> None:
    metric = "{type: Resource, resource: {name: cpu, targetAverageUtilization: 80}}"
    mpi = made(HPA % ("autoscaling/v2beta2", "{apiVersion: kubeflow.org/v1, kind: MPIJob, name: j}", metric))
    assert any("no autoscaler can scale it" in line for line in mpi.dropped)
    torch = made(HPA % ("autoscaling/v2beta2", "{apiVersion: ctyun.cn/v1, kind: PyTorchJob, name: j}", metric))
    assert torch.body["spec"]["scaleTargetRef"]["apiVersion"] == "kubeflow.org/v1"


VENDOR = """
apiVersion: ctyun.cn/v1
kind: PyTorchJob
metadata: {name: p, annotations: {ctyun.cn/x: "1", other: "2"}}
spec:
  cleanPodPolicy: Running
  enableElastic: true
  vendorField: {a: 1}
  elasticPolicy: {rdzvEndpoint: "p-worker-0:29500", minReplicas: 1, maxReplicas: 4, nProcPerNode: 2, standalone: true}
  pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [{name: main, image: x}]}}}}
"""


def test_a_pytorchjob_of_another_vendor_is_accepted_by_the_training_operator() -> None:
    conversion = made(VENDOR)
    new = conversion.body
    assert of_operator(new) == []
    assert new["spec"]["elasticPolicy"] == {
        "minReplicas": 1,
        "maxReplicas": 4,
        "rdzvHost": "p-worker-0",
        "rdzvPort": 29500,
    }
    assert (new["spec"]["nprocPerNode"], new["spec"]["runPolicy"]) == ("2", {"cleanPodPolicy": "Running"})
    assert new["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
    assert any('spec.vendorField: {"a": 1}' in line for line in conversion.dropped)
    assert any("ctyun.cn/x stays" in line for line in conversion.changes)
    assert not any("other stays" in line for line in conversion.changes)


def leaves(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {leaf for key, each in value.items() for leaf in leaves(each, f"{path}.{key}")}
    return {path.removeprefix(".")}


@pytest.mark.parametrize(
    "old",
    [
        mpi_job(
            "v1alpha2",
            slotsPerWorker=2,
            cleanPodPolicy="All",
            mainContainer="mpi",
            mpiDistribution="mpich",
            odd={"a": 1},
        ),
        yaml.safe_load(VENDOR),
    ],
)
def test_a_field_that_leaves_its_place_is_named(old: Body) -> None:
    conversion = convert(old)
    said = "\n".join([*conversion.changes, *conversion.dropped])
    gone = leaves({**old, "spec": {**old["spec"]}}) - leaves(conversion.body)
    assert {path for path in gone if path not in said and path.rpartition(".")[0] not in said} == set()


def test_a_document_of_today_stays_as_it_is_and_a_list_becomes_its_items() -> None:
    plain = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    assert flattened([{"kind": "List", "apiVersion": "v1", "items": [plain, plain]}]) == [plain, plain]
    assert converted(yaml.safe_dump(plain), "f").startswith("# unchanged\n")
    for body in (mpi_job("v2beta1"), {**plain, "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}):
        assert (convert(body).body, convert(body).changes, convert(body).dropped) == (body, [], [])


def test_the_output_is_yaml_again_with_a_word_about_comments() -> None:
    text = converted(f"# mine\n{VENDOR}---\n{VENDOR}", "f.yaml")
    assert text.startswith("# Comments of f.yaml are not in here.\n")
    assert [body["apiVersion"] for body in yaml.safe_load_all(text)] == ["kubeflow.org/v1"] * 2
    assert "# NO EQUAL: spec.vendorField" in text


@pytest.mark.parametrize("text", ["", "- 1", "a: 1", "x", "{", "kind: MPIJob"])
def test_what_is_no_manifest_is_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"f\.yaml"):
        converted(text, "f.yaml")


SCRIPT = r"""#!/bin/sh
# "train"
N=8
arena submit etjob --name=elastic-training --gpus=1 \
  --workers=$N --data-dir=/data --loglevel debug \
  --image="$IMAGE" --rdma --queue \
  "horovodrun -np \$((\${workers}*\${gpus})) \
   python t.py"
arena scaleout etjob --name elastic-training --count 2
arena get elastic-training -n ns
arena submit tfjob --name x
echo "arena submit"
"""
EXPECTED = r"""#!/bin/sh
# "train"
N=8
# arena submit -> hvd-elastic submit
# NO EQUAL: WHY: --data-dir=/data
# NO EQUAL: WHY: --loglevel debug
# NO EQUAL: WHY: --rdma
# NO EQUAL: WHY: --queue
hvd-elastic submit etjob --name=elastic-training --gpus=1 \
  --workers=$N \
  --image="$IMAGE" \
  "horovodrun -np \$((\${workers}*\${gpus})) \
   python t.py"
# NO EQUAL: WHY
# arena scaleout etjob --name elastic-training --count 2
# arena get -> hvd-elastic get
hvd-elastic get elastic-training -n ns
# NO EQUAL: WHY
# arena submit tfjob --name x
echo "arena submit"
"""


def test_a_script_keeps_everything_but_what_calls_arena() -> None:
    found = converted(SCRIPT, "f.sh").splitlines()
    expected = EXPECTED.splitlines()
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        if "WHY" not in wanted:
            assert line == wanted
        else:
            start, _, end = wanted.partition("WHY")
            assert line.startswith(start)
            assert line.endswith(end)
            assert len(line) > len(wanted)


def test_the_options_of_submit_are_known_with_those_that_have_a_value() -> None:
    known = known_options()
    assert (known["--gpus"], known["--gang"], known["-n"], known["-e"]) == (True, False, True, True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("arena logs -f digits --tail 5", ["hvd-elastic logs -f digits --tail 5"]),
        ("arena get digits -o json", ["hvd-elastic get digits -o json"]),
        ("arena list -A -n team", ["hvd-elastic list -A -n team"]),
        ("arena logs --new=1 digits", [NO_OPTION + "--new=1", "hvd-elastic logs digits"]),
        ("arena logs --new-switch --tail 5 digits", [NO_OPTION + "--new-switch", "hvd-elastic logs --tail 5 digits"]),
        (
            'arena submit mpijob --name=q --image=x:1 --new-switch "mpirun python t.py"',
            [NO_OPTION + "--new-switch", 'hvd-elastic submit mpijob --name=q --image=x:1 "mpirun python t.py"'],
        ),
        ("echo arena list", ["echo arena list"]),
        ("FOO=1 arena list", [BY_HAND, "FOO=1 arena list"]),
        ("if arena get x; then", [BY_HAND, "if arena get x; then"]),
        ("x=$(arena get x)", [BY_HAND, "x=$(arena get x)"]),
        ("arena list && arena list", [BY_HAND, "hvd-elastic list && arena list"]),
    ],
)
def test_no_call_of_arena_and_no_option_of_it_stays_without_a_word(line: str, expected: list[str]) -> None:
    found = converted(f"arena list\n{line}\n", "f.sh").splitlines()[2:]
    assert [each for each in found if " -> " not in each] == expected


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: kubeflow.org/v1alpha1\nkind: MPIJob\nspec: {gpus: x}",
        "apiVersion: kubeflow.org/v1alpha1\nkind: MPIJob\nspec: {gpus: 4, gpusPerNode: 0}",
        "apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nspec: {metrics: [a]}",
        "apiVersion: ctyun.cn/v1\nkind: PyTorchJob\nspec: {pytorchReplicaSpecs: [1]}",
        "apiVersion: v1\nkind: List\nitems: [1]",
        "apiVersion: v1\nkind: &a {itself: *a}",
    ],
)
def test_a_field_of_a_wrong_type_is_told_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^f: "):
        converted(text, "f")
