"""Makes a job on a cluster: chooses its kind, gathers what this machine gives, creates its objects, sends its code.

The objects come from the templates in ``docker/manifests`` (``rendering`` changes them for the job). This machine gives
the code of ``--sync`` (packed from a folder, or as the commit that a branch or tag names now) and an ssh key. Objects
are created with the job last, which then owns the others: after a failure none remains. Code that is too large for a
ConfigMap is sent to the launcher's pod, which waits for it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.commands import leading_variables
from hvd_elastic_ext.core.errors import ElasticError, Permanent, UsageError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.install import files
from hvd_elastic_ext.io import git
from hvd_elastic_ext.io.code.archive import packed as archive_of
from hvd_elastic_ext.io.code.checksum import MAX_BYTES
from hvd_elastic_ext.io.code.files import names_of
from hvd_elastic_ext.io.config_file import documents
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster import terminal
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, Patience, WrongState, plural
from hvd_elastic_ext.jobs.cluster.changes import LOOKS_S, root_of
from hvd_elastic_ext.jobs.reading.states import FINISHED, init_state, pod, state_of
from hvd_elastic_ext.jobs.rendering.code import CHECKSUM, SENT, take_words
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER
from hvd_elastic_ext.jobs.rendering.render import BY, MANAGED, Rendered, needed, owned, render, secret, selector
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import Revision, claim_of, revision_of, without_user

# --- its kind


SIDECARS: Final = (1, 29)
"""The first version of Kubernetes with native sidecars."""


def kind_for(cluster: Cluster, command: Sequence[str], *, say: Callable[[str], object] = lambda line: None) -> str:
    """Choose the kind of object for a job: one that the cluster has, and that this account may create. A torchrun
    command becomes a kind without a launcher if there is one. ``say`` takes a line about a kind that is passed over."""
    _, program = leading_variables(command)
    of_torchrun = program[:1] == ("torchrun",)
    operators = [kind for kind in ROOTS.values() if not kind.built_in and (kind.has_launcher or of_torchrun)]
    for kind in sorted(operators, key=lambda kind: kind.has_launcher):
        if not cluster.has(kind.api_version, kind.plural):
            continue
        if cluster.may("create", kind.group, kind.plural):
            return kind.older_manifest if kind.older_manifest and version(cluster) < SIDECARS else kind.manifest
        say(f"your account may not create {kind.plural}, which this cluster has: another kind is taken")
    return next(kind.manifest for kind in ROOTS.values() if kind.built_in)


def no_such_kind(cluster: Cluster, body: Mapping[str, Any]) -> str:
    """Return what to do about a kind that the cluster does not have; "" if it has it."""
    if cluster.has(body["apiVersion"], plural(body["kind"])):
        return ""
    return f"the cluster has no {body['kind']} ({body['apiVersion']}): install its operator, or take another --kind"


def version(cluster: Cluster) -> tuple[int, int]:
    """Of Kubernetes: major and minor."""
    answer = cluster.ask("GET", "/version")
    numbers = [int("".join(filter(str.isdigit, str(answer.get(name)))) or 0) for name in ("major", "minor")]
    return numbers[0], numbers[1]


# --- its objects, from the templates


FOLDER: Final = "docker/manifests"


@functools.cache
def template(name: str) -> Sequence[dict[str, Any]]:
    """Return the objects of one manifest. Callers must not change them."""
    return documents((files.find(FOLDER) / f"{name}.yaml").read_text(encoding="utf-8"), where=f"{name}.yaml")


def rendered_of(job: Job) -> Rendered:
    """Return the objects of a job, without its ssh key. Raises :class:`UsageError`."""
    wanted = revision_of(job.sync)
    commit = None if wanted is None else commit_of(wanted)
    folder = bool(job.sync) and commit is None and claim_of(job.sync) is None
    archive = packed_code(Path(job.sync)) if folder else b""
    return render(job, {name: template(name) for name in needed(job)}, archive=archive, commit=commit)


def with_key(rendered: Rendered, job: Job) -> tuple[dict[str, Any], ...]:
    """Return all objects of a job, with a new ssh key if it needs one."""
    if not rendered.key:
        return rendered.objects
    key, public = new_key(job.name)
    return (secret(rendered.key, job.name, key=key, public=public), *rendered.objects)


# --- its code: packed here


def packed_code(folder: Path) -> bytes:
    """Return the files of ``folder`` as a ``tar.gz``, without files that git ignores. Raises :class:`UsageError`."""
    names = names_of("--sync", folder)
    whole = sum((folder / name).stat().st_size for name in names)
    if not names or whole > MAX_BYTES:
        why = f"{whole:,} bytes; {MAX_BYTES >> 20} MiB can be sent" if names else "it has no files"
        raise UsageError(
            f"--sync {folder}: {why}; add what is large to .gitignore, or put it on a claim: --sync pvc:CLAIM/FOLDER"
        )
    try:
        return archive_of(folder, names)
    except OSError as error:
        raise UsageError(f"--sync {folder}: {error}") from None


# --- its code: a commit


_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?", re.ASCII)


def commit_of(wanted: Revision) -> Revision:
    """Return the source with a commit id, so that every pod, also a later one, gets the same commit. Raises
    :class:`UsageError`."""
    if _COMMIT.fullmatch(wanted.revision):
        return wanted
    name = wanted.revision
    # As git itself decides between a tag and a branch of one name; ``^{}`` is the commit of an annotated tag.
    names = (name, f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}")
    commits = _commits_of(wanted, names)
    commit = next((commits[each] for each in names if each in commits), None)
    if commit is None:
        raise UsageError(
            f"--sync git+{wanted.url}@{name}: there is no branch or tag {name}; for a commit, give its whole id"
        )
    return wanted._replace(revision=commit)


def _commits_of(wanted: Revision, names: tuple[str, ...]) -> dict[str, str]:
    """Return the commit of each reference."""
    try:
        with git.clean_repository() as clean:
            listed = git.run(["ls-remote", "--", wanted.url, *names], clean=clean)
    except FileNotFoundError:
        raise UsageError(
            f"git is needed to find out what {wanted.revision} is, and is not installed; give a commit id"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"--sync git+{wanted.url}: no answer within {git.TIMEOUT_S:g} s") from None
    except git.GitFails as error:
        problem = without_user(" ".join(str(error).split()))[:300]
        raise UsageError(f"--sync git+{wanted.url}: git fails: {problem}") from None
    rows = (line.split("\t") for line in listed.decode("utf-8", "replace").splitlines())
    return {row[1]: row[0] for row in rows if len(row) == 2 and _COMMIT.fullmatch(row[0])}


# --- its ssh key


def new_key(job: str) -> tuple[str, str]:
    """Return a new private key and its public key in base64; neither stays on this machine. Raises :class:`UsageError`
    without ``ssh-keygen``."""
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-key-") as folder:
        path = Path(folder) / "id"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", job, "-f", str(path)]
        try:
            ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
        except FileNotFoundError:
            raise UsageError(
                "ssh-keygen is needed to make the job's key, and is not installed; install it, or give --ssh-secret"
            ) from None
        except subprocess.TimeoutExpired:
            raise Permanent("ssh-keygen takes longer than 30 s") from None
        if ended.returncode:
            raise Permanent(
                f"ssh-keygen ended with {ended.returncode}: {ended.stderr.decode('utf-8', 'replace').strip()}"
            )
        private, public = path.read_bytes(), path.with_name("id.pub").read_bytes()
    return base64.b64encode(private).decode(), base64.b64encode(public).decode()


# --- created: either all objects exist and belong to the job, or none remains


def try_out(cluster: Cluster, objects: Sequence[Body]) -> list[Body]:
    """Return the objects as the server would create them (dry run). Raises :class:`UsageError` for a kind that it does
    not have."""
    _check_kind(cluster, objects[-1])
    tried: list[Body] = []
    for body in objects:
        tried.append(try_one(cluster, body, tried))
    return tried


def try_one(cluster: Cluster, body: Body, tried: Sequence[Body]) -> Body:
    """Return an object as the server would create it (dry run), after those in ``tried``.

    The binding to a Role is refused (404) where that Role is only tried, and so does not exist: the server compares the
    rights in it with the user's own. It has done so with the Role itself, and the right to make bindings came before.
    """
    try:
        return cluster.create(body, dry=True)
    except ApiError as error:
        role = (body.get("roleRef") or {}).get("name")
        role_was_tried = any((each.get("kind"), each["metadata"]["name"]) == ("Role", role) for each in tried)
        if error.reason is not Reason.NOT_FOUND or body["kind"] != "RoleBinding" or not role_was_tried:
            raise
        return body


def _check_kind(cluster: Cluster, root: Body) -> None:
    if problem := no_such_kind(cluster, root):
        raise WrongState(problem)


def create(cluster: Cluster, objects: Sequence[Body]) -> Body:
    """Create all objects, the job last, and make it their owner. Returns the job. After a failure, removes the objects
    that it created.

    Replaces objects without an owner that an earlier attempt for this job left. Raises :class:`UsageError` for a job
    that exists already, and for objects of others that have a needed name.
    """
    *others, root = objects
    _check_kind(cluster, root)
    if cluster.read(cluster.path_of(root)) is not None:
        name = root["metadata"]["name"]
        raise WrongState(
            f"{root['kind']} {name} already exists in namespace {cluster.namespace}; hvd-elastic delete {name}, "
            "or take another NAME"
        )
    made: list[Body] = []
    asked: list[Body] = []
    try:
        for body in others:
            made += _ensured(cluster, body)
        asked = [root]
        job = cluster.create(root)
        made.append(root)
        give(cluster, others, {**root, "metadata": job["metadata"]})
    except (ElasticError, KeyboardInterrupt) as error:
        # Without an answer the job may exist, and the objects that it needs are deleted here. So it is deleted, too.
        unsure = [] if (isinstance(error, ApiError) and error.answered) or root in made else asked
        for body in (*unsure, *reversed(made)):
            with contextlib.suppress(ElasticError):
                cluster.delete(cluster.path_of(body))
        raise
    return job


def _ensured(cluster: Cluster, body: Body) -> list[Body]:
    """Create ``body``, and return it in a list. Replaces an object that an earlier attempt for this job left."""
    try:
        cluster.create(body)
    except ApiError as error:
        if error.reason is not Reason.CONFLICT:
            raise
        existing = cluster.read(cluster.path_of(body)) or {}
        if not is_left_over(existing, body):
            raise WrongState(
                f"{body['kind']} {body['metadata']['name']} already exists and does not belong to this job; "
                "take another NAME"
            ) from None
        cluster.delete(cluster.path_of(body))
        cluster.create(body)
    return [body]


def is_left_over(there: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether an object was created for this job and never got an owner."""
    metadata = there.get("metadata") or {}
    labels = metadata.get("labels") or {}
    ours = {name: body["metadata"]["labels"][name] for name in (JOB_LABEL, MANAGED)}
    return not metadata.get("ownerReferences") and ours.items() <= labels.items() and ours[MANAGED] == BY


