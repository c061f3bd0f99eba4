"""What all parts of the daemon share: the port of sources, threads, alarms, metrics, health.

Belongs here: small parts that know nothing of sources, clusters and publications.

Never here: anything that only one folder needs.
"""
