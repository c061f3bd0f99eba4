"""Real training processes with a link and a rendezvous proxy. A small agent and launcher run within the test."""
