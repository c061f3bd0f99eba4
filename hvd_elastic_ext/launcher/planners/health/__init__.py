"""Watches over hosts and processes that run.

Belongs here: silent hosts and processes, a lost link of the launcher, stalled and slow processes, scripts without an
elastic loop, cooldowns.

Never here: what a strike costs: that is ``rules/health``.
"""
