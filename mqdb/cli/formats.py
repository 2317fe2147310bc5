"""The formats in which `mqdb consume` prints messages."""

import base64
from enum import StrEnum
from typing import Any

from mqdb.common.printable import json_text
from mqdb.common.received_message import ReceivedMessage


class OutputFormat(StrEnum):
    """The format of a printed message."""

    TEXT = "text"
    JSON = "json"


def as_text(message: ReceivedMessage) -> bytes:
    """The unchanged body, followed by a line end."""
    return message.body + b"\n"


def as_json(message: ReceivedMessage) -> bytes:
    """A message with all its fields as a JSON object on one line.

    A body that is not UTF-8 is in the field `body_base64`.
    """
    described: dict[str, Any] = {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "log_pos": message.log_pos,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
        "born_time": message.born_time.isoformat(),
        "store_time": message.store_time.isoformat(),
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
    }
    try:
        described["body"] = message.body.decode()
    except UnicodeDecodeError:
        described["body_base64"] = base64.b64encode(message.body).decode()
    return json_text(described).encode() + b"\n"


FORMATS = {OutputFormat.TEXT: as_text, OutputFormat.JSON: as_json}
