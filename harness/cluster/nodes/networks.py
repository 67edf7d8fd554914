"""Chooses a free network for the containers of a cluster, and reserves it until the engine has made it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil

from harness.errors import EnvironmentLacks
from harness.host.engine import engine, explained

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_reserved: dict[str, socket.socket] = {}
"""The networks that this process has reserved, each by a socket with an abstract name, which the kernel removes when
the process ends."""


def free_network(preferred: int) -> str:
    """The first three numbers of a free /24 in 198.18.0.0/15, which no network of the engine or this machine overlaps.

    The engine does not check a subnet that it is given. An engine that ended leaves its bridges behind. If two bridges
    have the same addresses, the kernel sends packets to the older one.

    The network is reserved for this process until :func:`release_network`. Another run on this machine, which may look
    before the engine has made this network, takes the next one.

    :raises EnvironmentLacks: none is free
    """
    taken = _taken_networks()
    # Begins at the preferred number, so that two clusters that start at once choose different networks.
    for number in ((preferred + further) % 512 for further in range(512)):
        text = f"198.{18 + number // 256}.{number % 256}"
        if not _is_free(text, taken) or not _reserve_network(text):
            continue
        # Again, now that it is reserved: another run may have reserved it, made it and released it since the look.
        if _is_free(text, _taken_networks()):
            return text
        release_network(text)
    raise EnvironmentLacks(
        "no /24 network in 198.18.0.0/15 is free: docker network ls and ip address show what uses them, and docker "
        "network prune removes unused ones"
    )


def release_network(network: str) -> None:
    """End the reservation of a network that the engine has made, or that is not needed any longer."""
    if (reservation := _reserved.pop(network, None)) is not None:
        reservation.close()


def _is_free(text: str, taken: Sequence[_Network]) -> bool:
    """Whether none of these networks overlaps the /24 with these first three numbers."""
    network = ipaddress.ip_network(f"{text}.0/24")
    return not any(network.version == other.version and network.overlaps(other) for other in taken)


def _taken_networks() -> list[_Network]:
    """The networks of this machine and of the engine."""
    taken: list[_Network] = [
        ipaddress.ip_network(f"{address.address}/{address.netmask}", strict=False)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and address.netmask
    ]
    with explained("looking for a free network"):
        taken += [
            ipaddress.ip_network(config["Subnet"])
            for network in engine().networks.list()
            for config in (network.attrs.get("IPAM") or {}).get("Config") or ()
            if config.get("Subnet")
        ]
    return taken


def _reserve_network(network: str) -> bool:
    """Reserve a network for this process; False if a process on this machine has reserved it."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        reservation.bind(f"\0jbod-network-{network}")
    except OSError:
        reservation.close()
        return False
    _reserved[network] = reservation
    return True
