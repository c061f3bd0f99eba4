"""An API server accepts the manifests, and the programs accept their options."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discover import cli
from discover.daemon.settings import KubernetesSettings
from discover.publish.server import UnixAddress
from hvd_elastic_ext.launcher.cli.run_options import parse
from tests.support import manifests, schemas
from tests.support.manifests import Body, containers, documents, names, of_kind, pods, problems

JOBS = ["mpijob-older.yaml", "mpijob.yaml", "statefulset.yaml", "trainingjob.yaml"]
NATIVE = ["mpijob.yaml", "statefulset.yaml"]
OLDER = ["mpijob-older.yaml", "trainingjob.yaml"]
PORTS = {"mpijob-older.yaml": 2222, "mpijob.yaml": 2222, "statefulset.yaml": 2222, "trainingjob.yaml": 22}


def daemon(name: str) -> Body:
    return containers(pods(name)["launcher"])["discover"]


def test_there_are_these_manifests_and_no_others() -> None:
    rights = ("rbac.yaml", "nodes.yaml", "reap.yaml", "exec.yaml", "sleep.yaml", "sleep-statefulset.yaml")
    assert names() == sorted([*JOBS, "pytorchjob.yaml", *rights, "network.yaml"])


@pytest.mark.parametrize("name", names())
def test_an_api_server_accepts_every_object(name: str) -> None:
    assert documents(name)
    for body in documents(name):
        assert problems(body) == [], body["metadata"]["name"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_a_launcher_and_workers(name: str) -> None:
    assert set(pods(name)) == {"launcher", "worker"}


@pytest.mark.parametrize("name", NATIVE)
def test_the_first_version_with_native_sidecars_accepts_them(name: str) -> None:
    for body in documents(name):
        assert problems(body, version=manifests.NATIVE_SIDECARS) == []


def test_an_operator_without_native_sidecars_accepts_only_the_other_manifest() -> None:
    (native,) = of_kind("mpijob.yaml", "MPIJob")
    (older,) = of_kind("mpijob-older.yaml", "MPIJob")
    found = problems(native, custom=schemas.OLD_MPI_JOB)
    assert len(found) == 1
    assert "initContainers.0: Additional properties are not allowed ('restartPolicy' was unexpected)" in found[0]
    assert problems(older, custom=schemas.OLD_MPI_JOB, version="1.25") == []
    assert any("restartPolicy" in each for each in problems(native, version="1.27"))


def test_the_et_operator_refuses_native_sidecars() -> None:
    (job,) = of_kind("trainingjob.yaml", "TrainingJob")
    pod = job["spec"]["etReplicaSpecs"]["launcher"]["template"]["spec"]
    pod["initContainers"] = [{**pod["containers"].pop(), "restartPolicy": "Always"}]
    assert any("'restartPolicy' was unexpected" in each for each in problems(job))


TYPOS: dict[str, Callable[[Body], Any]] = {
    "a field of the job": lambda job: job["spec"].update(slotPerWorker=1),
    "a field of the metadata": lambda job: job["metadata"].update(annotation={"a": "b"}),
    "a field of a pod": lambda job: launcher_of(job).update(serviceAccount_name="x"),
    "a value of a container": lambda job: launcher_of(job)["containers"][0].update(command="hvd-elastic run"),
}


def test_the_job_of_the_example_for_tensorflow_1_is_the_usual_one_with_a_claim_for_its_checkpoints() -> None:
    claim, *objects = documents(manifests.TENSORFLOW1)
    assert not any(problems(each) for each in (claim, *objects))
    usual = documents("mpijob.yaml")
    pod = {role: template["spec"] for role, template in manifests.pod_templates(usual[-1])}
    launcher, worker = containers(pod["launcher"])["launcher"], containers(pod["worker"])["worker"]
    for each in (launcher, worker):
        each["image"] += "-tensorflow"
    *options, python, _ = launcher["args"]
    options[options.index("--min-np=1")] = "--min-np=2"
    options.insert(options.index("--max-np=8") + 1, "--restart-from-scratch")
    script = "examples/08-tensorflow1/train.py"
    assert (manifests.FOLDER.parents[1] / script).exists()
    launcher["args"] = [*options, python, f"/opt/hvd/share/hvd-elastic-ext/{script}", "2000", "/checkpoints"]
    worker["volumeMounts"].append({"name": "checkpoints", "mountPath": "/checkpoints"})
    named = {"claimName": claim["metadata"]["name"]}
    pod["worker"]["volumes"].append({"name": "checkpoints", "persistentVolumeClaim": named})
    assert objects == usual
    settings = parse(launcher["args"], {})
    assert settings.command[0] == "python"


def launcher_of(job: Body) -> Body:
    return next(template["spec"] for role, template in manifests.pod_templates(job) if role == "launcher")


@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize(("name", "kind"), [("mpijob.yaml", "MPIJob"), ("trainingjob.yaml", "TrainingJob")])
def test_a_misspelt_job_is_found(name: str, kind: str, typo: str) -> None:
    (job,) = of_kind(name, kind)
    TYPOS[typo](job)
    assert problems(job)


@pytest.mark.parametrize("name", ["rbac.yaml", "nodes.yaml", "statefulset.yaml"])
def test_a_misspelt_field_of_a_built_in_kind_is_found(name: str) -> None:
    for body in documents(name):
        body["speck"] = {}
        assert len(problems(body)) == 1


# Options of the containers


POD = "digits-launcher-x7x7x"


def told(name: str) -> list[str]:
    """The daemon's arguments."""
    arguments: list[str] = daemon(name)["args"]
    return arguments


