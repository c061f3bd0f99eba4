"""Decisions of the launcher, one folder a subject: ``(now, facts, limits) -> (decision, reason)``.

Belongs here: pure functions and the values that they take and give.

Never here: sockets, processes, threads, files, clocks, and anything of the launcher but other rules.
"""
