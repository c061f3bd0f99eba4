"""Watches over hosts and processes that run.

Belongs here: a lost network of the launcher, processes that do not go on, scripts without an elastic loop.

Never here: who is blamed for an end: see ``rules/health`` and ``state/blame``.
"""
