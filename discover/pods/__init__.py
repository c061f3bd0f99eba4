"""The pods and nodes of a job: what is kept of them, and how a pod becomes a host with a name and slots. Pure.

Belongs here: objects as the daemon keeps them, operators and their labels.

Never here: requests, and whether a pod is a host now (``verdicts``).
"""
