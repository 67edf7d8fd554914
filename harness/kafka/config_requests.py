"""Requests for the configs of topics and brokers, and for the levels of loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from harness.kafka.answers import check_answer
from harness.kafka.connection import Connection

_TOPIC, _BROKER, _LOGGERS = 2, 4, 8  # ConfigResource.Type
_SET, _DELETE = 0, 1  # AlterConfigOp.OpType
_OF_TOPIC, _OF_BROKER, _OF_ALL_BROKERS = 1, 2, 3  # ConfigSource of DescribeConfigsResponse


@dataclass(frozen=True, kw_only=True)
class DynamicConfigs:
    """A broker's dynamic configs (KIP-226), its own and those of all brokers; they override its properties file."""

    own: Mapping[str, str | None]
    of_all: Mapping[str, str | None]


class ConfigRequests:
    """The part of :class:`harness.kafka.admin.Admin` for configs."""

    _connection: Connection

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some of a topic's configs (KIP-339); ask any broker."""
        self._set_configs(_TOPIC, topic, configs)

    def set_broker_configs(self, broker: int | None, configs: Mapping[str, str | None]) -> None:
        """Set some of a broker's dynamic configs (KIP-226), or delete them (None).

        In KRaft mode ask the broker itself, or a controller (KIP-919), which validates less.

        :param broker: None: the default of all brokers
        """
        self._set_configs(_BROKER, "" if broker is None else str(broker), configs)

    @contextmanager
    def log_levels(self, node: int, levels: Mapping[str, str]) -> Iterator[None]:
        """Inside the block, loggers have these levels (KIP-412). After it, they have the levels of their parents again.

        Ask the broker or controller itself.

        :param node: its id
        :param levels: by the names of the loggers
        """
        self._set_configs(_LOGGERS, str(node), levels)
        try:
            yield
        finally:
            self._set_configs(_LOGGERS, str(node), dict.fromkeys(levels))

    def dynamic_configs(self, broker: int) -> DynamicConfigs:
        """A broker's dynamic configs. Ask the broker itself."""
        own, of_all = self._configs(_BROKER, str(broker), _OF_BROKER, _OF_ALL_BROKERS)
        return DynamicConfigs(own=own, of_all=of_all)

    def topic_configs(self, topic: str) -> Mapping[str, str | None]:
        """The configs that are set for a topic; ask any broker."""
        [own] = self._configs(_TOPIC, topic, _OF_TOPIC)
        return own

    def _configs(self, resource_type: int, name: str, *sources: int) -> list[dict[str, str | None]]:
        """The configs of a resource from each of these sources."""
        wanted = DescribeConfigsRequest.DescribeConfigsResource
        resource = wanted(resource_type=resource_type, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        got = self._connection.ask(request).results[0]
        check_answer(f"the configs of {name}", got)
        return [{each.name: each.value for each in got.configs if each.config_source == source} for source in sources]

    def _set_configs(self, resource_type: int, name: str, configs: Mapping[str, str | None]) -> None:
        wanted = IncrementalAlterConfigsRequest.AlterConfigsResource
        changes = [
            wanted.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in configs.items()
        ]
        resource = wanted(resource_type=resource_type, resource_name=name, configs=changes)
        answer = self._connection.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        check_answer(f"set {', '.join(configs)} of {name}", *answer.responses)
