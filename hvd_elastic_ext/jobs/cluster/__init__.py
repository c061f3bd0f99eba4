"""Requests to an API server about jobs, and what a job needs from this machine.

Belongs here: a job made (``making``), looked at and changed (``changes``), its output (``logs``), a command in its pod
(``terminal``), whether it could run (``preflight``).

Never here: tables, options, what objects look like.
"""
