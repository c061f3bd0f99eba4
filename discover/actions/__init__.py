"""What the daemon does in a cluster besides publishing: it writes Events, deletes failed pods and ends itself.

Belongs here: actions, and the pure decisions about them (``event_policy``, ``reap_policy``).

Never here: which pods are hosts, and where hosts are published.
"""
