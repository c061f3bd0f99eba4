"""A journal for people: rows, tables and pictures.

Belongs here: pure functions from journal records to a report, and ways to show it. Never here: anything that changes
a job.
"""
