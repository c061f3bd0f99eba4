"""What the daemon does in a cluster besides publishing: Events on the job, pods deleted, its own end.

Belongs here: what is done, and the pure decisions about it (``event_policy``, ``reap_policy``).

Never here: which pods are hosts, and where hosts are published.
"""
