"""Commands about jobs on a cluster.

Belongs here: options and output; what only one command asks a cluster for is in the module of that command. A new
command is a function here, and a row in the table of ``hvd_elastic_ext/cli.py``.

Never here: what several commands decide or request.
"""
