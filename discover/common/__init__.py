"""What several folders of the daemon need: the interface of sources, threads, back-off, metrics, health.

Belongs here: small parts that know nothing of sources, clusters and publications.

Never here: anything that only one folder needs.
"""
