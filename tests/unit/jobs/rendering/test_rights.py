"""What the launcher of a job may do to its own workers."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.rendering.objects import templates
from hvd_elastic_ext.jobs.rendering.rights import TOKEN, workers_of
from tests.support.jobs import example, one, rendered
from tests.support.manifests import of_operator, problems
from tests.support.rights import Right, granted

AUTOSCALE = ("--autoscale", "efficiency")
WITH_LAUNCHER = ("statefulset", "mpijob", "mpijob-older", "trainingjob")
ET = "kai.alibabacloud.com"
MORE = {
    "statefulset": {Right("apps", "statefulsets/scale", verb, "digits-worker") for verb in ("get", "patch")},
    "mpijob": {Right("kubeflow.org", "mpijobs", "patch", "digits")},
    "mpijob-older": {Right("kubeflow.org", "mpijobs", "patch", "digits")},
    "trainingjob": {Right(ET, "scaleouts", "create"), Right(ET, "scaleins", "create")},
}


def rights(kind: str, *options: str) -> frozenset[Right]:
    return granted(one(rendered(example(kind, run_options=options)).objects, "Role")["rules"])


def holders(kind: str, *options: str) -> set[str]:
    """The containers with the account's token."""
    return {
        container["name"]
        for body in rendered(example(kind, run_options=options)).objects
        for _, template in templates(body)
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ()))
        if TOKEN in container.get("volumeMounts", ())
    }


@pytest.mark.parametrize("kind", WITH_LAUNCHER)
def test_a_launcher_that_scales_its_workers_may_do_that_and_nothing_else(kind: str) -> None:
    own = str(workers_of(example(kind)))
    for option in (("--scale-with", own), (f"--scale-with={own}",)):
        options = (*AUTOSCALE, *option)
        assert rights(kind, *options) - rights(kind) == MORE[kind]
        assert holders(kind, *options) == {"launcher", "discover"}
        root = rendered(example(kind, run_options=options)).root
        assert (problems(root) if kind == "statefulset" else of_operator(root)) == []
    assert holders(kind) == {"discover"}


def test_a_right_for_more_than_a_number_is_told() -> None:
    told = {kind: rendered(example(kind, run_options=_scaled(kind))).notes for kind in WITH_LAUNCHER}
    assert told["statefulset"] == ()
    assert "whoever has that right may run anything under it" in told["mpijob"][0]
    assert "for the whole namespace" in told["trainingjob"][0]


def _scaled(kind: str) -> tuple[str, ...]:
    return (*AUTOSCALE, "--scale-with", str(workers_of(example(kind))))


@pytest.mark.parametrize("kind", ["statefulset", "mpijob"])
def test_a_launcher_that_lets_its_workers_go_while_it_sleeps_may_do_that(kind: str) -> None:
    options = ("--below-min=sleep", "--sleep-releases=pods", "--release-job", str(workers_of(example(kind))))
    more = rights(kind, *options) - rights(kind)
    assert more == MORE[kind] | ({Right("", "pods", "delete")} if kind == "mpijob" else set())
    assert holders(kind, *options) == {"launcher", "discover"}


@pytest.mark.parametrize("given", ["recommend", "file:/x", "exec:/x"])
def test_what_does_not_ask_the_cluster_needs_no_right(given: str) -> None:
    options = (*AUTOSCALE, "--scale-with", given)
    assert rights("statefulset", *options) == rights("statefulset")
    assert holders("statefulset", *options) == {"discover"}


def test_a_policy_that_changes_nothing_is_told() -> None:
    (note,) = rendered(example("statefulset", run_options=AUTOSCALE)).notes
    assert note == (
        "--autoscale without --scale-with changes nothing: the launcher says the size; --scale-with "
        "statefulset/digits-worker sets it"
    )


@pytest.mark.parametrize(
    ("kind", "options", "others", "why"),
    [
        ("statefulset", ("--scale-with", "statefulset/digits"), {}, "of this job are statefulset/digits-worker; write"),
        ("mpijob", ("--scale-with=deployment/x",), {}, "the workers of this job are mpijob/digits; write that"),
        ("mpijob", ("--release-job=mpijob/other",), {}, "--release-job mpijob/other: the workers of this job are"),
        ("mpijob", ("--scale-with=mpijbo/digits",), {}, "did you mean 'mpijob'"),
        ("trainingjob", ("--release-job=trainingjob/digits",), {}, "use --sleep-releases none"),
        ("statefulset", ("--scale-with=statefulset/digits-worker",), {"queue": "kueue/q"}, "Kueue admits workers"),
        ("statefulset", ("--rsh", "pod"), {}, "--rsh pod in the command: the workers run sshd"),
    ],
)
def test_what_could_never_work_is_refused(
    kind: str, options: tuple[str, ...], others: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        rendered(example(kind, run_options=options, **others))


def test_checkpoints_that_no_other_pod_reaches_are_refused_or_told() -> None:
    with pytest.raises(UsageError, match="--checkpoint-every without --checkpoint-dir"):
        example("statefulset", run_options=("--checkpoint-every", "100"))
    for place in ({"run_options": ("--checkpoint-every=9", "--config", "c.yaml")}, {"run_options": ()}):
        example("statefulset", **place)
    every = ("--checkpoint-every", "100", "--checkpoint-dir", "/ck/a")
    assert rendered(example("mpijob", run_options=every, volumes={"/ck": "claim"})).notes == ()
    assert rendered(example("mpijob", run_options=(*every, "--checkpoint-dir=s3://b/ck"))).notes == ()
    by_variable = {"HVD_ELASTIC_CHECKPOINT_DIR": "s3://b/ck"}
    assert rendered(example("mpijob", run_options=every[:2], env=by_variable)).notes == ()
    (note,) = rendered(example("mpijob", run_options=every, volumes={"/ckpt": "claim"})).notes
    assert note.startswith("--checkpoint-dir /ck/a is a folder of each pod by itself")
