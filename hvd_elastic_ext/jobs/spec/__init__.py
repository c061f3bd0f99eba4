"""One job as a value, and how its options are read.

Belongs here: names, numbers and options of a job, checked. Never here: objects of a cluster, files, requests.
"""
