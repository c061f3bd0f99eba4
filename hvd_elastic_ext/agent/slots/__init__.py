"""One slot: its commit memory, its training process, and their connections with the agent.

Belongs here: starting and ending a training process, its output, its link, its rendezvous proxy; what the slots of a
host share of these (keys of a world, barriers before one).

Never here: the launcher.

::

    slot ─┬─ commit_memory
          ├─ process ───── supervisor     (a process of its own)
          └─ worker_link ─ rendezvous
"""
