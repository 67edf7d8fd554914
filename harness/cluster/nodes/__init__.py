"""Runs nodes as local processes or as containers."""
