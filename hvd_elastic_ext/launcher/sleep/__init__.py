"""A job that cannot go on sleeps: no port, no agent and no process, until there are hosts again.

``sleep_policy`` and ``release_policy`` decide, pure: when the job wakes, when its worker pods are released and
requested again. ``replicas`` sets their number in the cluster.
"""
