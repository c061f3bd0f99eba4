"""Access to an API server: lists, watches, single reads and writes.

Belongs here: which request comes next, how its answer is read, how it fails. The requests
themselves: ``hvd_elastic_ext/io/kube``.

Never here: which pods are hosts.
"""
