"""What the suites lean on beyond Kafka's public interfaces, as data, and a build tried against it (``jbod probe``)."""
