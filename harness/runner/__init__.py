"""Runs cases, decides their verdicts, and stores the results."""
