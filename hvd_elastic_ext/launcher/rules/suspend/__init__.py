"""When a job sleeps and wakes, and when its worker pods are released. Pure.

Belongs here: those two decisions, and how to set the number of pods of each kind of workload.

Never here: requests to the API server.
"""
