"""What the metadata mode decides for a cluster's nodes: ZooKeeper or KRaft."""
