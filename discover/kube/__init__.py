"""Access to an API server: lists, watches, single reads and writes.

Belongs here: which request comes next, how its answer is read, how it fails. Only ``client`` imports ``kubernetes``.

Never here: which pods are hosts.
"""
