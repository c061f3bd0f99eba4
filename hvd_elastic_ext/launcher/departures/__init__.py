"""Hosts and ranks that leave on purpose: notices, ranks that end with exit code 0, and the end of the job."""
