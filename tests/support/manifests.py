"""Reads ``docker/manifests``, and checks objects against the schemas of the API and of the operators."""

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
TENSORFLOW1: Final = "../../examples/08-tensorflow1/mpijob.yaml"
"""The name of the one manifest that is in another folder."""
NEWEST: Final = "1.37"
NATIVE_SIDECARS: Final = "1.29"
"""The first version of Kubernetes that has them by default."""

CUSTOM: Final = {
    "kubeflow.org/v2beta1": schemas.MPI_JOB,
    "kai.alibabacloud.com/v1alpha1": schemas.TRAINING_JOB,
    "kubeflow.org/v1": schemas.PYTORCH_JOB,
    "keda.sh/v1alpha1": schemas.SCALED_OBJECT,
}


def names() -> list[str]:
    """Return the file names of all manifests."""
    return sorted(path.name for path in FOLDER.iterdir())


def documents(name: str) -> list[Body]:
    """Return the objects of one manifest; callers may change them."""
    read: list[Body] = json.loads(_read(name))
    return read


Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Written in C, where it is there: files are read while tests are collected."""


@functools.cache
def _read(name: str) -> str:
    # As JSON: an anchor of YAML is one object in several places, and a change would affect all of them.
    return json.dumps(list(yaml.load_all((FOLDER / name).read_text(encoding="utf-8"), Loader)))


def of_kind(name: str, *kinds: str) -> list[Body]:
    return [each for each in documents(name) if each["kind"] in kinds]


def problems(body: Body, *, version: str = NEWEST, custom: str = "") -> list[str]:
    """Return what an API server of this version would reject or drop in an object; empty if nothing.

    ``custom``: the schema file for an operator's kind, by default that of its newest release.
    """
    if body["apiVersion"] not in CUSTOM:
        return _built_in(body, version)
    found = of_operator(body, custom=custom)
    # Operators' schemas leave some parts open: metadata, and fields that are checked only when pods are made.
    found += _built_in({"apiVersion": "v1", "kind": "ConfigMap", "metadata": body["metadata"]}, version)
    for where, template in pod_templates(body):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": where}, **template}
        found += [f"{where}: {problem}" for problem in _built_in(pod, version)]
    return found


def of_operator(body: Body, *, custom: str = "") -> list[str]:
    """Return the problems that an operator's own schema finds, also in its pods."""
    schema = schemas.schema(custom or CUSTOM[body["apiVersion"]])
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(body)
    ]


def pod_templates(body: Body) -> Iterator[tuple[str, Body]]:
    """Yield the pod templates of an object, by role: ``launcher`` or ``worker``."""
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
        case "Job":
            yield "launcher", spec["template"]


def pods(name: str) -> dict[str, Body]:
    """Return the pod specs of a manifest by role; empty for one without pods."""
    return {role: template["spec"] for each in documents(name) for role, template in pod_templates(each)}


def containers(pod: Body) -> dict[str, Body]:
    """Return the containers of a pod by name, with its init containers."""
    return {each["name"]: each for each in [*pod.get("initContainers", []), *pod["containers"]]}


def _built_in(body: Body, version: str) -> list[str]:
    try:
        kubernetes_validate.validate(body, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}"]
    return []
