"""What is known of a cluster, and which of its pods are hosts. Pure."""
