"""Random faults against real jobs on this machine, and the check that no commit was lost that somebody held."""
