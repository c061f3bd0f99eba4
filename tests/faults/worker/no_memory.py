"""Two operations that Horovod joins, in a buffer for which there is no memory."""

import os

os.environ["HOROVOD_FUSION_THRESHOLD"] = str(1 << 46)

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

hvd.init()
begun = [hvd.allreduce_async(torch.ones(10), name=f"{number}") for number in range(2)]
try:
    hvd.synchronize(begun[0])
except HorovodInternalError:
    print("the operation has failed", flush=True)
os._exit(0)
