"""Sends code to the launcher's pod of a job, by the API server's exec."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.jobs.cluster import terminal
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster
from hvd_elastic_ext.jobs.cluster.changes import LOOKS_S, root_of
from hvd_elastic_ext.jobs.cluster.patience import Patience
from hvd_elastic_ext.jobs.reading.states import FINISHED, init_state, pod, state_of
from hvd_elastic_ext.jobs.rendering.code import CHECKSUM, SENT, take_words
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER
from hvd_elastic_ext.jobs.rendering.render import selector

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
    _check(body, archive)
    _give(cluster, body, archive)
    return True


def _newest(cluster: Cluster, name: str) -> Body | None:
    found = cluster.listed("v1", "pods", selector(name, role=LAUNCHER))
    living = [each for each in found if pod(each).phase in ("Pending", "Running")]
    return max(living, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)


def _waits(body: Body) -> str:
    """Return why the code cannot be sent to the pod yet; "" if it can be, or was sent. Raises :class:`UsageError`."""
    if all(each["name"] != SENT for each in body["spec"].get("initContainers") or []):
        raise UsageError(f"pod {body['metadata']['name']} waits for no code: its job was submitted with none to send")
    state = init_state(body, SENT)
    ended = state.get("terminated")
    if state.get("running") or (ended and not ended.get("exitCode")):
        return ""
    return f"{body['metadata']['name']}: {pod(body).why or pod(body).phase}"


def _check(body: Body, archive: bytes) -> None:
    wanted = str((body["metadata"].get("annotations") or {}).get(CHECKSUM))
    found = hashlib.sha256(archive).hexdigest()
    if found != wanted:
        raise UsageError(
            f"pod {body['metadata']['name']} waits for the files that were submitted ({wanted[:8]}…), and the folder "
            f"has others ({found[:8]}…) by now; bring them back, or delete the job and submit it again"
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
