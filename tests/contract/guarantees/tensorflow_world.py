"""Run by each rank of a real world: ``python -m tests.contract.guarantees.tensorflow_world DIRECTORY``.

What it saw of each kind of State goes to ``DIRECTORY/RANK.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd  # first: our own modules take the world of this one
import tensorflow as tf

import hvd_elastic_ext.tensorflow as elastic
from hvd_elastic_ext.worker.comms.horovod_tensorflow import HorovodComms
from tests.contract.guarantees.consumed import BATCH, COUNT, consumed
from tests.contract.guarantees.tensorflow_subjects import EACH, OfTensorFlow


def newest(make: Any) -> dict[str, Any]:
    """Peers were lost while the last rank had committed once more than the others."""
    subject = OfTensorFlow(make, seed=hvd.rank())
    state = subject.state
    state.sync()
    subject.train()
    state.save()
    subject.train()
    if hvd.rank() == hvd.size() - 1:
        state.save()
    state.restore()
    before = subject.look()
    state.on_reset()
    state.sync()
    return {"before": before, "after": subject.look(), "rank": getattr(state, "rank", hvd.rank())}


def again(make: Any) -> int:
    """Bytes that a sync sends of a State that is the same on all ranks."""
    subject = OfTensorFlow(make)
    subject.state.sync()
    subject.train()
    subject.state.save()
    sent = [0]
    plain, horovods = HorovodComms.broadcast, hvd.elastic.broadcast_variables

    def ours(self: Any, data: Any, **options: Any) -> None:
        sent[0] += data.numel()
        plain(self, data, **options)

    def theirs(variables: Any, **options: Any) -> None:
        sent[0] += sum(variable.numpy().nbytes for variable in variables)
        horovods(variables, **options)

    with (
        mock.patch.object(HorovodComms, "broadcast", ours),
        mock.patch.object(hvd.elastic, "broadcast_variables", theirs),
    ):
        subject.state.sync()
    return sent[0]


def epoch(make: Any) -> list[int]:
    """What this rank consumed of one epoch."""
    data = elastic.dataset(tf.data.Dataset.range(COUNT), BATCH)
    subject = OfTensorFlow(make, data=data)
    return consumed(subject.state, lambda: (batch.numpy().tolist() for batch in data))


def main(directory: str) -> None:
    hvd.init()
    seen: dict[str, Any] = {
        "newest": {kind: newest(make) for kind, make in EACH.items()},
        "again": {kind: again(make) for kind, make in EACH.items() if not kind.startswith("unmodified")},
        "consumed": {kind: epoch(make) for kind, make in EACH.items() if not kind.startswith("unmodified")},
    }
    Path(directory, f"{hvd.rank()}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
