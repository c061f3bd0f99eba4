"""Early stopping, as many scripts do it: ``leaver.py HOW [ours|plain]``. Every rank leaves its process within the
training function, at step 6: by ``exit``, ``quit`` or ``os``; with ``one``, only rank 0 does so.

``return``: all return. ``late``, ``late-os``: rank 1 leaves two seconds later. ``term``: rank 0 gets a SIGTERM, for
which the script has a handler, before all leave. ``changed``: what is not committed yet is changed before that.
``plain``: with nothing but Horovod.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

HOW, PLAIN = sys.argv[1], sys.argv[2:] == ["plain"]
STOP_AT = 6

torch.set_num_threads(1)
if PLAIN:
    import horovod.torch as hvd

    hvd.init()
    loop, state_class, rank, wrap = hvd.elastic.run, hvd.elastic.TorchState, hvd.rank, hvd.DistributedOptimizer
else:
    import hvd_elastic_ext.torch as elastic

    elastic.init()
    loop, state_class, rank, wrap = elastic.run, elastic.TorchState, elastic.rank, elastic.wrap

torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = state_class(model=model, optimizer=optimizer, step=0, extra=0)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def leave() -> None:
    if HOW == "exit":
        sys.exit(0)
    elif HOW == "quit":
        raise SystemExit
    elif HOW == "os":
        os._exit(0)
    elif HOW == "one" and rank() == 0:
        sys.exit(0)
    elif HOW in ("late", "late-os"):
        time.sleep(2.0 * rank())
        (sys.exit if HOW == "late" else os._exit)(0)
    elif HOW == "term":
        signal.signal(signal.SIGTERM, lambda *_: None)
        if rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(0)
    elif HOW == "changed":
        state.extra = 17
        sys.exit(0)


@loop
def train(state) -> None:
    say(f"begins at {state.step}")
    while state.step < 40:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if state.step >= STOP_AT:
            if HOW == "return":
                return
            leave()
        time.sleep(0.02)


train(state)
say(f"the script ends at {state.step}")
