"""What the daemon does in a cluster besides publishing: it reports pods that run and are not
hosts, deletes failed pods, and ends itself.

Belongs here: actions, and the decisions about them.

Never here: which pods are hosts, and where hosts are published.
"""
