"""Code that comes with a job is the same in every pod."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cluster.making import commit_of, packed_code
from hvd_elastic_ext.jobs.rendering.code import ARCHIVE, CHECKSUM, COMMIT, FETCH, FITS, KEY, SENT, WAIT, take_words
from hvd_elastic_ext.jobs.rendering.objects import main_container, templates
from hvd_elastic_ext.jobs.rendering.render import needed, render
from hvd_elastic_ext.jobs.spec.job import KINDS
from hvd_elastic_ext.jobs.spec.source import Revision
from tests.support.jobs import example, one
from tests.support.manifests import Body, documents, of_operator


def objects(kind: str, archive: bytes, **others: str) -> tuple[Body, ...]:
    job = example(kind, sync="here", **others)
    return render(job, {name: documents(f"{name}.yaml") for name in needed(job)}, archive=archive).objects


def launcher(made: tuple[Body, ...]) -> Body:
    return main_container(next(each for body in made for role, each in templates(body) if role == "launcher"))


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
    if kind != "pytorchjob":
        assert "--code=/code" in launcher(made)["args"]
    if kind != "statefulset":
        assert of_operator(made[-1]) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_the_container_unpacks_what_was_packed_and_nothing_else(tmp_path: Path, damaged: bool) -> None:
    source, mounted, place = tmp_path / "source", tmp_path / "mounted", tmp_path / "a place; exit 3"
    for folder in (source, mounted, place):
        folder.mkdir()
    (source / "train.py").write_text("x = 1\n")
    archive = packed_code(source)
    made = objects("mpijob", archive, working_dir=str(place))
    (mounted / KEY).write_bytes(archive[:-1] if damaged else archive)
    pod = next(each for body in made for role, each in templates(body) if role == "worker")
    command = [word.replace(ARCHIVE, str(mounted)) for word in pod["spec"]["initContainers"][0]["command"]]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode == 0) == (not damaged), done.stderr
    assert [path.name for path in place.iterdir()] == ([] if damaged else ["train.py"])


LARGE = os.urandom(FITS + 1)


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "pytorchjob"])
def test_what_fits_no_config_map_is_waited_for_by_the_launcher_and_handed_on(kind: str) -> None:
    made = objects(kind, LARGE)
    assert [each for each in made if each["kind"] == "ConfigMap"] == []
    pods = dict(each for body in made for each in templates(body))
    assert pods["launcher"]["spec"]["initContainers"][0]["name"] == SENT
    assert [each["name"] for each in pods["worker"]["spec"].get("initContainers", [])] == []
    for pod in pods.values():
        assert main_container(pod)["workingDir"] == "/code"
        assert {"name": "code", "emptyDir": {}} in pod["spec"]["volumes"]
    words = launcher(made)["args"]
    assert words[words.index("--code=/code") + 1] == "--send-code"
    if kind != "statefulset":
        assert of_operator(made[-1]) == []


def test_a_kind_without_a_launcher_cannot_hand_on_code() -> None:
    with pytest.raises(UsageError, match=r"a PyTorchJob has no launcher that hands on more; use pvc:CLAIM/FOLDER"):
        objects("pytorchjob", LARGE)


@pytest.mark.parametrize("damaged", [False, True])
def test_code_that_is_sent_is_unpacked_if_it_is_what_was_packed(tmp_path: Path, damaged: bool) -> None:
    source, place = tmp_path / "source", tmp_path / "a place; exit 3"
    for folder in (source, place):
        folder.mkdir()
    (source / "train.py").write_text("x = 1\n")
    (source / ".env").write_text("x = 1\n")
    archive = packed_code(source)
    made = objects("mpijob", LARGE, working_dir=str(place))
    (pod,) = (each for body in made for role, each in templates(body) if role == "launcher")
    wait = pod["spec"]["initContainers"][0]["command"]
    wait[-1] = take_words(str(place), archive)[-1]
    given = bytes(reversed(archive)) if damaged else archive + b"more"
    done = subprocess.run(take_words(str(place), archive), input=given, capture_output=True, check=False)
    assert (done.returncode == 0) == (not damaged), done.stderr
    assert names(place) == []
    if not damaged:
        ended = subprocess.run(wait, capture_output=True, check=True, timeout=60, text=True)
        assert ended.stdout == "waits for its code; to send it: hvd-elastic sync digits FOLDER\n"
        assert names(place) == [".env", "train.py"]


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != ".hvd-elastic")


def test_code_that_is_sent_twice_at_once_or_broken_off_is_never_half_there_when_its_pod_goes_on(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    for folder in (source, place):
        folder.mkdir()
    (source / "train.py").write_bytes(os.urandom(100_000))
    archive = packed_code(source)
    words = take_words(str(place), archive)
    assert subprocess.run(words, input=archive[:-1], capture_output=True, check=False).returncode
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as late:
        assert late.stdin is not None
        late.stdin.write(archive[:50_000])
        subprocess.run(words, input=archive, capture_output=True, check=True)
        wait = ["sh", "-ec", WAIT, "sh", str(place), "digits", words[-1]]
        subprocess.run(wait, capture_output=True, check=True, timeout=60)
        before = (place / "train.py").stat()
        late.communicate(archive[50_000:])
        assert late.returncode == 0
    assert (place / "train.py").stat() == before
    assert (place / "train.py").read_bytes() == (source / "train.py").read_bytes()
    subprocess.run(wait, capture_output=True, check=True, timeout=60)
    assert names(place) == ["train.py"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_a_claim_is_where_every_command_starts(kind: str) -> None:
    job = example(kind, sync="pvc:sources/me/digits", volumes={"/data": "sources"})
    made = render(job, {name: documents(f"{name}.yaml") for name in needed(job)}).objects
    for pod in (each for body in made for _, each in templates(body)):
        assert {"name": "code", "persistentVolumeClaim": {"claimName": "sources"}} in pod["spec"]["volumes"]
        place = {"name": "code", "mountPath": "/code", "readOnly": True, "subPath": "me/digits"}
        assert place in main_container(pod)["volumeMounts"]
        assert main_container(pod)["workingDir"] == "/code"
    if kind != "pytorchjob":
        assert "--code=/code" in launcher(made)["args"]
    if kind != "statefulset":
        assert of_operator(made[-1]) == []


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Revision, list[str]]:
    """One with a branch and a tag, and its commits, the oldest first."""
    folder, commits = tmp_path / "repository", []
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

    def git(*words: str) -> str:
        env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null"}
        ended = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, env=env)
        return ended.stdout.strip()

    folder.mkdir()
    git("init", "-q", "-b", "main")
    for number in range(2):
        (folder / "train.py").write_text(f"x = {number}\n")
        git("add", ".")
        git("commit", "-q", "-m", str(number))
        commits.append(git("rev-parse", "HEAD"))
    git("tag", "-a", "v1", "-m", "first", commits[0])
    git("branch", "feature/x", commits[0])
    return Revision(f"file://{folder}", "main"), commits


def test_a_revision_is_the_commit_that_it_means_now(repository: tuple[Revision, list[str]]) -> None:
    main, commits = repository
    for name, commit in (("main", 1), ("HEAD", 1), ("v1", 0), ("feature/x", 0), (commits[0], 0)):
        assert commit_of(main._replace(revision=name)).revision == commits[commit]
    with pytest.raises(UsageError, match="there is no branch or tag mian; for a commit, give its whole id"):
        commit_of(main._replace(revision="mian"))
    with pytest.raises(UsageError, match="git fails: fatal: '/nowhere' does not appear"):
        commit_of(Revision("file:///nowhere", "main"))


def fetching(commit: Revision, place: Path, **others: str) -> subprocess.CompletedProcess[bytes]:
    """Run what a worker pod runs first, as Kubernetes would."""
    job = example("mpijob", working_dir=str(place), sync=f"git+{commit.url}", **others)
    made = render(job, {name: documents(f"{name}.yaml") for name in needed(job)}, commit=commit).objects
    pod = next(each for body in made for role, each in templates(body) if role == "worker")
    assert pod["metadata"]["annotations"][COMMIT] == commit.revision
    command = [word.replace("$$", "$") for word in pod["spec"]["initContainers"][0]["command"]]
    return subprocess.run(command, capture_output=True, check=False)


def test_every_pod_gets_the_files_of_the_commit_also_again_and_not_the_repository(
    repository: tuple[Revision, list[str]], tmp_path: Path
) -> None:
    (main, commits), place = repository, tmp_path / "a place; exit 3"
    place.mkdir()
    for _ in range(2):
        done = fetching(main._replace(revision=commits[0]), place)
        assert done.returncode == 0, done.stderr
        assert {path.name: path.read_text() for path in place.iterdir()} == {"train.py": "x = 0\n"}
        (place / "train.py").write_text("changed by a container that ended\n")
    assert fetching(main._replace(revision="0" * 40), place).returncode != 0


@pytest.mark.parametrize(("asked", "given"), [("h.example:8443", True), ("h.example", False), ("evil.example", False)])
def test_credentials_are_for_the_server_that_was_named_and_no_other(tmp_path: Path, asked: str, given: bool) -> None:
    script = FETCH.partition("git fetch")[0] + "git credential fill"
    env = {**os.environ, "GIT_USERNAME": "me", "GIT_PASSWORD": "hunter2", "GIT_CONFIG_GLOBAL": "/dev/null"}
    words = ["sh", "-ec", script, "sh", str(tmp_path), "https://h.example:8443/o/r", "0" * 40]
    wanted = f"protocol=https\nhost={asked}\n\n"
    done = subprocess.run(words, input=wanted, capture_output=True, text=True, check=False, env=env)
    assert ("password=hunter2\n" in done.stdout) == given, done.stderr


def test_credentials_of_a_repository_stand_in_no_command() -> None:
    job = example("mpijob", sync="git+https://h/r", sync_secret="mine")
    made = render(
        job, {name: documents(f"{name}.yaml") for name in needed(job)}, commit=Revision("https://h/r", "0" * 40)
    ).objects
    for body in made:
        for _, pod in templates(body):
            first = pod["spec"]["initContainers"][0]
            *secrets, protocol = first["env"]
            assert [each["valueFrom"]["secretKeyRef"]["name"] for each in secrets] == ["mine", "mine"]
            assert protocol == {"name": "GIT_ALLOW_PROTOCOL", "value": "https"}
    assert of_operator(made[-1]) == []