def environment(name: str) -> dict[str, str]:
    """The daemon's environment variables: each has the pod's name."""
    variables = daemon(name).get("env", [])
    assert all(each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}} for each in variables)
    return {each["name"]: POD for each in variables}


@pytest.mark.parametrize("name", JOBS)
def test_the_daemon_accepts_its_arguments(name: str) -> None:
    settings = cli.settings_from(told(name), environment(name))
    assert isinstance(settings.source, KubernetesSettings)
    assert settings.source.probe == PORTS[name]
    assert settings.outputs.listen == (UnixAddress(Path("/run/hvd/discover.sock")),)
    job = of_kind(name, "MPIJob", "TrainingJob", "StatefulSet")[0]
    assert settings.source.job == job["metadata"]["name"]
    operator = settings.source.rules.operator
    assert (operator.api_version, operator.kind) == (job["apiVersion"], job["kind"])
    assert operator.plural == f"{job['kind'].lower()}s"


@pytest.mark.parametrize("name", JOBS)
def test_the_launcher_accepts_its_arguments(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launcher = containers(pods(name)["launcher"])["launcher"]
    assert launcher["command"] == ["tini", "--", "hvd-elastic", "run"]
    settings = parse(launcher["args"], {})
    assert f"--listen={settings.sources.discovery_url}" in told(name)
    assert settings.command[0] == "python"


@pytest.mark.parametrize("name", JOBS)
def test_horovod_accepts_the_lines_for_stock_horovod(name: str) -> None:
    """They are a comment, which nothing else checks."""
    text = (manifests.FOLDER / name).read_text()
    if name == "mpijob-older.yaml":
        assert "# args: as in mpijob.yaml" in text
        return
    start = text.index("# args: [") + len("# args: [")
    words = text[start : text.index("]", start)].replace("#", "").replace("\n", "").replace(" ", "").split(",")
    arguments = [shlex.split(word)[0] for word in words]
    settings = parse(arguments, {})  # Horovod's own parser and checks, with our options beside
    assert str(settings.sources.script) == "/run/hvd/discover_hosts.sh"
    assert f"--script={settings.sources.script}" in told(name)
    assert list(settings.command) == ["python", "train.py"]


# The daemon's container


@pytest.mark.parametrize("name", NATIVE)
def test_the_daemon_is_a_native_sidecar_where_possible(name: str) -> None:
    pod = pods(name)["launcher"]
    assert [(each["name"], each["restartPolicy"]) for each in pod["initContainers"]] == [("discover", "Always")]
    assert [each["name"] for each in pod["containers"]] == ["launcher"]


@pytest.mark.parametrize("name", OLDER)
def test_elsewhere_it_is_a_container_that_ends_with_the_launcher(name: str) -> None:
    pod = pods(name)["launcher"]
    assert "initContainers" not in pod
    assert [each["name"] for each in pod["containers"]] == ["launcher", "discover"]
    source = cli.settings_from(told(name), environment(name)).source
    assert isinstance(source, KubernetesSettings)
    # The pod's host name may be another: MPI Operator's launcher has its Job's.
    assert (source.exit_with, source.own_pod) == ("launcher", POD)


@pytest.mark.parametrize("name", JOBS)
def test_the_daemon_has_probes_on_its_socket_but_none_for_readiness(name: str) -> None:
    container = daemon(name)
    assert "readinessProbe" not in container
    for probe, path in (("startupProbe", "/startupz"), ("livenessProbe", "/livez")):
        *python, module, place, asked = container[probe]["exec"]["command"]
        assert (python, module, asked) == (["python", "-I", "-m"], "discover.probe", path)
        assert f"--listen=unix://{place}" in told(name)
        assert container[probe]["timeoutSeconds"] > 4
    assert importlib.util.find_spec("discover.probe") is not None


@pytest.mark.parametrize("name", JOBS)
def test_the_daemon_has_small_limits_and_a_read_only_image(name: str) -> None:
    container = daemon(name)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "96Mi"}, "limits": {"memory": "192Mi"}}


