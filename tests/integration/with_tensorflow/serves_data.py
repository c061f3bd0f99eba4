"""``serves_data.py``: a server of tf.data's service. Prints its address, and serves until its standard input ends."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer()
_, _, address = dispatcher.target.partition("://")
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
print(dispatcher.target, flush=True)
sys.stdin.read()