def give(cluster: Cluster, objects: Sequence[Body], root: Body) -> None:
    """Make the job the owner of objects, so that they are deleted with it."""
    patch = {"metadata": {"ownerReferences": owned(root)}}
    for body in objects:
        cluster.ask("PATCH", cluster.path_of(body), patch)


# --- its code: sent to the launcher's pod


MAX_SHOWN: Final = 300


class NotSent(Permanent):
    """The code was not sent: the launcher's pod still waits for it."""


def send(
    cluster: Cluster,
    name: str,
    archive: bytes,
    *,
    report: Callable[[str], object] = lambda line: None,
    sleep: Callable[[float], None] = time.sleep,
    patience: Patience | None = None,
) -> bool:
    """Wait until a launcher's pod waits for code, and send it ``archive``. Returns False if the pod already has the
    code.

    ``report`` takes a line about what is waited for, at each look. Raises :class:`NotSent`, and :class:`UsageError` if
    that pod waits for other code, or for none.
    """
    patience = patience or Patience(say=report, sleep=sleep)
    while True:
        body = patience.of(lambda: _newest(cluster, name))
        waits = "the launcher's pod is not made yet" if body is None else _waits(body)
        if body is not None and not waits:
            break
        if state_of(patience.of(lambda: root_of(cluster, name)))[0] in FINISHED:
            raise UsageError(f"{name} has ended")
        report(f"waiting to send the code: {waits}")
        sleep(LOOKS_S)
    if init_state(body, SENT).get("terminated"):
        return False
    _check_archive(body, archive)
    _give(cluster, body, archive)
    return True


