"""Scenarios that hold a thread inside a broker, so that a race goes one way in every run."""
