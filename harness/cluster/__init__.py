"""The cluster under test: brokers, topics, log dirs, and the nodes that they run on."""