@pytest.mark.parametrize("name", [*NATIVE, "mpijob-older.yaml"])
def test_daemon_and_launcher_run_as_one_user_who_owns_the_socket(name: str) -> None:
    launcher = containers(pods(name)["launcher"])["launcher"]
    assert {"runAsUser", "runAsGroup"}.isdisjoint(launcher["securityContext"])
    assert pods(name)["launcher"]["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("name", JOBS)
def test_the_token_is_mounted_into_the_daemon_and_nowhere_else(name: str) -> None:
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    for role, pod in pods(name).items():
        assert pod["automountServiceAccountToken"] is False
        holders = {
            each["name"]
            for each in containers(pod).values()
            for mount in each.get("volumeMounts", [])
            if mount["mountPath"] == place or mount["name"] == "token"
        }
        assert holders == ({"discover"} if role == "launcher" else set())
    (volume,) = (each for each in pods(name)["launcher"]["volumes"] if each["name"] == "token")
    paths = {
        item["path"]
        for source in volume["projected"]["sources"]
        for kind, what in source.items()
        for item in ([what] if kind == "serviceAccountToken" else what["items"])
    }
    assert paths == {"token", "ca.crt", "namespace"}  # what clients look for


@pytest.mark.parametrize("name", JOBS)
def test_daemon_and_launcher_share_a_directory(name: str) -> None:
    pod = pods(name)["launcher"]
    mounts = {each["name"]: each["volumeMounts"] for each in containers(pod).values()}
    for of in ("discover", "launcher"):
        assert {"name": "hosts", "mountPath": "/run/hvd"} in mounts[of]
        assert all("subPath" not in mount for mount in mounts[of])  # such a mount is never renewed
    assert "emptyDir" in next(each for each in pod["volumes"] if each["name"] == "hosts")


@pytest.mark.parametrize("name", JOBS)
def test_commands_in_the_launchers_container_find_its_job(name: str) -> None:
    launcher = containers(pods(name)["launcher"])["launcher"]
    variables = {each["name"]: each["value"] for each in launcher["env"]}
    assert f"--state-dir={variables['HVD_ELASTIC_STATE_DIR']}" in launcher["args"]


# Workers


@pytest.mark.parametrize("name", JOBS)
def test_the_prestop_hook_of_a_worker_lets_its_agents_leave_in_time(name: str) -> None:
    pod = pods(name)["worker"]
    (worker,) = pod["containers"]
    *python, module, within = worker["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, module) == (["/opt/hvd/bin/python", "-I", "-m"], "hvd_elastic_ext.agent.prestop")
    assert importlib.util.find_spec(module) is not None
    # The hook's time is part of the pod's; something must be left to end in.
    assert 0 < float(within.removeprefix("--within=")) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", JOBS)
def test_all_parts_use_the_same_port_of_ssh(name: str) -> None:
    (worker,) = pods(name)["worker"]["containers"]
    assert [port["containerPort"] for port in worker["ports"]] == [PORTS[name]]
    config = (manifests.FOLDER.parent / "sshd_config_trainer").read_text()
    launcher = containers(pods(name)["launcher"])["launcher"]
    if PORTS[name] == 22:
        assert not any(each.startswith("--ssh-port") for each in launcher["args"])
    else:
        assert f"\nPort {PORTS[name]}\n" in config
        assert f"--ssh-port={PORTS[name]}" in launcher["args"]
