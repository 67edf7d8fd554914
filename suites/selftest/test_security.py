"""``--listener-security``: certificates, passwords, the settings of clients and nodes, and how the option travels."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata import MetadataRequest

from harness.cli.shared import case_again
from harness.cluster.cluster import Cluster, boot
from harness.cluster.nodes.backends import BACKENDS, SECURED_LISTENERS
from harness.cluster.profile import FAST
from harness.cluster.quorum.format_template import scram_options
from harness.cluster.security import ACLS, SUPER_USERS, UNPROTECTED, ClusterSecurity, security_of
from harness.cluster.spec import ClusterSpec
from harness.history.run_folder import RunRecord
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.builds import BuildOptions, BuildRecord, Builds
from harness.kafka.connection import NoAnswer
from harness.kafka.java_client import cordoned_flags
from harness.kafka.security import PLAINTEXT, Bootstrap, ClientSecurity, ListenerSecurity, properties_text
from harness.kafka.tool_answers import describe_log_dirs
from harness.kafka.tools import note_call
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode, Tool
from harness.runner import ledger
from harness.runner.case_result import CaseResult
from harness.runner.run import Run
from harness.runner.scenario import DeclaredCase, Scenario
from harness.runner.set_option import options_of
from harness.runner.subrun import arguments_of
from suites.controllers import quorum_of
from suites.selftest.case_results import case_result
from suites.selftest.fakes import fake

SASL_TLS, TLS = ListenerSecurity.SASL_TLS, ListenerSecurity.TLS


def with_keys(work_dir: Path, listeners: ListenerSecurity = SASL_TLS, node: str = "broker-1") -> ClusterSecurity:
    """The security of a cluster, with the files of its clients and of one node."""
    security = ClusterSecurity(listeners, work_dir)
    security.keys_dir(node).mkdir()
    security.write_client_files()
    security.write_node_files(node)
    return security


def test_plain_text_needs_no_settings(tmp_path: Path) -> None:
    at = Bootstrap(addresses="h:1,h:2")
    assert (at.librdkafka, at.java) == ({"bootstrap.servers": "h:1,h:2"},) * 2
    assert at.of_tool(Tool.TOPICS) == ("--bootstrap-server", "h:1,h:2")
    assert str(at) == "h:1,h:2"
    assert UNPROTECTED.client() == UNPROTECTED.controller_client() == PLAINTEXT
    assert UNPROTECTED.node_settings("broker-1", Mode.KRAFT) == {}
    assert UNPROTECTED.jvm_options("broker-1") == ()
    with_keys(tmp_path, ListenerSecurity.PLAINTEXT)
    assert not list(tmp_path.glob("*.properties"))


@pytest.mark.parametrize("listeners", [TLS, SASL_TLS])
def test_a_tool_finds_the_settings_of_its_user_in_a_file(tmp_path: Path, listeners: ListenerSecurity) -> None:
    security = with_keys(tmp_path, listeners)
    client = security.client("client")
    assert client.tool_config is not None
    assert client.tool_config.read_text() == properties_text(client.java)
    assert ClientSecurity.read(client.tool_config) == client
    options = {
        tool: Bootstrap(addresses="h:1", security=client).of_tool(tool)[2:] for tool in (Tool.TOPICS, Tool.CLUSTER)
    }
    config = str(client.tool_config)
    assert options == {Tool.TOPICS: ("--command-config", config), Tool.CLUSTER: ("--config", config)}
    settings = security.node_settings("broker-1", Mode.KRAFT)
    assert security_of(settings) == security.client("admin")
    assert security_of({}) == PLAINTEXT


def test_only_the_nodes_own_user_reads_its_key_and_its_passwords(tmp_path: Path) -> None:
    """Kafka reads keys as PKCS 8 only."""
    security = with_keys(tmp_path)
    files = [*security.keys_dir("broker-1").iterdir(), *tmp_path.glob("*.properties")]
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert {each.stat().st_uid for each in files} == {os.getuid()}
    assert "-----BEGIN PRIVATE KEY-----" in (security.keys_dir("broker-1") / "node.pem").read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to another user")
def test_the_files_belong_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    security = ClusterSecurity(SASL_TLS, tmp_path)
    security.keys_dir("broker-1").mkdir()
    os.chown(security.keys_dir("broker-1"), 60906, 60906)
    security.write_node_files("broker-1")
    assert {each.stat().st_uid for each in security.keys_dir("broker-1").iterdir()} == {60906}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "broker-1"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_client_trusts_the_nodes_of_its_own_cluster(tmp_path: Path, name: str, is_trusted: bool) -> None:
    """A handshake with the node's certificate, under each name by which clients may ask for it."""
    node = with_keys(tmp_path)
    client = node if is_trusted else ClusterSecurity(SASL_TLS, tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(node.keys_dir("broker-1") / "node.pem")
    ours, theirs = socket.socketpair()
    refused: list[ssl.SSLError] = []

    def serve() -> None:
        try:
            with served.wrap_socket(theirs, server_side=True) as accepted:
                accepted.sendall(b"hello")
        except ssl.SSLError as error:
            refused.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    context = client.client().tls_context()
    assert context is not None
    try:
        if is_trusted:
            with context.wrap_socket(ours, server_hostname=name) as opened:
                assert opened.recv(5) == b"hello"
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                context.wrap_socket(ours, server_hostname=name)
    finally:
        ours.close()
        thread.join()
    assert bool(refused) is not is_trusted


@pytest.mark.parametrize("mode", Mode)
def test_the_properties_of_a_node_have_no_secret(tmp_path: Path, mode: Mode) -> None:
    """They are in the run folder, which people pass on."""
    security = with_keys(tmp_path)
    settings = {**security.node_settings("broker-1", mode), **security.broker_client("broker-1")}
    text = str(settings) + str(security.jvm_options("broker-1"))
    assert [user for user, password in security.passwords.items() if password in text] == []
    assert [user for user, password in security.passwords.items() if password in repr(security.client("client"))] == []
    assert {acl.user for acl in ACLS}.isdisjoint(SUPER_USERS)


def test_the_journal_has_no_password() -> None:
    journal = Journal(None)
    journal.follow_process()
    note_call(Tool.STORAGE, scram_options({"admin": "secret", "client": "hidden"}), 0.0, 0)
    journal.close()
    [event] = journal.events
    assert "SCRAM-SHA-512=[name=client,password=…]" in str(event)
    assert "secret" not in str(event)
    assert "hidden" not in str(event)


# --- the option -------------------------------------------------------------------------------------------------------


def record(listener_security: str = "plaintext") -> RunRecord:
    """A run of a case."""
    return RunRecord(
        case="kip-112/x[kraft]",
        kip=112,
        mode="kraft",
        seed=7,
        started_at="2026-11-20T00:00:00+00:00",
        kafka=BuildRecord(version="4.4.0", source="maven"),
        listener_security=listener_security,
    )


def test_a_recorded_run_is_run_again_with_it(tmp_path: Path) -> None:
    _, options = case_again(record(listener_security="sasl_tls"), tmp_path)
    assert arguments_of(options)[-1] == "--listener-security=sasl_tls"
    _, options = case_again(record(), tmp_path)
    assert not [each for each in arguments_of(options) if "security" in each]
    assert arguments_of(options_of("fast", {}, "tls")) == ["--listener-security=tls"]


def test_it_is_no_ordinary_run(tmp_path: Path) -> None:
    secured = replace(case_result(), run_dir=tmp_path / "x", listener_security="tls")
    ledger.note(tmp_path, secured)
    assert ledger.read(tmp_path) == []
    assert CaseResult.from_json(secured.to_json()).listener_security == "tls"
    assert "listener_security" not in case_result().to_json()


@pytest.mark.parametrize(
    ("option", "own", "version", "why"),
    [
        ("plaintext", "plaintext", "2.4.1", None),
        ("sasl_tls", "plaintext", "2.7.0", None),
        ("plaintext", "sasl_tls", "2.7.0", None),
        ("sasl_tls", "sasl_tls", "4.4.0", None),
        ("tls", "sasl_tls", "4.4.0", "the scenario itself needs --listener-security sasl_tls"),
        ("tls", "plaintext", "2.6.3", "--listener-security needs Kafka 2.7 or newer, which reads PEM (KIP-651): 2.6.3"),
        ("plaintext", "tls", "2.6.3", "--listener-security needs Kafka 2.7 or newer, which reads PEM (KIP-651): 2.6.3"),
    ],
)
def test_a_case_that_cannot_run_with_it_is_skipped(option: str, own: str, version: str, why: str | None) -> None:
    declared_spec = ClusterSpec(mode=Mode.ZK, listener_security=ListenerSecurity(own))
    declared = fake(DeclaredCase, scenario=fake(Scenario, any_profile=False), spec=lambda _: declared_spec)
    run = fake(
        Run,
        profile=FAST,
        settings={},
        backend="process",
        holds=[],
        listener_security=ListenerSecurity(option),
        version=lambda _: KafkaVersion.parse(version),
    )
    assert run.unfit_settings(declared) == why


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("listeners", ListenerSecurity)
def test_containers_have_listeners_in_plain_text_only(backend: str, listeners: ListenerSecurity) -> None:
    declared = fake(DeclaredCase, needs=set)
    spec = ClusterSpec(mode=Mode.KRAFT, listener_security=listeners)
    run = fake(Run, lacks=BACKENDS[backend].lacks, spec=lambda _: spec)
    lacking = SECURED_LISTENERS in [each.name for each in run.unable(declared)]
    assert lacking is (backend == "docker" and listeners is not ListenerSecurity.PLAINTEXT)


# --- a real cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one broker with TLS, logins and ACLs."""
    cluster = boot(
        ClusterSpec(mode=Mode.KRAFT, brokers=1, listener_security=SASL_TLS),
        Builds.choose(BuildOptions(kafka=str(DEFAULT_BUILDS[Mode.KRAFT]))).of(Mode.KRAFT),
        run_id=f"selftest-{secrets.token_hex(3)}",
        record_dir=tmp_path_factory.mktemp("secured"),
        journal=Journal(None),
    )
    try:
        yield cluster
    finally:
        end_tools()
        cluster.stop()


@pytest.mark.cluster
def test_every_kind_of_client_connects_as_its_user(secured: Cluster) -> None:
    """The raw protocol, a tool, Kafka's Java client and librdkafka, to a broker; the raw protocol to a controller."""
    [broker] = secured.brokers
    paths = {str(log_dir.path) for log_dir in broker.log_dirs}
    assert {state.path for state in broker.describe_log_dirs()} == paths
    assert {state.path for state in describe_log_dirs(secured.distribution, secured.bootstrap, [1])[1]} == paths
    assert cordoned_flags(secured.distribution, secured.bootstrap, [1])[1].keys() == paths
    assert [*AdminClient(dict(secured.bootstrap.librdkafka)).list_topics(timeout=10).brokers] == [1]
    assert quorum_of(secured).controller_admin(secured.quorum_nodes[0]).describe_quorum_leader() == 100
    assert broker.admin.describe_acls() >= {*ACLS}
    stranger = Admin(broker.new_connection(security=secured.security.client("stranger")))
    with pytest.raises(Refused, match="CLUSTER_AUTHORIZATION_FAILED"):
        stranger.describe_log_dirs()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("as_other", "says"),
    [
        (lambda own: replace(own, password="wrong"), "login of admin refused, error 58"),
        (lambda own: replace(own, mechanism="PLAIN"), "login of admin refused, error 33"),
        (lambda own: replace(own, user="nobody"), "login of nobody refused, error 58"),
        (lambda own: replace(own, ca=ClusterSecurity(TLS, Path()).client().ca), "certificate verify failed"),
        (lambda _: PLAINTEXT, "gave no answer"),
    ],
    ids=["password", "mechanism", "user", "authority", "plain text"],
)
def test_others_do_not_get_in(
    secured: Cluster, as_other: Callable[[ClientSecurity], ClientSecurity], says: str
) -> None:
    [broker] = secured.brokers
    connection = broker.new_connection(security=as_other(secured.security.client()))
    with pytest.raises(NoAnswer, match=says):
        connection.ask(MetadataRequest(topics=[]))
