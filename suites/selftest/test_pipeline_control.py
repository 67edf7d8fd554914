"""The driver gets reports from its tasks, and they end when the driver ends."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from harness.spark.control import STOP, Channel, Command, ControlServer, DriverLink
from harness.waiting import await_until


@dataclass(frozen=True)
class Report:
    acked: int = 0


@pytest.fixture
def server() -> Iterator[ControlServer]:
    server = ControlServer()
    yield server
    server.close()


def test_the_newest_progress_arrives(server: ControlServer) -> None:
    channel, invitation = server.open("p0", Report())
    link = DriverLink(invitation)
    for acked in range(1000):
        link.publish(Report(acked=acked))
    await_until(lambda: channel.report, lambda seen: seen == Report(acked=999), timeout_s=30.0, what="the last report")
    link.close()


def test_the_last_progress_is_sent_before_the_end(server: ControlServer) -> None:
    channel, invitation = server.open("p0", Report())
    link = DriverLink(invitation)
    link.publish(Report(acked=7))
    link.close()
    await_until(lambda: channel.closed, timeout_s=30.0, what="the channel's end")
    assert channel.report == Report(acked=7)


def test_a_command_given_before_the_task_connects_waits_for_it(server: ControlServer) -> None:
    channel, invitation = server.open("c0-0", Report())
    channel.send(replace(STOP, at={0: 17}))
    link = DriverLink(invitation)
    await_until(lambda: link.command, timeout_s=30.0, what="the command")
    assert link.command == Command(do="stop", at={0: 17})
    link.close()


def test_a_task_learns_that_its_driver_is_gone(server: ControlServer) -> None:
    _, invitation = server.open("p0", Report())
    link = DriverLink(invitation)
    link.publish(Report(acked=1))
    assert not link.driver_gone.is_set()
    server.close()
    assert link.driver_gone.wait(30.0)


def test_letting_go_of_one_task_leaves_the_others(server: ControlServer) -> None:
    first, first_invitation = server.open("c0-0", Report())
    _, second_invitation = server.open("c0-1", Report())
    gone, kept = DriverLink(first_invitation), DriverLink(second_invitation)
    await_until(lambda: first.connected, timeout_s=30.0, what="the first connection")
    first.close()
    assert gone.driver_gone.wait(30.0)
    assert not kept.driver_gone.is_set()
    kept.close()


def test_the_driver_learns_when_a_task_is_gone(server: ControlServer) -> None:
    gone = threading.Event()
    _, invitation = server.open("p0", Report(), on_close=gone.set)
    DriverLink(invitation).close()
    assert gone.wait(30.0)


def test_strangers_are_not_heard_and_block_no_other(server: ControlServer) -> None:
    channel, invitation = server.open("p0", Report())
    with socket.create_connection(("127.0.0.1", invitation.port)):  # a connection that sends nothing
        stranger = DriverLink(replace(invitation, secret="guessed"))
        stranger.publish(Report(acked=666))
        assert stranger.driver_gone.wait(30.0)
        link = DriverLink(invitation)
        link.publish(Report(acked=1))
        await_until(lambda: channel.report.acked, timeout_s=30.0, what="the task's report")
        assert channel.report == Report(acked=1)
        link.close()


def test_a_second_connection_of_one_task_is_refused(server: ControlServer) -> None:
    channel, invitation = server.open("p0", Report())
    first = DriverLink(invitation)
    await_until(lambda: channel.connected, timeout_s=30.0, what="the connection")
    assert DriverLink(invitation).driver_gone.wait(30.0)
    assert not first.driver_gone.is_set()
    first.close()


def test_a_name_is_used_once(server: ControlServer) -> None:
    server.open("p0", Report())
    with pytest.raises(ValueError, match="p0"):
        server.open("p0", Report())


def test_sending_to_a_task_that_is_gone_is_no_error(server: ControlServer) -> None:
    channel: Channel[Report]
    channel, invitation = server.open("p0", Report())
    DriverLink(invitation).close()
    await_until(lambda: channel.closed, timeout_s=30.0, what="the channel's end")
    channel.send(STOP)
