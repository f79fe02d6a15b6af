"""Writing rosbag2 directories: ``metadata.yaml`` (version 9) and one MCAP file (``rosbags`` does the format)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from polyarm_core.bags.definitions import Definition
from polyarm_core.errors import InvalidValue, MissingExtra

if TYPE_CHECKING:
    from rosbags.interfaces import Connection, Qos

DURABILITIES = ("volatile", "transient_local")
RELIABILITIES = ("reliable", "best_effort")


def qos(reliability: str, durability: str, depth: int) -> Qos:
    """An offered QoS profile: keep last ``depth``, no deadline, no lifespan, automatic liveliness.

    Raises:
        InvalidValue: a policy that rosbag2 does not know.
    """
    from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime

    if reliability not in RELIABILITIES:
        raise InvalidValue("reliability", reliability, " or ".join(RELIABILITIES))
    if durability not in DURABILITIES:
        raise InvalidValue("durability", durability, " or ".join(DURABILITIES))
    infinite = QosTime(9223372036, 854775807)  # RMW_DURATION_INFINITE, what rosbag2 writes for "none"
    return Qos(
        QosHistory.KEEP_LAST,
        depth,
        QosReliability[reliability.upper()],
        QosDurability[durability.upper()],
        infinite,
        infinite,
        QosLiveliness.AUTOMATIC,
        infinite,
        False,
    )


class BagWriter:
    """Writes one new bag. A bag that is not closed keeps what was flushed; ``polyarm bag recover`` makes it whole.

    Args:
        path: directory of the bag; must not exist.
        custom: notes for ``custom_data`` of the metadata, e.g. the scenario.

    Raises:
        InvalidValue: the directory exists.
        MissingExtra: ``rosbags`` is not installed.
    """

    def __init__(self, path: Path, custom: Mapping[str, str]) -> None:
        try:
            from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
        except ImportError:
            raise MissingExtra("rosbags", "bags") from None
        self.path = path
        try:
            self._writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
            for key, value in custom.items():
                self._writer.set_custom_data(key, value)
            self._writer.open()
        except WriterError:
            raise InvalidValue("bag", str(path), "a directory that does not exist yet") from None
        self._connections: dict[str, Connection] = {}
        self._counts: dict[str, int] = {}
        self._unflushed = 0
        self._closed = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages written so far, by topic."""
        return self._counts

    def add_topic(self, topic: str, definition: Definition, offered: Sequence[Any]) -> None:
        """Announce a topic before its first message; announcing it again changes nothing.

        Args:
            topic: absolute name.
            definition: of its message type.
            offered: QoS profiles of its publishers, from :func:`qos`.
        """
        if topic in self._connections:
            return
        self._connections[topic] = self._writer.add_connection(
            topic,
            definition.type_name,
            msgdef=definition.text,
            rihs01=definition.type_hash,
            offered_qos_profiles=list(offered),
        )
        self._counts[topic] = 0

    def write(self, topic: str, timestamp: int, data: bytes) -> None:
        """Append one serialised message (CDR) received at ``timestamp`` (ns since 1970).

        Raises:
            InvalidValue: the topic was not announced.
        """
        if topic not in self._connections:
            raise InvalidValue("topic", topic, "one that was announced with add_topic")
        self._writer.write(self._connections[topic], timestamp, data)
        self._counts[topic] += 1
        self._unflushed += 1

    def flush(self) -> None:
        """Close the current chunk and hand it to the operating system: a kill loses what came after only."""
        storage: Any = self._writer.storage
        if self._closed or storage is None:
            return
        if self._unflushed:
            # rosbags closes a chunk only every MiB, minutes of coordination messages.
            storage.close_chunk()
            self._unflushed = 0
        storage.bio.flush()

    def close(self) -> None:
        """Write index and ``metadata.yaml``. Closing again changes nothing."""
        if not self._closed:
            self._closed = True
            self._writer.close()

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
