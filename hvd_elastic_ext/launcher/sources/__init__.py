"""Where the launcher learns of hosts.

Belongs here: a class for each kind of source, and the newest accepted list of hosts.

Never here: what happens with hosts.
"""
