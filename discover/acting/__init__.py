"""What the daemon does in a cluster: Events on the job, pods deleted that would never come back."""
