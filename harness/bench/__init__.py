"""Measures the harness's own speed."""
