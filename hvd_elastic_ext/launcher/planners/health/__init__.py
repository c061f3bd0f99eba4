"""Watches over hosts and processes that run.

Belongs here: silence, a lost link of the launcher, processes that stand still or are slow, scripts without an elastic
loop, and who is blamed for a failure.

Never here: what a strike costs: that is ``rules/health``.
"""
