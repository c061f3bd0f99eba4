"""One process that runs one job: its loop, its folder, its sockets, its output.

Belongs here: what joins the driver to the outside: files of the job, questions of ``hvd-elastic hosts``, output of
training processes, addresses of this machine, what is saved for the next launcher.

Never here: decisions about hosts, processes or checkpoints.
"""
