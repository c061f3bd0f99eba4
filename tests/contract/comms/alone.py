"""``alone.py LIBRARY…``: one process as a world of one of each library, one after the other."""

import sys

import horovod.torch as hvd
import torch

from hvd_elastic_ext.worker.comms import current_world

hvd.init()
for library in sys.argv[1:]:
    comms = current_world.init(library)
    data, numbers = torch.arange(9).to(torch.uint8), torch.ones(3)
    comms.broadcast(data, root=0, name="alone")
    comms.sum(numbers, name="alone")
    place = comms.rank(), comms.size(), comms.local_rank(), data.tolist() == list(range(9))
    print(library, *place, numbers.tolist(), comms.max(-7, name="a"), comms.start_max(2**62 + 1, name="b").wait())
