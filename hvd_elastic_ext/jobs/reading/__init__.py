"""What the objects of a cluster say about a job, or about whether one can run.

Belongs here: states and findings; pure. Never here: requests, tables.
"""
