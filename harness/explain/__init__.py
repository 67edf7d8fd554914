"""Explains what happened to a record, and where it is now."""
