"""How a running cluster is asked: Kafka's protocol, its MBeans, its logs, and what its programs print."""
