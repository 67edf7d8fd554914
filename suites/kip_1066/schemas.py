"""Checks of the versions and fields of requests and metadata records ("API Requests/Responses", "Metadata Records")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.kafka.request_log import Exchange, RequestLog
from harness.kafka.tool_answers import Directories
from harness.waiting import await_until
from suites.checks import check_promised_or_known
from suites.deviations import HEARTBEAT_RENUMBERED, REGISTERED_WITHOUT_CORDONS

RECORDS_WITH_CORDONS = {"REGISTER_BROKER_RECORD": 4, "BROKER_REGISTRATION_CHANGE_RECORD": 3}
"""The KIP's versions, from metadata.version 4.3-IV0 on."""
RECORDS_BEFORE = {"REGISTER_BROKER_RECORD": 3}
"""The versions below 4.3-IV0, where no record of a change has cordons."""


def check_record_versions(seen: Directories, versions: Mapping[str, int]) -> None:
    """The records of registrations, and of changes of cordons, have these versions and no others."""
    should = {kind: frozenset([version]) for kind, version in versions.items()}
    if seen.versions != should:
        raise PromiseBroken(f"the metadata has records of versions {dict(seen.versions)} instead of {should}")


def check_registration_request(cluster: Cluster, requests: RequestLog, broker: Broker) -> None:
    """The broker's BrokerRegistrationRequest is v4 and has its cordoned log dirs; its response has no new field.

    All log dirs of the broker must be cordoned.
    """
    sent = [each for each in requests.of("BROKER_REGISTRATION") if each.request["brokerId"] == broker.id]
    check_fields(sent, [4], response={"throttleTimeMs", "errorCode", "brokerEpoch"})
    check_promised_or_known(
        REGISTERED_WITHOUT_CORDONS,
        cluster,
        {cordoned_in(each) for each in sent},
        promised={all_ids(broker)},
        known={None},
    )


def check_heartbeat_requests(cluster: Cluster, requests: RequestLog, broker: Broker) -> None:
    """The BrokerHeartbeatRequest with the broker's cordoned log dirs is v1; its response has no new field.

    All log dirs of the broker must be cordoned.
    """
    with_cordons = await_until(
        lambda: [
            each
            for each in requests.of("BROKER_HEARTBEAT")
            if each.request["brokerId"] == broker.id and cordoned_in(each) == all_ids(broker)
        ],
        timeout_s=timeouts.REQUEST_S,  # a request is logged after its response
        what=f"a heartbeat of {broker} with its cordoned log dirs",
        failure=PromiseBroken,
    )
    response = {"throttleTimeMs", "errorCode", "isCaughtUp", "isFenced", "shouldShutDown"}
    check_fields(with_cordons, [1, 2], response=response)
    versions = {each.version for each in with_cordons}
    check_promised_or_known(HEARTBEAT_RENUMBERED, cluster, versions, promised={1}, known={2})


def check_describe_requests(requests: RequestLog) -> None:
    """DescribeLogDirsRequest v5 has no new field; each log dir in its response has ``isCordoned``."""
    sent = requests.of("DESCRIBE_LOG_DIRS")
    check_fields(sent, [5], request={"topics"})
    for each in sent:
        results = each.response["results"]
        assert isinstance(results, list)
        if not results or any("isCordoned" not in result for result in results):
            raise PromiseBroken(f"DescribeLogDirsResponse v5 has log dirs without isCordoned: {results}")


def check_fields(
    sent: Iterable[Exchange],
    versions: Collection[int],
    *,
    request: Collection[str] = (),
    response: Collection[str] = (),
) -> None:
    """At least one request was sent. Each has one of these versions. Requests and responses have exactly these fields.

    :param request: the fields of the request; empty: any
    :param response: the fields of the response; empty: any
    """
    sent = [*sent]
    if not sent:
        raise PromiseBroken("the node logged no such request")
    for each in sent:
        if each.version not in versions:
            raise PromiseBroken(f"{each.name} was sent in v{each.version} instead of {[*versions]}")
        for fields, should in ((each.request, request), (each.response, response)):
            if should and fields.keys() != {*should}:
                raise PromiseBroken(f"{each.name} v{each.version} has the fields {[*fields]} instead of {[*should]}")


def cordoned_in(each: Exchange) -> frozenset[str] | None:
    """The directory ids of the cordoned log dirs in a request; None if it has no such field."""
    ids = each.request.get("cordonedLogDirs")
    return frozenset(map(str, ids)) if isinstance(ids, list) else None


def all_ids(broker: Broker) -> frozenset[str]:
    """The directory ids of all of a broker's log dirs."""
    return frozenset(log_dir.directory_id() for log_dir in broker.log_dirs)
