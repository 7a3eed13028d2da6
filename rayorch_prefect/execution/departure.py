"""Knows when a worker's report has left its process.

Ray sends what a method returns from a thread of its own, after the next call may have begun: a
stage that kills its process in the first instant of a batch would take the report before with
it. The kernel knows better: it counts the bytes that each TCP connection was given, and delivers
them even if the process dies (`tcp_info` in Linux's include/uapi/linux/tcp.h).
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

# Offsets of tcpi_notsent_bytes (u32) and tcpi_bytes_sent (u64) in struct tcp_info; Linux 4.19.
_NOT_SENT = 144
_SENT = 200
_INFO_BYTES = 208
_GLANCE_S = 0.0001
# Where the kernel does not tell, most reports leave within this.
_BLIND_S = 0.001
_INTERNET = (socket.AF_INET, socket.AF_INET6)
# A report has at least as many bytes; answers to health checks have fewer.
LEAST_REPORT = 200


class Departures:
    """Whether this process's servers have handed a report to the kernel. For one thread."""

    def __init__(self) -> None:
        self._connections: list[socket.socket] = []
        self._due: int | None = None

    def expect(self) -> None:
        """A report is about to be returned."""
        self._due = self._handed_over() + LEAST_REPORT

    def wait(self, patience_s: float) -> bool:
        """Wait until the last report has left, at most `patience_s`; whether it has."""
        due, self._due = self._due, None
        if due is None:
            return True
        if not self._connections:
            time.sleep(_BLIND_S)
            return False
        until = time.monotonic() + patience_s
        while self._handed_over() < due:
            if time.monotonic() > until:
                self._look_anew()
                return False
            time.sleep(_GLANCE_S)
        return True

    def _handed_over(self) -> int:
        if not self._connections:
            self._look_anew()
        try:
            return sum(map(handed_over, self._connections))
        except OSError:
            self._look_anew()
            return sum(map(handed_over, self._connections))

    def _look_anew(self) -> None:
        """The descriptors are Ray's: they are looked through, and never closed here."""
        for connection in self._connections:
            connection.detach()
        self._connections = [
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
            for descriptor in served_connections()
        ]

    def __del__(self) -> None:
        for connection in self._connections:
            connection.detach()


def handed_over(connection: socket.socket) -> int:
    """Bytes that a TCP connection's kernel side was given so far. Raises OSError."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return 0
    sent, waiting = struct.unpack_from("Q", info, _SENT), struct.unpack_from("I", info, _NOT_SENT)
    return int(sent[0]) + int(waiting[0])


def served_connections() -> Iterator[int]:
    """Descriptors of TCP connections that others opened to a server in this process."""
    if sys.platform != "linux":
        return iter(())
    sockets = list(_tcp_sockets())
    listening = {port for _, port, listens in sockets if listens}
    return (file for file, port, listens in sockets if port in listening and not listens)


def _tcp_sockets() -> Iterator[tuple[int, int, bool]]:
    """(descriptor, local port, whether it listens)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=int(name))
        except OSError:
            continue  # no socket, or closed by now
        try:
            if connection.type == socket.SOCK_STREAM and connection.family in _INTERNET:
                listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                yield int(name), connection.getsockname()[1], bool(listens)
        except OSError:
            continue
        finally:
            connection.detach()
