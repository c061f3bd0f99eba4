"""Runs as the supervisor of a training process that was forked from the template, in place of that fork's parent.

::

    python -P -m hvd_elastic_ext.agent.slots.adopting PID DOWN UP GRACE_S
"""

from __future__ import annotations

import os
import sys

from hvd_elastic_ext.agent.slots.supervisor import SupervisorPipes, report_defect, supervise_started

if __name__ == "__main__":
    pid, down, up = map(int, sys.argv[1:4])
    try:
        supervise_started(pid, SupervisorPipes(down, up, 1, 2), grace_s=float(sys.argv[4]))
    except BaseException as error:  # noqa: BLE001 - the main loop of a process
        report_defect(up, error)
    finally:
        os._exit(0)
