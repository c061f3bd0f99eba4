"""Alibaba's SDK for elastic training, as far as it is published, where the real one is not installed.

    import kubeai.elastic as kubeai  # or kubeai, or kubeai.handler

    hvd.init()
    kubeai.init()
    ...
    if not kubeai.check_alive():  # before each batch
        if hvd.rank() == 0:
            save_checkpoint()
        sys.exit(-1)

The import hook serves this folder under the name ``kubeai``, and asks for it last, so that the real package, or a
module of the user's own by that name, goes first.

Standard library only: scripts of any framework load this.
"""

from __future__ import annotations

from hvd_elastic_ext.worker.process import standby

__all__ = ["check_alive", "init"]


def init() -> None:
    """Begin to hear whether this process has to leave. Under ``hvd-elastic run`` ``hvd.init()`` has done that."""
    standby.current().link.start()


def check_alive() -> bool:
    """False once this process has been told to leave, as when its host is about to be reclaimed.

    A script that ends then with exit code -1 has been preempted and has not failed. Always True where nobody
    can tell: outside of ``hvd-elastic run``. Cheap enough for every batch.
    """
    return standby.current().alive()
