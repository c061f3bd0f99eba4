"""A job that sleeps for want of hosts: waiting for hosts, and the worker pods meanwhile.

Belongs here: the waiting itself, and requests to the API server about the number of worker pods.

Never here: when a job sleeps or wakes, and when pods are let go: see ``rules/suspend``.
"""
