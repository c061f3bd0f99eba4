"""Real training processes with a link and a door, against a small agent and launcher within the test."""
