"""The commands ``run``, ``hosts``, ``status``, ``stop``, ``logs``, ``events --replay`` and ``doctor``, and the parser
of Horovod that ``run`` extends.

Belongs here: options, messages for the user, exit codes.

Never here: anything that a running job needs.
"""
