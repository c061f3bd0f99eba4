"""One process that runs one job: its loop, its sockets, its output.

Belongs here: what joins the driver to the outside: questions of ``hvd-elastic hosts``, output of training processes,
addresses of this machine.

Never here: decisions about hosts, processes or checkpoints.
"""
