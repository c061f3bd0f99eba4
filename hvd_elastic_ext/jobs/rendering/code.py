"""The code of a job (``--sync``): in an immutable ConfigMap, a commit of a git repository, or a folder of a claim. Each
pod gets it before anything else runs there. Code that is too large for a ConfigMap is sent to the launcher's pod, whose
launcher sends it to new hosts. Pure."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER, Body, literal, main_container, merged, templates
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import Claim, Revision

PLACE: Final = "/code"
"""Where the code is, unless the job has a working directory."""
ARCHIVE, KEY = "/run/hvd-code", "code.tar.gz"
CHECKSUM: Final = "hvd-elastic-ext/code-sha256"
VOLUME, PACKED = "code", "code-archive"
SENT: Final = "code-sent"
"""The container that waits for code that is sent to its pod."""
FITS: Final = 900_000
"""Bytes of code that fit into a ConfigMap beside its metadata: the server's limit is 1 MiB."""

WAIT: Final = """\
echo "waits for its code; to send it: hvd-elastic sync $2 FOLDER"
until test -e "$1/.hvd-elastic/$3"; do sleep 1; done
read -r new < "$1/.hvd-elastic/$3"
cd "$1/.hvd-elastic/$new"
for each in * .[!.]* ..?*; do
  if test -e "$each"; then mv -- "$each" "$1/"; fi
done
"""
"""Waits in a new pod until the code with checksum ``$3`` has come, and moves it into ``$1``. Only this script moves
files there, so no file is incomplete when this container ends with all programs in it."""
TAKE: Final = """\
mkdir -p "$1/.hvd-elastic/new-$$"
cd "$1/.hvd-elastic"
head -c "$2" > "new-$$.tar.gz"
echo "$3  new-$$.tar.gz" | sha256sum -c - >&2
tar -xzf "new-$$.tar.gz" -C "new-$$"
rm "new-$$.tar.gz"
echo "new-$$" > "new-$$.name"
ln "new-$$.name" "$3" || test -e "$3"
"""
"""Unpacks ``$2`` bytes of input with checksum ``$3`` beside ``$1``. If several do so at once, the first one counts."""

COMMIT: Final = "hvd-elastic-ext/code-commit"
FETCH: Final = """\
export GIT_DIR="$1/.git" GIT_WORK_TREE="$1" GIT_TERMINAL_PROMPT=0
git init -q
server="${2#*://}"
server="${2%%://*}://${server%%/*}"
git config "credential.$server.helper" \\
  '!printf "username=%s\\npassword=%s\\n" "$GIT_USERNAME" "$GIT_PASSWORD"; :'
git fetch -q --depth 1 -- "$2" "$3" || git fetch -q -- "$2"
git checkout -q --force --detach "$3"
test "$(git rev-parse HEAD)" = "$3"
rm -rf "$GIT_DIR"
"""
"""Fetches commit ``$3`` of ``$2`` into ``$1``. Not every server sends a commit alone. Credentials are used for the
server of ``$2`` only, not after a redirect. The repository itself is removed, so that its ignore rules do not apply to
the files."""


def place_of(job: Job) -> str:
    """Return the folder of the code in every pod."""
    return job.working_dir or PLACE


def add(objects: Sequence[Body], job: Job, archive: bytes) -> list[Body]:
    """Change pods in place, and return the objects to create before them. Pods that start later get the same files: the
    ConfigMap is immutable, and each pod checks the files that it unpacks."""
    name, checksum = f"{job.name}-code", hashlib.sha256(archive).hexdigest()
    place = shlex.quote(place_of(job))
    unpack = f'echo "{checksum}  {ARCHIVE}/{KEY}" | sha256sum -c - && tar -xzf {ARCHIVE}/{KEY} -C {place}'
    mounted = {"name": PACKED, "mountPath": ARCHIVE, "readOnly": True}
    for body in objects:
        for _, template in templates(body):
            merged(template["metadata"], "annotations", {CHECKSUM: checksum})
            template["spec"].setdefault("volumes", []).append({"name": PACKED, "configMap": {"name": name}})
            _first(template, job, {"command": ["sh", "-c", unpack]}, [mounted])
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {JOB_LABEL: job.name}, "annotations": {CHECKSUM: checksum}},
            "immutable": True,
            "binaryData": {KEY: base64.b64encode(archive).decode()},
        }
    ]


