"""A stand-in for a torchrun agent. Each number on its standard input starts that many workers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

WORKER = """
import json, os, sys
from hvd_elastic_ext.worker.commits.inherited import commit_descriptors
found = commit_descriptors(os.environ)
size = os.fstat(found[0]).st_size
os.truncate(found[0], size + 1)
sys.stdout.write(json.dumps({"inodes": [os.fstat(one).st_ino for one in found], "runs_before": size}))
"""

for line in sys.stdin:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={**os.environ, "TORCHELASTIC_RUN_ID": "job", "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for rank in range(int(line))
    ]
    print("workers", json.dumps([json.loads(worker.communicate()[0]) for worker in workers]), flush=True)
