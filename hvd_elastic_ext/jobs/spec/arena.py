"""Which parts of arena's command line are accepted here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from hvd_elastic_ext.core.errors import UsageError

ARENA_KINDS: Final = {
    "etjob": "trainingjob",
    "et": "trainingjob",
    "mpijob": "mpijob",
    "mpi": "mpijob",
    "mj": "mpijob",
    "horovodjob": "mpijob",
    "horovod": "mpijob",
    "hj": "mpijob",
    "pytorchjob": "pytorchjob",
    "pytorch": "pytorchjob",
}
"""arena's names of kinds: the first word of its command line."""
OTHER_KINDS: Final = frozenset({
    "tfjob", "tf", "volcanojob", "vj", "rayjob", "rj", "sparkjob", "spark", "deepspeedjob", "dp",
})  # fmt: skip
"""arena's kinds that do not exist here."""
_NODE: Final = "a folder of the node would be open to the job; put the data on a claim: --data CLAIM:PATH"
_APART: Final = "pods share nothing with their node"
_SYNC: Final = "name a folder, or git+https://HOST/REPOSITORY@REVISION, with --sync; the command starts among its files"
_GIT: Final = "the image of the job fetches with its own git (--sync git+https://…); put git into --image"
_BOARD: Final = "start it beside the job, on the claim with the logs"
_REGISTRY: Final = "register the model by a call in the training script"
_ARENAS: Final = "it is about arena itself; leave it out"
REFUSED: Final[Mapping[str, str]] = {
    "--data-dir": _NODE,
    "--dataDir": _NODE,
    "--rdma": "name the device with --device, and add IPC_LOCK to the manifest (-o yaml): clusters differ in both",
    "--sync-mode": _SYNC,
    "--syncMode": _SYNC,
    "--sync-source": _SYNC,
    "--syncSource": _SYNC,
    "--sync-image": _GIT,
    "--syncImage": _GIT,
    "--config-file": "make a ConfigMap, and add it to the manifest (-o yaml)",
    "--tensorboard": _BOARD,
    "--tensorboard-image": _BOARD,
    "--tensorboardImage": _BOARD,
    "--logdir": f"it is TensorBoard's: {_BOARD}",
    "--hostNetwork": "two pods on one node would share ssh's port",
    "--hostPID": _APART,
    "--hostIPC": _APART,
    "--gputopology": "it needs hostNetwork and Alibaba's own GPUs; choose nodes with --selector or --scheduler",
    "--ssh-port": "workers listen at 2222, in their own network; leave it out",
    "--model-name": _REGISTRY,
    "--model-source": _REGISTRY,
    "--config": "write --kubeconfig FILE",
    "--arena-namespace": _ARENAS,
    "--loglevel": _ARENAS,
    "--pprof": _ARENAS,
    "--trace": _ARENAS,
    "--helm-binary": _ARENAS,
}
"""arena's options that are refused, and what to do instead."""
QUEUE: Final = "arena's switch is for kube-queue; name a queue: --queue kueue/NAME or --queue volcano/NAME"
TAKEN_SWITCHES: Final = frozenset({"--gang", "--spot-instance", "--mounts-on-launcher"})
SWITCHES: Final = TAKEN_SWITCHES | {
    "--gputopology", "--helm-binary", "--hostIPC", "--hostNetwork", "--hostPID", "--pprof", "--queue", "--rdma",
    "--tensorboard", "--trace",
}  # fmt: skip
"""Options of ``arena submit`` without a value; all others have one."""
_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def switched(words: Iterable[str]) -> list[str]:
    """Replace ``--gang=true`` by ``--gang``, and drop ``--gang=false``, also for a switch that is refused."""
    found = []
    for word in words:
        option, equals, value = word.partition("=")
        if not (option in SWITCHES and equals and value in _TRUE | _FALSE):
            found.append(word)
        elif value in _TRUE:
            found.append(option)
    return found


def is_off(word: str) -> bool:
    """Whether a switch is set to its default."""
    option, _, value = word.partition("=")
    return option in SWITCHES and value in _FALSE


def refuse(words: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a refused option of arena; the error says what to do instead."""
    for word, following in zip_longest(words, words[1:], fillvalue="-"):
        option, equals, _ = word.partition("=")
        if option in REFUSED:
            raise UsageError(f"{option} is arena's, and not taken: {REFUSED[option]}")
        if option == "--queue" and not equals and following.startswith("-"):
            raise UsageError(f"--queue is arena's, and not taken: {QUEUE}")
