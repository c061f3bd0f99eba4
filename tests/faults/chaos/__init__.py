"""Random faults in real jobs on this machine, and the check that no commit is lost while an agent holds it."""
