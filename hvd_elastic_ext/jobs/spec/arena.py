"""What of arena's command line is taken here, and what is not."""

from __future__ import annotations

from typing import Final

ARENA_KINDS: Final = {
    "etjob": "trainingjob",
    "et": "trainingjob",
    "mpijob": "mpijob",
    "mpi": "mpijob",
    "horovodjob": "mpijob",
    "horovod": "mpijob",
    "pytorchjob": "pytorchjob",
    "pytorch": "pytorchjob",
}
"""What arena calls a kind: the first word of a line of its."""
REFUSED: Final = {
    "--data-dir": "a folder of the node would be open to the job; put the data on a claim: --data CLAIM:PATH",
    "--dataDir": "a folder of the node would be open to the job; put the data on a claim: --data CLAIM:PATH",
    "--rdma": "name the device with your own manifest (-o yaml): resources and IPC_LOCK differ from cluster to cluster",
    "--sync-mode": "name a folder, or git+https://HOST/REPOSITORY@REVISION, with --sync",
    "--sync-source": "name a folder, or git+https://HOST/REPOSITORY@REVISION, with --sync",
    "--config-file": "make a ConfigMap, and add it to the manifest (-o yaml)",
    "--tensorboard": "start it beside the job, on the claim with the logs",
    "--hostNetwork": "two pods on one node would share ssh's port",
    "--hostPID": "pods share nothing with their node",
    "--hostIPC": "pods share nothing with their node",
}
"""arena's options that are not taken, and what to do instead."""
