"""Automatic mutants: operators change single places of Kafka's classes, as PIT's do."""
