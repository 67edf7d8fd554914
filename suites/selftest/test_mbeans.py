"""A real broker's MBeans can be read while another client holds a connection to the agent's port."""

import socket

import pytest

from harness.cluster.cluster import Cluster
from harness.host.ports import HOST

pytestmark = pytest.mark.cluster

# The beginning of a Kafka client's first request: length, ApiVersions (18), version, correlation id.
NOT_HTTP = bytes.fromhex("00000020 0012 0003 00000001")


def test_whoever_connects_and_says_nothing_that_is_http_is_not_waited_for(lone_broker: Cluster) -> None:
    mbeans = lone_broker.brokers[0].mbeans
    assert mbeans is not None
    with socket.create_connection((HOST, mbeans.port)) as silent, socket.create_connection((HOST, mbeans.port)) as half:
        half.sendall(NOT_HTTP)
        assert mbeans.describe_broker().offline_log_dirs == 0
        silent.sendall(NOT_HTTP)
        assert mbeans.describe_broker().offline_log_dirs == 0


def test_it_is_known_which_there_are(lone_broker: Cluster) -> None:
    mbeans = lone_broker.brokers[0].mbeans
    assert mbeans is not None
    name = "type=LogManager,name=OfflineLogDirectoryCount"
    assert [mbeans.has(f"{domain}:{name}") for domain in ("kafka.log", "kafka.server")] == [True, False]
