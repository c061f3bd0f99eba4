"""What the end of a process means, and which hosts and slots may not work for now.

Belongs here: causes, ends of a job, the ledger of failures, processes that are stalled or slow, requests of
``hvd-elastic hosts``.

Never here: which processes are in the world.
"""
