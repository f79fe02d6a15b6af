"""Opening a bag without ROS: typed messages by the definitions that the bag itself carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from polyarm_core.errors import InvalidValue, MissingExtra, PolyarmError, UnknownName


class BagError(PolyarmError):
    """The bag cannot be read; the message says why and what to do."""


@dataclass(frozen=True)
class Topic:
    """A recorded topic: name, message type, number of messages, and the QoS that its publishers offered."""

    name: str
    type_name: str
    count: int
    type_hash: str
    reliability: str
    durability: str


@dataclass(frozen=True)
class Recorded:
    """One recorded message. ``at``: receive time, ns since 1970; ``size``: serialised length in bytes."""

    topic: str
    at: int
    message: Any
    size: int


class Bag:
    """An open rosbag2 directory; use it as a context manager.

    Args:
        path: the directory, or the MCAP file in it.

    Raises:
        InvalidValue: there is no bag at ``path``.
        BagError: it was not closed, or is damaged.
        MissingExtra: ``rosbags`` is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from rosbags.rosbag2 import Reader, ReaderError
            from rosbags.typesys import Stores, get_types_from_msg, get_typestore
        except ImportError:
            raise MissingExtra("rosbags", "bags") from None
        self.path = Path(path)
        if self.path.suffix == ".mcap" and (self.path.parent / "metadata.yaml").is_file():
            self.path = self.path.parent
        if not self.path.exists():
            raise InvalidValue("bag", str(path), "a rosbag2 directory")
        if self.path.is_dir() and not (self.path / "metadata.yaml").is_file():
            if any(self.path.glob("*.mcap")):
                raise BagError(
                    f"{path} was not closed: no metadata.yaml; make it whole with: polyarm bag recover {path}"
                )
            raise InvalidValue("bag", str(path), "a rosbag2 directory with metadata.yaml")
        try:
            self._reader = Reader(self.path)
            self._reader.open()
        except (ReaderError, OSError, ValueError, KeyError) as error:
            raise BagError(f"{path} cannot be read: {error}") from None
        # The bag's own definitions, not ours: a bag of another version of Polyarm stays readable.
        self._types = get_typestore(Stores.EMPTY)
        for connection in self._reader.connections:
            if connection.msgtype not in self._types.fielddefs and connection.msgdef.data:
                types = get_types_from_msg(connection.msgdef.data, connection.msgtype)
                self._types.register({k: v for k, v in types.items() if k not in self._types.fielddefs})

    @property
    def topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        topics = []
        for connection in self._reader.connections:
            offered = getattr(connection.ext, "offered_qos_profiles", [])
            first = offered[0] if offered else None
            topics.append(
                Topic(
                    connection.topic,
                    connection.msgtype,
                    connection.msgcount,
                    connection.digest,
                    first.reliability.name.lower() if first else "",
                    first.durability.name.lower() if first else "",
                )
            )
        return sorted(topics, key=lambda topic: topic.name)

    @property
    def start(self) -> int:
        """Receive time of the first message, ns since 1970; 0 for an empty bag."""
        return self._reader.start_time if self.count else 0

    @property
    def duration(self) -> float:
        """Seconds from the first message to the last."""
        return max(0, self._reader.duration - 1) / 1e9 if self.count else 0.0

    @property
    def count(self) -> int:
        """Number of messages."""
        return self._reader.message_count

    @property
    def custom(self) -> dict[str, str]:
        """Notes that the recorder left (scenario, version)."""
        metadata = self._reader.storage.metadata
        return dict(metadata.custom or {})

    def of_type(self, *type_names: str) -> list[str]:
        """Names of the topics with one of these message types."""
        return [topic.name for topic in self.topics if topic.type_name in type_names]

    def topic_of_type(self, type_name: str) -> str:
        """The one topic with this message type.

        Raises:
            UnknownName: there is none, or more than one (several cells in one bag).
        """
        names = self.of_type(type_name)
        if len(names) != 1:
            raise UnknownName("bag topic of type", type_name, [topic.type_name for topic in self.topics])
        return names[0]

    def messages(self, topics: Sequence[str] | None = None) -> Iterator[Recorded]:
        """Messages in the order in which they were received.

        Args:
            topics: only these; all when None.

        Raises:
            BagError: a message cannot be decoded or the file is damaged.
        """
        from rosbags.rosbag2 import ReaderError

        connections = [c for c in self._reader.connections if topics is None or c.topic in topics]
        if not connections:
            return
        try:
            for connection, at, data in self._reader.messages(connections):
                message = self._types.deserialize_cdr(data, connection.msgtype)
                yield Recorded(connection.topic, at, message, len(data))
        except ReaderError as error:
            raise BagError(f"{self.path} cannot be read to its end: {error}") from None

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def __enter__(self) -> Bag:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def constant_name(message: Any, prefix: str, value: int) -> str:
    """Name of an enumeration constant of a message, lower case without its prefix: ``RULE_EXCLUSION`` -> ``exclusion``.

    A value that the bag's definition does not know is shown as the number.
    """
    for name in dir(type(message)):
        if name.startswith(prefix) and getattr(message, name) == value:
            return name[len(prefix) :].lower()
    return str(value)
