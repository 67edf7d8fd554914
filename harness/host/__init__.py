"""This machine: what it can do, what is done to it, and how that is undone."""
