"""One rank ends while the others wait for it: ``broken.py raise|kill``."""

import os
import signal
import sys

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.comms import current_world

elastic.init()
print("training", flush=True)
if elastic.rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("a mistake in the script")
    os.kill(os.getpid(), signal.SIGKILL)
current_world.joined().max(1, name="a_step")
print("went on", flush=True)
