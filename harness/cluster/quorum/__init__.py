"""The two metadata modes of a cluster: ZooKeeper and KRaft."""
