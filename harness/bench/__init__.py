"""Measures the speed of the harness itself."""
