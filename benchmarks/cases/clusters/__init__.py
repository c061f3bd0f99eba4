"""Commands about jobs on a cluster, beside an API server."""
