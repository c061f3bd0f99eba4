"""Doors to the machine that more than one part needs, one third-party package each.

Belongs here: thin adapters without decisions (watch a file, fetch a URL).
Never here: anything only one of daemon, launcher and worker uses; anything
that decides.
"""
