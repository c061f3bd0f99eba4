"""Which pods are hosts now, and which of them are published. Pure.

Belongs here: signals, verdicts, damping of changes. A new signal that a host is about to go needs one row in
``signals``.

Never here: requests, threads, files.
"""
