"""Kafka builds: which one, where from, what differs between versions, and the programs that come with it."""
