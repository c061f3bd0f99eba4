"""What the daemon writes to a cluster: it deletes failed pods, and reports pods that run and are not hosts.

Belongs here: these actions, and the decisions about them.

Never here: which pods are hosts, and where hosts are published.
"""
