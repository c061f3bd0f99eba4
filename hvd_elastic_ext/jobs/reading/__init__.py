"""Reads objects of a cluster: the state of a job, or whether a job can run.

Belongs here: states and findings; pure. Never here: requests, tables.
"""
