"""What runs, what came of it, and what is remembered of it."""
