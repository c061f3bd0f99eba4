"""Requests to an API server about jobs.

Belongs here: requests, logs, the keys that are made for a job. Never here: tables, options, what objects look like.
"""
