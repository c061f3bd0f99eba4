"""Real training processes with a link and a rendezvous proxy, and a small agent and launcher within the test."""
