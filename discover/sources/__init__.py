"""Where hosts come from: one module for each source.

Belongs here: the pods of a cluster, a file, a fixed list, and the probe of new hosts.

Never here: which pods are hosts (``selection``), and requests to an API server (``kube``).
"""
