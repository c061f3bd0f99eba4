"""``hvd-elastic submit`` without a cluster: what is printed, and what is refused."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.install import manifest
from hvd_elastic_ext.jobs.cli import attach, changes, get, submit
from hvd_elastic_ext.jobs.cli.submit import asked_for, difference
from hvd_elastic_ext.jobs.cli.submit_options import add_job, parted
from hvd_elastic_ext.jobs.rendering.objects import main_container, templates
from hvd_elastic_ext.jobs.spec.words import REFUSED
from tests.support.jobs import example, one, rendered

JOBS = ("Job", "StatefulSet", "MPIJob", "PyTorchJob")
BASE = "digits --image reg/train:1 --dry-run=client"
ARENA = """
etjob --name=elastic-training --spot-instance --max-wait-time=600 --job-restart-policy=OnFailure --job-backoff-limit=3
--worker-restart-policy=Always --launcher-selector=pool=cpu --toleration=all --gpus=1 --memory=16Gi --cpu=4 --workers=8
--max-workers=128 --min-workers=1 --image=reg/train:1 --dry-run=client -o yaml
"horovodrun -np $((${workers}*${gpus})) --min-np $((${minWorkers}*${gpus})) --max-np $((${maxWorkers}*${gpus}))
--host-discovery-script /etc/edl/discover_hosts.sh python /examples/train.py"
"""


def objects(capsys: pytest.CaptureFixture[str], line: str) -> list[dict[str, Any]]:
    assert submit.main(shlex.split(line)) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_a_line_of_arena_makes_what_arena_makes(capsys: pytest.CaptureFixture[str]) -> None:
    job = objects(capsys, ARENA)[-1]
    assert (job["kind"], job["metadata"]["name"]) == ("TrainingJob", "elastic-training")
    pods = dict(templates(job))
    assert main_container(pods["launcher"])["args"][-8:] == [
        *("-np", "8", "--min-np", "1", "--max-np", "128", "python", "/examples/train.py")
    ]
    assert job["spec"]["etReplicaSpecs"]["worker"]["maxReplicas"] == 128


def test_a_kind_that_is_named_needs_no_cluster_for_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(shlex.split(f"{BASE} --kind mpijob -- python /t.py")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "serviceaccount/hvd-launcher-digits created (dry run)"
    assert lines[-1] == "mpijob.kubeflow.org/digits created (dry run)"


def test_a_statefulset_comes_with_a_key_that_was_made_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (objects(capsys, f"{BASE} --kind statefulset -o yaml -- python /t.py") for _ in "ab")
    keys = [one(each, "Secret")["data"] for each in (first, second)]
    assert keys[0]["id"] != keys[1]["id"]
    assert first[1:] == second[1:]


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_of_arena_that_is_not_taken_says_what_to_do_instead(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is an option of arena that is not accepted here: .{{20}}"):
        submit.main(["digits", f"{option}=x", "--", "python", "t.py"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "NAME is missing"),
        ("--image x -- python t.py", "NAME is missing"),
        ("one --name two --image x -- python t.py", "give one name"),
        ("tfjob --name=one --image x -- python t.py", "arena's tfjob is not a kind of job here; there are etjob"),
        ("etjob --image x -- python t.py", "NAME is missing: etjob is a kind of arena's"),
        ("one --image x --gang=maybe -- python t.py", "--gang has no value; leave 'maybe' out"),
        ("one --image x --kind mpijob --dry-run -- ''", "the command is missing"),
        ("one --image x --queue -- python t.py", "name a queue: --queue kueue/NAME"),
        ("one --image x --queue=true -- python t.py", "name a queue: --queue kueue/NAME"),
        (
            "one --image x --running-timeout soon -- python t.py",
            "--running-timeout 'soon': write a time, such as --running-timeout 30s",
        ),
        ("one --imge x -- python t.py", "did you mean --image"),
        ("one --kind mpijob --dry-run --image x -- hvd-elastic run --setle 3 t.py", "did you mean --settle"),
    ],
)
def test_a_mistake_is_told(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        submit.main(shlex.split(line))


def test_the_command_is_what_follows_the_dashes_or_a_last_word_with_spaces() -> None:
    parser = argparse.ArgumentParser()
    add_job(parser)
    assert parted(parser, ["a", "--", "b", "--", "c"]) == (["a"], ["b", "--", "c"])
    assert parted(parser, ["a", "--gpus=1", "python t.py"]) == (["a", "--gpus=1"], ["python t.py"])
    assert parted(parser, ["a", "--gpus", "1"]) == (["a", "--gpus", "1"], [])
    assert parted(parser, ["a", "--env", "A=b c"]) == (["a", "--env", "A=b c"], [])
    assert parted(parser, ["a", "--gpus", "1", "t.py", "-x", "2"]) == (["a", "--gpus", "1"], ["t.py", "-x", "2"])


@pytest.mark.parametrize("kind", ["statefulset", "mpijob", "pytorchjob"])
def test_variables_before_the_command_are_those_of_all_pods(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = "" if kind == "pytorchjob" else "A=0 hvd-elastic run --settle 1m "
    made = objects(capsys, f"{BASE} --kind {kind} -e C=3 -o yaml -- {start}A=1 B=2 python /t.py X=9 --log x")
    pods = [pod for each in made if each["kind"] in JOBS for _, pod in templates(each)]
    assert pods
    for pod in pods:
        env = {each["name"]: each.get("value") for each in main_container(pod)["env"]}
        assert {name: env.get(name) for name in "ABC"} == {"A": "1", "B": "2", "C": "3"}
    words = [main_container(pod).get("args", []) for pod in pods]
    assert any(
        each[-5:] == ["python", "/t.py", "X=9", "--log", "x"] or each[-4:] == ["/t.py", "X=9", "--log", "x"]
        for each in words
    )
    assert not any("A=1" in each for each in words)


def test_an_option_of_the_program_is_not_taken_for_one_of_the_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    line = "horovodrun -np 2 --log-level DEBUG python /t.py --host-discovery-script mine --hosts a -- --checkpoint"
    job = objects(capsys, f"{BASE} --kind mpijob -o yaml -- {line}")[-1]
    args = main_container(dict(templates(job))["launcher"])["args"]
    assert args[-7:] == ["/t.py", "--host-discovery-script", "mine", "--hosts", "a", "--", "--checkpoint"]
    assert args[-12:-7] == ["-np", "2", "--log-level", "DEBUG", "python"]


@pytest.mark.parametrize(
    ("main", "line", "told"),
    [
        (submit.main, "one --image x --dry python t.py", "--dry is not an option; did you mean --dry-run?"),
        (submit.main, "one python t.py --dry-run", "--dry-run comes after 'python', with which the command begins;"),
        (submit.main, "--image x python t.py", "NAME is missing: 'python' is a program"),
        (submit.main, "one two --image x -- python t.py", "'two' is one word too many; the command comes after --"),
        (attach.main, "one ls -n ml", "-n comes after 'ls', with which the command begins; write it before that"),
        (attach.main, "one two -- ls", "'two' is one word too many; a command comes after --"),
    ],
)
def test_a_word_of_the_command_that_may_be_meant_for_submit_is_told_with_the_dashes(
    main: Callable[[list[str]], int], line: str, told: str
) -> None:
    with pytest.raises(UsageError) as error:
        main(line.split())
    first, second = str(error.value).splitlines()
    assert first.startswith(told)
    assert "command comes after --" in second


@pytest.mark.parametrize("dashes", ["", "-- "])
def test_what_follows_the_program_is_its_own(dashes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: "--checkpoint is not an option; did you mean --kind?"."""
    made = objects(capsys, f"{BASE} --kind statefulset -o yaml {dashes}python /t.py --checkpoint m.pt --lr 1")
    job = one(made, "Job")
    assert "python /t.py --checkpoint m.pt --lr 1" in " ".join(main_container(dict(templates(job))["launcher"])["args"])


