"""Making a bag whole whose recorder was killed: every message that reached the disk, with a new index and metadata."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from polyarm_core.bags.definitions import Definition
from polyarm_core.bags.reader import BagError
from polyarm_core.bags.writer import BagWriter
from polyarm_core.errors import InvalidValue, MissingExtra


def recover(source: Path, target: Path) -> int:
    """Copy what can be read of an unfinished bag into a new one.

    Args:
        source: rosbag2 directory with one MCAP file that was not closed; it is not touched.
        target: new directory; must not exist.

    Returns:
        Number of messages.

    Raises:
        InvalidValue: ``source`` has no MCAP file, or ``target`` exists.
        BagError: not even the beginning can be read.
        MissingExtra: ``mcap`` or ``rosbags`` is not installed.
    """
    try:
        from mcap.exceptions import McapError
        from mcap.records import Channel, Message, Schema
        from mcap.stream_reader import StreamReader
        from rosbags.rosbag2.metadata import parse_qos
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    except ImportError:
        raise MissingExtra("mcap", "bags") from None
    files = sorted(source.glob("*.mcap"))
    if len(files) != 1:
        raise InvalidValue("bag", str(source), "a directory with one MCAP file")

    schemas: dict[int, tuple[str, str]] = {}
    channels: dict[int, str] = {}
    with files[0].open("rb") as file, BagWriter(target, {"recovered_from": source.name}) as bag:
        try:
            for record in StreamReader(file, emit_chunks=False).records:
                if isinstance(record, Schema):
                    schemas[record.id] = (record.name, record.data.decode())
                elif isinstance(record, Channel) and record.id not in channels:
                    type_name, text = schemas[record.schema_id]
                    types: Any = get_typestore(Stores.EMPTY)
                    types.register(get_types_from_msg(text, type_name))
                    definition = Definition(type_name, text, types.hash_rihs01(type_name))
                    bag.add_topic(record.topic, definition, parse_qos(record.metadata.get("offered_qos_profiles", "")))
                    channels[record.id] = record.topic
                elif isinstance(record, Message):
                    bag.write(channels[record.channel_id], record.log_time, record.data)
        except (McapError, EOFError, KeyError, ValueError, struct.error) as error:
            if not channels:
                raise BagError(f"{source}: nothing can be read: {error or type(error).__name__}") from None
        return sum(bag.counts.values())
