"""One job as a value, and what its words mean.

Belongs here: names, numbers and options of a job, checked. Never here: objects of a cluster, files, requests.
"""
