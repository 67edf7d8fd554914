"""Runs cases, decides what they come out as, and remembers it."""
