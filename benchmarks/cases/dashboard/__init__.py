"""The page of a large job: its server, its time in a browser, and its cost for the launcher."""
