"""A journal, told to people: rows, tables and pictures.

Belongs here: pure functions from journal records to a story, and the ways to
show it. Never here: anything that changes a job.
"""
