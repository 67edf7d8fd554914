"""Requests that add ACLs, and that show those which a broker knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from harness.kafka.answers import check_answer
from harness.kafka.connection import Connection

_ANY, _ALLOW, _LITERAL = 1, 3, 3  # AclPermissionType and PatternType
Resource = Literal["topic", "group", "cluster", "transactional_id"]
_RESOURCES: Mapping[Resource, int] = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}  # ResourceType
Operation = Literal["READ", "WRITE", "ALTER", "DESCRIBE", "ALTER_CONFIGS"]
_OPERATIONS: Mapping[Operation, int] = {  # AclOperation
    "READ": 3,
    "WRITE": 4,
    "ALTER": 7,
    "DESCRIBE": 8,
    "ALTER_CONFIGS": 11,
}


@dataclass(frozen=True, kw_only=True)
class Acl:
    """What a user may do, from any host.

    :ivar name: of the resource; ``*`` for all of its type, ``kafka-cluster`` for the cluster
    """

    user: str
    resource: Resource
    name: str
    operation: Operation

    def __str__(self) -> str:
        return f"{self.user} may {self.operation} {self.resource} {self.name}"


class AclRequests:
    """The part of :class:`harness.kafka.admin.Admin` for ACLs."""

    _connection: Connection

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs; brokers learn of them later (:meth:`describe_acls`)."""
        wanted = CreateAclsRequest.AclCreation
        creations = [
            wanted(
                resource_type=_RESOURCES[acl.resource],
                resource_name=acl.name,
                resource_pattern_type=_LITERAL,
                principal=f"User:{acl.user}",
                host="*",
                operation=_OPERATIONS[acl.operation],
                permission_type=_ALLOW,
            )
            for acl in acls
        ]
        check_answer("create ACLs", *self._connection.ask(CreateAclsRequest(creations=creations)).results)

    def describe_acls(self) -> frozenset[Acl]:
        """The ACLs that this broker knows, as far as :class:`Acl` has their resources and operations."""
        request = DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        answer = self._connection.ask(request)
        check_answer("the ACLs", answer)
        resources = {code: name for name, code in _RESOURCES.items()}
        operations = {code: name for name, code in _OPERATIONS.items()}
        return frozenset(
            Acl(
                user=each.principal.removeprefix("User:"),
                resource=resources[of.resource_type],
                name=of.resource_name,
                operation=operations[each.operation],
            )
            for of in answer.resources
            for each in of.acls
        )