def add_sent(objects: Sequence[Body], job: Job, archive: bytes) -> None:
    """Change pods in place: the launcher's pod waits for the code, and the launcher sends it to the workers. Raises
    :class:`UsageError` for a kind without a launcher.
    """
    checksum, place = hashlib.sha256(archive).hexdigest(), place_of(job)
    pods = [pod for body in objects for pod in templates(body)]
    if all(role != LAUNCHER for role, _ in pods):
        raise UsageError(
            f"--sync {job.sync}: {len(archive):,} bytes packed, of which a ConfigMap has room for {FITS:,}, and a "
            f"{objects[-1]['kind']} has no launcher that hands on more; use pvc:CLAIM/FOLDER or git+https://…"
        )
    for role, template in pods:
        merged(template["metadata"], "annotations", {CHECKSUM: checksum})
        if role == LAUNCHER:
            command = ["sh", "-ec", WAIT, "sh", place, job.name, checksum]
            _first(template, job, {"command": list(map(literal, command))}, [], name=SENT)
            words = main_container(template)["args"]
            words.insert(words.index(f"--code={place}") + 1, "--send-code")
        else:
            _placed(template, job, {"emptyDir": {}})


def take_words(place: str, archive: bytes) -> list[str]:
    """Return the command to run in the container :data:`SENT`, with the archive as its input."""
    return ["sh", "-ec", TAKE, "sh", place, str(len(archive)), hashlib.sha256(archive).hexdigest()]


def add_claim(objects: Sequence[Body], job: Job, claim: Claim) -> None:
    """Change pods in place: the command starts in a folder of a claim."""
    volume = {"persistentVolumeClaim": {"claimName": claim.name}}
    for body in objects:
        for _, template in templates(body):
            _placed(template, job, volume, readOnly=True, **({"subPath": claim.path} if claim.path else {}))


def add_commit(objects: Sequence[Body], job: Job, wanted: Revision) -> None:
    """Change pods in place: each fetches the commit. Credentials come from a Secret, never in a command."""
    command = ["sh", "-ec", FETCH, "sh", place_of(job), wanted.url, wanted.revision]
    env: list[Body] = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": job.sync_secret, "key": key}}}
        for variable, key in (("GIT_USERNAME", "username"), ("GIT_PASSWORD", "password"))
        if job.sync_secret
    ]
    env += [{"name": "GIT_ALLOW_PROTOCOL", "value": "https"}] if env else []
    for body in objects:
        for _, template in templates(body):
            merged(template["metadata"], "annotations", {COMMIT: wanted.revision})
            _first(template, job, {"command": list(map(literal, command)), **({"env": env} if env else {})}, [])


def _first(template: Body, job: Job, what: Body, mounts: Sequence[Body], *, name: str = "code") -> None:
    """Add a first container, and a folder in which the main container starts."""
    spec, container = template["spec"], main_container(template)
    place = _placed(template, job, {"emptyDir": {}})
    of_image: Body = {field: container[field] for field in ("image", "imagePullPolicy") if field in container}
    first = {
        "name": name,
        **of_image,
        **what,
        "securityContext": dict(container["securityContext"]),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [place, *mounts],
    }
    spec["initContainers"] = [first, *spec.get("initContainers", [])]


def _placed(template: Body, job: Job, volume: Body, **how: object) -> Body:
    """Let the main container start in a volume; return the mount."""
    spec, container = template["spec"], main_container(template)
    place = {"name": VOLUME, "mountPath": place_of(job), **how}
    container["workingDir"] = place_of(job)
    container.setdefault("volumeMounts", []).append(dict(place))
    spec.setdefault("volumes", []).append({"name": VOLUME, **volume})
    return place
