"""What several folders of the daemon use: the interface of sources, threads, back-off, metrics, health.

Belongs here: small parts that do not depend on one source, on a cluster or on a place to publish to.

Never here: code that only one folder needs.
"""
