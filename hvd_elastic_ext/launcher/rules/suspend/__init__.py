"""When a job sleeps and wakes, and when its worker pods are let go. Pure.

Belongs here: those two decisions, and how each kind of workload is told its number of pods.

Never here: requests to the API server.
"""
