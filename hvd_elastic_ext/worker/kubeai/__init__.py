"""Alibaba's SDK for elastic training, as far as it is published, where the real one is not installed.

    import kubeai.elastic as kubeai  # or kubeai, or kubeai.handler

    hvd.init()
    kubeai.init()
    ...
    if not kubeai.check_alive():  # before each batch
        if hvd.rank() == 0:
            save_checkpoint()
        sys.exit(-1)

The import hook offers this folder as ``kubeai`` last: the real package, or a module of the user, goes first.

Belongs here: functions of that SDK. Never here: anything beyond the standard library, because scripts of any framework
load this.
"""

from __future__ import annotations

from hvd_elastic_ext.worker.process import standby

__all__ = ["check_alive", "init"]


def init() -> None:
    """Start to receive orders to leave. Under ``hvd-elastic run`` ``hvd.init()`` has done so already."""
    standby.current().link.start()


def check_alive() -> bool:
    """Return False if this process must leave, for example because its host is about to be reclaimed.

    A script that then ends with exit code -1 counts as preempted, not as failed. Always True outside of
    ``hvd-elastic run``. Cheap enough for every batch.
    """
    return standby.current().alive()
