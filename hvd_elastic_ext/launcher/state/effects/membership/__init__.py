"""Effects on what trains.

Belongs here: the published list, what an agent runs when it joins, hosts of an earlier launcher, transfers of commits
and the decision on the newest one, the journal line of a change of the world.

Never here: which processes should be in the world: that is ``rules/membership``.
"""
