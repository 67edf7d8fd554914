"""Tries a second cluster, whose listeners have TLS, logins and ACLs (:mod:`harness.cluster.security`)."""

from __future__ import annotations

import secrets

from harness.cluster.cluster import boot
from harness.cluster.security import ACLS
from harness.cluster.spec import ClusterSpec
from harness.host.scratch import scratch
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.security import ListenerSecurity
from suites.probe.trial import ONE_REPLICA, Lacking, Trial, tries


@tries("secured")
def _starts(trial: Trial) -> str:
    spec = ClusterSpec(
        mode=trial.cluster.spec.mode,
        brokers=1,
        mbeans=False,
        listener_security=ListenerSecurity.SASL_TLS,
        overrides=ONE_REPLICA,
    )
    with scratch("probe") as record_dir:
        cluster = boot(
            spec,
            trial.cluster.distribution,
            run_id=f"probe-{secrets.token_hex(3)}",
            record_dir=record_dir,
            journal=Journal(None),
        )
        try:
            [broker] = cluster.brokers
            connection = broker.new_connection()
            admin = Admin(connection)
            admin.create_acls(ACLS)
            admin.describe_acls()
            trial.spoke_secured = dict(connection.spoke)
            stranger = Admin(broker.new_connection(security=cluster.security.client("stranger")))
            try:
                stranger.describe_log_dirs()
            except Refused as refusal:
                return f"a user without ACLs is refused with {refusal.error}"
            raise Lacking("a user without ACLs may describe log dirs")
        finally:
            cluster.stop()


def _request(name: str, least: int) -> None:
    """Register a try that checks in which version a request was sent to the second cluster."""

    def attempt(trial: Trial) -> str:
        version = trial.spoke_secured.get(name)
        if version is None:
            raise Lacking(f"{name} was not sent, since no such cluster started")
        if version < least:
            raise Lacking(f"{name} was sent in v{version}, and v{least} is needed")
        return f"v{version}"

    tries(f"request-{name}")(attempt)


for _name, _least in {"SaslHandshake": 1, "SaslAuthenticate": 2, "CreateAcls": 1, "DescribeAcls": 1}.items():
    _request(_name, _least)
