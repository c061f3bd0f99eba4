"""Jobs that start, jobs whose hosts change, and the launcher of a large job."""
