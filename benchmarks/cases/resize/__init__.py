"""Starts of jobs, changes of their hosts, and the launcher of a large job."""
