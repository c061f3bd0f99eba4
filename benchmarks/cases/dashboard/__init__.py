"""The page of a large job: its server, what a browser sees of it, and what it costs the launcher."""
