"""Doors to the machine that more than one part needs, one third-party package each.

Belongs here: thin adapters without decisions: a watched file, a configuration file, a file that lines are appended to,
a slow reader, credentials of a cluster, trees of processes, calls that may take long.

Never here: anything that decides, and anything of ours but ``core``.
"""
