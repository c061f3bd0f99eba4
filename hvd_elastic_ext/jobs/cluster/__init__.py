"""What asks an API server about jobs, and tells it.

Belongs here: requests, logs, the keys that are made for a job. Never here: tables, options, what objects look like.
"""
