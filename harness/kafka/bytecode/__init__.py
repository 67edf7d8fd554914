"""Changes classes of a Kafka build."""
