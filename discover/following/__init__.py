"""What an API server is asked, and what its answers come to."""
