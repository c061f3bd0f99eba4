"""Effects on the health of hosts and processes.

Belongs here: hosts that are cut off, whom a fault counts against, a pause of the launcher itself.

Never here: what a strike costs: that is ``rules/health``.
"""