def test_a_difference_shows_what_is_asked_for_and_not_what_a_server_adds() -> None:
    wanted = rendered(example("mpijob", workers=3)).root
    there = rendered(example("mpijob")).root
    there["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    there["status"] = {"conditions": []}
    changed = [line for line in difference(there, wanted) if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert {line.strip("-+ \n") for line in changed} == {"replicas: 2", "replicas: 3", "'2'", "'3'"}
    assert difference(wanted, wanted) == []
    assert all(line[:1] != "-" for line in difference(None, wanted)[2:])


def test_only_what_both_have_is_compared() -> None:
    assert asked_for({"a": 1, "b": 2, "c": [{"x": 1, "y": 2}]}, {"c": [{"x": 0}], "a": 0}) == {"c": [{"x": 1}], "a": 1}


def test_a_size_that_the_server_writes_otherwise_is_not_a_difference() -> None:
    wanted = rendered(example("statefulset", cpu="0.5", memory="2048Mi", shared_memory="1024Mi")).objects
    body = one(wanted, "StatefulSet")
    there = yaml.safe_load(yaml.safe_dump(body).replace("'0.5'", "500m").replace("2048Mi", "2Gi"))
    there = yaml.safe_load(yaml.safe_dump(there).replace("1024Mi", "1Gi"))
    assert "500m" in str(there)
    assert difference(there, body) == []
    other = yaml.safe_load(yaml.safe_dump(there).replace("500m", "600m"))
    assert "-            cpu: 600m\n" in difference(other, body)


@pytest.mark.parametrize("option", ["-H a:2", "--hosts-file=x", "--discovery x"])
def test_hosts_in_the_command_are_refused_since_they_come_from_the_cluster(option: str) -> None:
    with pytest.raises(UsageError, match="in the command: hosts come from the cluster; leave it out"):
        submit.main(shlex.split(f"{BASE} --kind mpijob -- hvd-elastic run {option} python /t.py"))


ALSO = """
mpijob --name=q --image=reg/train:1 --gpus=2 --workers=2 --retry=3 --workingDir=/w --shell=bash --share-memory=4Gi
--clean-task-policy=All --running-timeout=2h30m --ttl-after-finished=90s --nproc-per-node=4 --mounts-on-launcher
--gang=false --rdma=false --device=rdma/hca=1 --image-pull-policy=IfNotPresent --data=claim:/d
--dry-run=client -o yaml "python t.py | tee /d/log"
"""


def test_no_option_of_arena_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    job = objects(capsys, ALSO)[-1]
    policy = {"backoffLimit": 3, "activeDeadlineSeconds": 9000, "ttlSecondsAfterFinished": 90, "cleanPodPolicy": "All"}
    assert job["spec"]["runPolicy"] == policy
    assert job["spec"]["slotsPerWorker"] == 4
    pods = dict(templates(job))
    launcher, worker = main_container(pods["launcher"]), main_container(pods["worker"])
    assert launcher["args"][-3:] == ["bash", "-c", "python t.py | tee /d/log"]
    assert (launcher["workingDir"], worker["workingDir"]) == ("/w", "/w")
    assert {"name": "data-0", "mountPath": "/d"} in launcher["volumeMounts"]
    assert worker["resources"]["limits"]["rdma/hca"] == "1"


@pytest.mark.parametrize(
    ("end", "command"),
    [
        ("./run.sh", ["./run.sh"]),
        ("python t.py 3", ["python", "t.py", "3"]),
        ("-- python t.py", ["python", "t.py"]),
        ("--dry-run 'python t.py'", ["python", "t.py"]),
    ],
)
def test_the_last_words_of_a_line_of_arena_are_the_command(
    capsys: pytest.CaptureFixture[str], end: str, command: list[str]
) -> None:
    line = f"mpijob --name=q -e A=1 --env B=2 --image reg/train:1 --dry-run=client -o yaml {end}"
    launcher = main_container(dict(templates(objects(capsys, line)[-1]))["launcher"])
    assert launcher["args"][-len(command) :] == command


def test_a_second_name_is_no_command() -> None:
    with pytest.raises(UsageError, match="--image comes after 'more', with which the command begins"):
        submit.main(["digits", "more", "--image", "x", "--kind", "mpijob", "--dry-run"])


@pytest.mark.parametrize(
    ("main", "line", "told"),
    [
        (
            submit.main,
            "one --image x -np 2 -- python t.py",
            "-np is an option of `hvd-elastic run`; here it is --workers N",
        ),
        (
            submit.main,
            "one --image x -np2 -- python t.py",
            "-np2 is an option of `hvd-elastic run`; here it is --workers N",
        ),
        (submit.main, "mpijob --name one --image x -np 2 python t.py", "-np is an option of `hvd-elastic run`"),
        (
            submit.main,
            "one --image x --num-proc 2 -- python t.py",
            "--num-proc is an option of `hvd-elastic run`; here",
        ),
        (
            submit.main,
            "one --image x --min-np=2 -- true",
            "--min-np is an option of `hvd-elastic run`; here it is --min-w",
        ),
        (changes.scale, "one -np 2", "-np is an option of `hvd-elastic run`; write NAME N"),
        (changes.wait, "one -np 2", "-np is an option of `hvd-elastic run`; for a namespace write -n NAME"),
        (get.main, "-np 2", "-np is an option of `hvd-elastic run`; for a namespace write -n NAME"),
        (manifest.main, "hpa -np 2", "-np is an option of `hvd-elastic run`; here, give --min-np and --max-np"),
        (attach.main, "one -np=2 -- ls", "-np is an option of `hvd-elastic run`; for a namespace write -n NAME"),
    ],
)
def test_a_number_of_processes_is_not_read_as_a_namespace(
    main: Callable[[list[str]], int], line: str, told: str
) -> None:
    with pytest.raises(UsageError) as error:
        main(line.split())
    assert str(error.value).startswith(told)


def test_processes_in_the_command_and_glued_namespaces_stay(capsys: pytest.CaptureFixture[str]) -> None:
    line = "one --kind mpijob --image x --dry-run -nprod -o name -- hvd-elastic run -np 2 python t.py"
    assert submit.main(line.split()) == 0
    assert "mpijob" in capsys.readouterr().out


@pytest.mark.parametrize(("main", "name"), [(get.main, "get"), (get.all_jobs, "list")])
def test_the_help_of_get_and_list_names_the_command(
    main: Callable[[list[str]], int], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: hvd-elastic {name} ")
