"""Where hosts are published, and how each place is kept up to date."""
