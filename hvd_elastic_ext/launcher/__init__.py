"""Starts, watches and ends one job on the published hosts.

A room holds one capability: each of its modules has, from top to bottom, what it is for, its slice of the state, the
pure decision ``(now, facts, limits) → (decision, reason)``, what an event does to it, and its planner. What another
room needs of it is a function of that module. The rooms that decide (``membership``, ``custody``, ``health``,
``checkpoints``, ``departures``, ``scaling``, ``reporting``) read no clock, no file and no socket: they change
:class:`~hvd_elastic_ext.launcher.driver.job.JobState`, and request actions there. ``driver`` asks them in order, and
does the actions. The other folders are the edges: commands, sockets, files, programs; and of ``scaling`` the modules
``signals`` and ``scalers``.

Never here: the daemon, the worker and the agent. The launcher starts their programs by name.
"""
