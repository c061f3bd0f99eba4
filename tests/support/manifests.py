"""Reads ``docker/manifests``, and holds objects against the schemas of the API and of the operators."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import yaml

from tests.support import schemas

Body = dict[str, Any]

FOLDER: Final = Path(__file__).parents[2] / "docker" / "manifests"
NEWEST: Final = "1.37"
NATIVE_SIDECARS: Final = "1.29"
"""The first version of Kubernetes that has them without being asked."""

CUSTOM: Final = {
    "kubeflow.org/v2beta1": schemas.MPI_JOB,
    "kai.alibabacloud.com/v1alpha1": schemas.TRAINING_JOB,
    "kubeflow.org/v1": schemas.PYTORCH_JOB,
    "keda.sh/v1alpha1": schemas.SCALED_OBJECT,
}


def names() -> list[str]:
    """All manifests' file names."""
    return sorted(path.name for path in FOLDER.iterdir())


def documents(name: str) -> list[Body]:
    """The objects of one manifest, each free to be changed."""
    read: list[Body] = json.loads(_read(name))
    return read


@functools.cache
def _read(name: str) -> str:
    # As JSON: YAML's anchors are one object in several places, which a change would change everywhere.
    return json.dumps(list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))))


def of_kind(name: str, *kinds: str) -> list[Body]:
    return [each for each in documents(name) if each["kind"] in kinds]


def problems(body: Body, *, version: str = NEWEST, custom: str = "") -> list[str]:
    """What is wrong with an object, to an API server of this version that drops nothing; empty if nothing is.

    ``custom`` is the schema file for an operator's kind, by default that of its newest release.
    """
    if body["apiVersion"] not in CUSTOM:
        return _built_in(body, version)
    found = of_operator(body, custom=custom)
    # What operators leave open in theirs: metadata, and whatever else is decided when pods are made.
    found += _built_in({"apiVersion": "v1", "kind": "ConfigMap", "metadata": body["metadata"]}, version)
    for where, template in pod_templates(body):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": where}, **template}
        found += [f"{where}: {problem}" for problem in _built_in(pod, version)]
    return found


def of_operator(body: Body, *, custom: str = "") -> list[str]:
    """What an operator's own schema finds wrong, which knows pods, too."""
    schema = schemas.schema(custom or CUSTOM[body["apiVersion"]])
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(body)
    ]


def pod_templates(body: Body) -> Iterator[tuple[str, Body]]:
    """The templates of pods in an object, by role: ``launcher``, ``worker``, or ``daemon`` where it stands alone."""
    spec = body.get("spec", {})
    match body["kind"]:
        case "MPIJob":
            for role, replica in spec["mpiReplicaSpecs"].items():
                yield role.lower(), replica["template"]
        case "PyTorchJob":
            for role, replica in spec["pytorchReplicaSpecs"].items():
                yield role.lower(), replica["template"]
        case "TrainingJob":
            for role in ("launcher", "worker"):
                yield role, spec["etReplicaSpecs"][role]["template"]
        case "StatefulSet":
            yield "worker", spec["template"]
        case "Deployment":
            yield "daemon", spec["template"]
        case "Job":
            yield "launcher", spec["template"]


def pods(name: str) -> dict[str, Body]:
    """The pods' specs of a manifest by role; empty for one without pods."""
    return {role: template["spec"] for each in documents(name) for role, template in pod_templates(each)}


def containers(pod: Body) -> dict[str, Body]:
    """By name; those that start first included."""
    return {each["name"]: each for each in [*pod.get("initContainers", []), *pod["containers"]]}


def _built_in(body: Body, version: str) -> list[str]:
    try:
        kubernetes_validate.validate(body, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}"]
    return []
