"""The agent's connection to the launcher, and the data sent over it.

Belongs here: the channel and its backlog, the claim of one agent for each host and job, facts of the host.

Never here: training processes.
"""
