"""The known objects of a cluster, and which of its pods are hosts. Pure.

Belongs here: objects as the daemon keeps them, signals, verdicts, damping of changes, explanations. A new signal that
a host is about to go needs one row in ``signal_table``.

Never here: requests, threads, files.
"""