def _newest(cluster: Cluster, name: str) -> Body | None:
    found = cluster.listed("v1", "pods", selector(name, role=LAUNCHER))
    living = [each for each in found if pod(each).phase in ("Pending", "Running")]
    return max(living, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)


def _waits(body: Body) -> str:
    """Return why the code cannot be sent to the pod yet; "" if it can be, or was sent. Raises :class:`UsageError`."""
    if all(each["name"] != SENT for each in body["spec"].get("initContainers") or []):
        raise UsageError(
            f"pod {body['metadata']['name']} does not wait for code: its job was submitted without any to send"
        )
    state = init_state(body, SENT)
    ended = state.get("terminated")
    if state.get("running") or (ended and not ended.get("exitCode")):
        return ""
    return f"{body['metadata']['name']}: {pod(body).why or pod(body).phase}"


def _check_archive(body: Body, archive: bytes) -> None:
    wanted = str((body["metadata"].get("annotations") or {}).get(CHECKSUM))
    checksum = hashlib.sha256(archive).hexdigest()
    if checksum != wanted:
        raise UsageError(
            f"pod {body['metadata']['name']} waits for the files that were submitted ({wanted[:8]}…), and the folder "
            f"now has others ({checksum[:8]}…); bring them back, or delete the job and submit it again"
        )


def _give(cluster: Cluster, body: Body, archive: bytes) -> None:
    name, output = body["metadata"]["name"], bytearray()

    def write(channel: int, data: bytes) -> None:
        if channel == pods.STDERR:
            output.extend(data)

    first = next(each for each in body["spec"]["initContainers"] if each["name"] == SENT)
    place = first["volumeMounts"][0]["mountPath"]
    # A regular file can always be read: nothing waits for a writer, as with a pipe.
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        words = take_words(place, archive)
        try:
            code = terminal.run(cluster, body, words, source=file.fileno(), write=write, container=SENT)
        except terminal.NotAttached as error:
            raise NotSent(str(error)) from None
    if code:
        why = " ".join(output.decode("utf-8", "replace").split())[:MAX_SHOWN]
        raise NotSent(f"pod {name}: unpacking ended with {code}: {why}; the image needs sh, head, tar and sha256sum")
