"""Each step has many operations, each longer than the one before. In three steps the last rank is killed meanwhile."""

import os
import signal

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

STEPS = 20
LOST_AT = {5: 5, 10: 4, 15: 3}
"""By step, the size of the world whose last rank is lost."""

hvd.init()
torch.set_num_threads(1)
state = elastic.TorchState(count=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    while state.count < STEPS:
        begun = [
            (
                number,
                hvd.allreduce_async(torch.full((1000 * (1 + number),), float(number)), op=hvd.Sum, name=f"{number}"),
            )
            for number in range(24)
        ]
        if LOST_AT.get(state.count) == hvd.size() == hvd.rank() + 1:
            while not hvd.poll(begun[0][1]):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        for number, handle in begun:
            if not (hvd.synchronize(handle) == number * hvd.size()).all():
                raise ValueError(f"the sum of {number} over {hvd.size()} ranks is another number")
        state.count += 1
        state.commit()


train(state)
print(f"done {state.count} of {hvd.size()}", flush=True)
