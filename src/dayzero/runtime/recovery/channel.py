"""A stream of messages over one socket: four bytes of length, then msgpack. Each side says what it may receive."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

Message = TypeVar("Message")
_LENGTH = struct.Struct("!I")
_READ = 1 << 16


class GoneError(Exception):
    """The other side has closed, or has ended."""


class Channel(Generic[Message]):
    """One end. `send` is safe from several threads; all else is for one."""

    def __init__(self, end: socket.socket, received: object) -> None:
        """`received`: the union of what the other side may send."""
        self._socket, self._lock, self._buffer = end, threading.Lock(), bytearray()
        self.arrived = 0.0
        """When anything came last, also a part of a message (time.monotonic)."""
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(received)
        self._encoder = msgspec.msgpack.Encoder()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Raises GoneError."""
        data = self._framed(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            raise GoneError from None

    def offer(self, message: object) -> None:
        """Send as much of it as the other side takes now, and the rest with `flush`: for who may not wait for it.
        Raises GoneError."""
        self._unsent += self._framed(message)
        self.flush()

    def flush(self) -> bool:
        """Send more of what was offered; whether all of it is sent. Raises GoneError."""
        try:
            while self._unsent:
                del self._unsent[:self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return False
        except OSError:
            raise GoneError from None
        return True

    @property
    def sending(self) -> bool:
        """Whether something that was offered is still to be sent."""
        return bool(self._unsent)

    def _framed(self, message: object) -> bytes:
        data = self._encoder.encode(message)
        return _LENGTH.pack(len(data)) + data

    def receive(self) -> Message:
        """Waits for the next message. Raises GoneError."""
        while True:
            for message in self._taken(1):
                return message
            self._fill()

    def waiting(self) -> list[Message]:
        """What has come by now, after `fileno` is readable; reads once. Raises GoneError when nothing more can come."""
        self._fill()
        return list(self._taken())

    def pending(self) -> list[Message]:
        """What has come by now, if anything. Raises GoneError."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while poll.poll(0):
            self._fill()
        return list(self._taken())

    def close(self) -> None:
        """Of this end."""
        self._socket.close()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except OSError:
            data = b""
        if not data:
            raise GoneError
        self._buffer += data
        self.arrived = time.monotonic()

    def _taken(self, most: int = 0) -> Iterator[Message]:
        """Whole messages in the buffer, at most so many; 0: all."""
        taken = 0
        while len(self._buffer) >= _LENGTH.size and (not most or taken < most):
            length = _LENGTH.unpack_from(self._buffer)[0]
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            data = bytes(self._buffer[_LENGTH.size:end])
            del self._buffer[:end]
            taken += 1
            yield self._decoder.decode(data)
