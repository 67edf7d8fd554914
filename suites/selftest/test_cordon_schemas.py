"""Reads requests from a real request log (4.4.0), and finds what is wrong with versions and fields."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.kafka.broker_log import BrokerLog
from harness.kafka.metadata_records import read_records
from harness.kafka.request_log import Exchange, RequestLog
from harness.kafka.tool_answers import read_config_docs, read_directories
from suites.kip_1066.schemas import (
    RECORDS_BEFORE,
    RECORDS_WITH_CORDONS,
    check_describe_requests,
    check_fields,
    check_record_versions,
    cordoned_in,
)
from suites.selftest.expected_errors import breaks_promise

BEAT = '[2026-11-27 14:50:00,{ms}] DEBUG Completed request:{{"isForwarded":false,"requestHeader":{{"requestApiKey":63,"requestApiVersion":2,"correlationId":7,"clientId":"2","requestApiKeyName":"BROKER_HEARTBEAT"}},"request":{{"brokerId":2,"brokerEpoch":15,"wantFence":false,"wantShutDown":false,"cordonedLogDirs":["7rqgwv_8SQSoIwtFgxJ5Fg"]}},"response":{{"throttleTimeMs":0,"errorCode":0,"isCaughtUp":true,"isFenced":false,"shouldShutDown":false}},"totalTimeMs":57.2}} (kafka.request.logger)'  # noqa: E501
FETCH = '[2026-11-27 14:50:00,300] DEBUG Completed request:{"requestHeader":{"requestApiKey":1,"requestApiVersion":18,"requestApiKeyName":"FETCH"},"request":null,"response":null} (kafka.request.logger)'  # noqa: E501
DESCRIBED = '[2026-11-27 14:50:00,400] DEBUG Completed request:{{"requestHeader":{{"requestApiKey":35,"requestApiVersion":{version},"requestApiKeyName":"DESCRIBE_LOG_DIRS"}},"request":{{"topics":null{more}}},"response":{{"throttleTimeMs":0,"errorCode":0,"results":[{{"errorCode":0,"logDir":"/a","topics":[]{flag}}}]}}}} (kafka.request.logger)'  # noqa: E501
SINCE = datetime(2026, 11, 27, 14, 50, 0, 200_000, tzinfo=UTC)


def request_log(folder: Path, *lines: str) -> RequestLog:
    """A request log with these lines, read from :data:`SINCE` on."""
    path = folder / "server.log"
    path.write_text("\n".join((*lines, "")))
    return RequestLog(log=BrokerLog(path), since=SINCE)


def test_the_requests_of_a_name_are_read_from_a_time_on(tmp_path: Path) -> None:
    log = request_log(tmp_path, BEAT.format(ms=100), BEAT.format(ms=200), FETCH, BEAT.format(ms=300)[:200])
    [beat] = log.of("BROKER_HEARTBEAT")
    assert (beat.version, cordoned_in(beat)) == (2, frozenset({"7rqgwv_8SQSoIwtFgxJ5Fg"}))
    assert beat.response["isCaughtUp"] is True
    assert log.of("BROKER_REGISTRATION") == []


def test_another_version_or_field_breaks_the_promise() -> None:
    at = datetime(2026, 11, 27, tzinfo=UTC)
    sent = Exchange(at=at, name="BROKER_HEARTBEAT", version=2, request={"brokerId": 1}, response={"errorCode": 0})
    check_fields([sent], [1, 2], request={"brokerId"}, response={"errorCode"})
    with breaks_promise("no such request"):
        check_fields([], [2])
    with breaks_promise("BROKER_HEARTBEAT was sent in v2 instead of \\[1\\]"):
        check_fields([sent], [1])
    with breaks_promise("has the fields \\['brokerId'\\] instead of"):
        check_fields([sent], [2], request={"brokerId", "offlineLogDirs"})
    with breaks_promise("has the fields \\['errorCode'\\] instead of"):
        check_fields([sent], [2], response={"throttleTimeMs"})


@pytest.mark.parametrize(
    ("version", "more", "flag", "wrong"),
    [
        (5, "", ',"isCordoned":false', None),
        (5, "", "", "log dirs without isCordoned"),
        (4, "", ',"isCordoned":false', "was sent in v4"),
        (5, ',"cordoned":true', ',"isCordoned":false', r"has the fields \['topics', 'cordoned'\]"),
    ],
)
def test_describe_log_dirs_has_one_new_field(
    tmp_path: Path, version: int, more: str, flag: str, wrong: str | None
) -> None:
    log = request_log(tmp_path, DESCRIBED.format(version=version, more=more, flag=flag))
    if wrong is None:
        check_describe_requests(log)
    else:
        with breaks_promise(wrong):
            check_describe_requests(log)


def test_the_records_of_registrations_and_cordons_have_their_versions() -> None:
    registered = (
        '| offset: 0 payload: {"type":"REGISTER_BROKER_RECORD","version":%d,'
        '"data":{"brokerId":3,"brokerEpoch":5,"rack":null}}'
    )
    changed = '| offset: 0 payload: {"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":%d,"data":{"brokerId":3,%s}}'
    fenced, cordoned = '"fenced":-1', '"cordonedLogDirs":["a"]'
    check_record_versions(read_directories(read_records([registered % 3, changed % (0, fenced)])), RECORDS_BEFORE)
    right = [registered % 4, changed % (0, fenced), changed % (3, cordoned)]
    check_record_versions(read_directories(read_records(right)), RECORDS_WITH_CORDONS)
    for wrong in (right[:2], [registered % 3, *right], [*right, changed % (2, cordoned)]):
        with breaks_promise("the metadata has records of versions"):
            check_record_versions(read_directories(read_records(wrong)), RECORDS_WITH_CORDONS)


def test_the_hint_is_the_first_word_on_a_partition() -> None:
    lines = [
        '| offset: 0 payload: {"type":"TOPIC_RECORD","version":0,"data":{"topicId":"t","name":"orders"}}',
        '| offset: 0 payload: {"type":"PARTITION_RECORD","version":2,"data":{"topicId":"t","partitionId":0,'
        '"replicas":[1,2],"directories":["a","b"]}}',
        '| offset: 0 payload: {"type":"PARTITION_CHANGE_RECORD","version":2,"data":{"topicId":"t","partitionId":0,'
        '"directories":["c","b"]}}',
    ]
    seen = read_directories(read_records(lines))
    assert (seen.hinted, seen.assigned) == ({("orders", 0): {1: "a", 2: "b"}}, {("orders", 0): {1: "c", 2: "b"}})


def test_the_documentation_of_configs_is_read_by_row() -> None:
    lines = [
        '<h4><a id="cordoned.log.dirs"></a><a href="#x">cordoned.log.dirs</a></h4>',
        "<p>A comma-separated list.</p>",
        "<tr><th>Type:</th><td>list</td></tr>",
        '<tr><th>Default:</th><td>""</td></tr>',
        '<h4><a id="log.dir"></a></h4>',
        "<tr><th>Type:</th><td>string</td></tr>",
    ]
    assert read_config_docs(lines) == {
        "cordoned.log.dirs": {"Type": "list", "Default": '""'},
        "log.dir": {"Type": "string"},
    }
