"""Tries whether a Kafka build has what the suites depend on beyond Kafka's public interfaces (``jbod probe``)."""
