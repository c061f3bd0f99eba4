"""A job that sleeps because hosts are missing: the wait for hosts, and its worker pods meanwhile.

Belongs here: the waiting itself, and requests to the API server about the number of worker pods.

Never here: when a job sleeps or wakes, and when pods are released: see ``rules/suspend``.
"""
