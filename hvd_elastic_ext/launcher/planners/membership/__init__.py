"""What trains: hosts, agents and processes, the next world, and the newest commit before it forms.

Belongs here: the published list, agents and processes that are started and ended, seats, the next world and its ranks,
the newest commit and its transfers, too few hosts, hosts of an earlier launcher.

Never here: which processes should be in the world. That is decided in ``rules/membership``.
"""
