"""Code that comes with a job is the same in every pod."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from hvd_elastic_ext.jobs.cluster.code import packed
from hvd_elastic_ext.jobs.rendering.code import ARCHIVE, CHECKSUM, KEY
from hvd_elastic_ext.jobs.rendering.objects import main_container, templates
from hvd_elastic_ext.jobs.rendering.render import needed, render
from hvd_elastic_ext.jobs.spec.job import KINDS
from tests.support.jobs import example, one
from tests.support.manifests import Body, documents, of_operator


def objects(kind: str, archive: bytes, **others: str) -> tuple[Body, ...]:
    job = example(kind, **others)
    return render(job, {name: documents(f"{name}.yaml") for name in needed(job)}, archive=archive).objects


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_unpacks_the_code_where_its_command_starts(kind: str) -> None:
    made = objects(kind, b"code")
    held = one(made, "ConfigMap")
    assert (held["immutable"], base64.b64decode(held["binaryData"][KEY])) == (True, b"code")
    pods = [each for body in made for _, each in templates(body)]
    assert len(pods) == (1 if kind == "pytorchjob" else 2)
    for pod in pods:
        assert main_container(pod)["workingDir"] == "/code"
        assert pod["spec"]["initContainers"][0]["name"] == "code"
        assert pod["metadata"]["annotations"][CHECKSUM] == held["metadata"]["annotations"][CHECKSUM]
    if kind != "statefulset":
        assert of_operator(made[-1]) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_the_container_unpacks_what_was_packed_and_nothing_else(tmp_path: Path, damaged: bool) -> None:
    source, mounted, place = tmp_path / "source", tmp_path / "mounted", tmp_path / "a place; exit 3"
    for folder in (source, mounted, place):
        folder.mkdir()
    (source / "train.py").write_text("x = 1\n")
    archive = packed(source)
    made = objects("mpijob", archive, working_dir=str(place))
    (mounted / KEY).write_bytes(archive[:-1] if damaged else archive)
    pod = next(each for body in made for role, each in templates(body) if role == "worker")
    command = [word.replace(ARCHIVE, str(mounted)) for word in pod["spec"]["initContainers"][0]["command"]]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode == 0) == (not damaged), done.stderr
    assert [path.name for path in place.iterdir()] == ([] if damaged else ["train.py"])
