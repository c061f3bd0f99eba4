"""Reads objects of a cluster: the state of a job, what happened to it, or whether one could run.

Belongs here: states and findings; pure. Never here: requests, tables.
"""
