"""Decisions of the launcher, one folder a subject: ``(now, facts, limits) -> (decision, reason)``.

Belongs here: pure functions, the values that they take and give, and a few small objects that change only by calls.

Never here: sockets, processes, threads, files, clocks, and anything of the launcher but other rules.
"""
