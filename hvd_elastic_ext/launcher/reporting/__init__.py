"""What the job says of itself: what it waits for, and its state as values. It decides nothing."""
