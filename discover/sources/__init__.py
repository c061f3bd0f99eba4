"""Where hosts are seen: one module a source.

Belongs here: the pods of a cluster, a file, a fixed list, and whether a new host can be reached.

Never here: which pods are hosts (``selection``), and how a cluster is asked (``kube``).
"""
