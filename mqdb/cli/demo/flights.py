"""The flights of the demo as messages: their tags, keys, properties, sharding keys and bodies."""

import csv
import json
from importlib.resources import files
from typing import Final, NamedTuple

from mqdb.common.message import Message

TOPIC: Final = "flights"

#: A missing value in the data file.
MISSING: Final = "NA"

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_PROPERTIES: Final = ("origin", "dest", "dep_delay", "distance")


class Flight(NamedTuple):
    """A record and its message.

    All messages of one aircraft have the same sharding key, so they go to one queue, in order.
    """

    message: Message
    sharding_key: str


def load_flights() -> list[Flight]:
    """All records of the sample, in the order of the file."""
    text = files("mqdb.cli").joinpath("demo_data", "flights.csv").read_text(encoding="utf-8")
    return [to_flight(record) for record in csv.DictReader(text.splitlines())]


def to_flight(record: dict[str, str]) -> Flight:
    """Convert a record: the tag is the carrier.

    The keys are the flight number with its carrier, and the tail number. The sharding key is the tail number or, if it
    is missing, the flight number.
    """
    known = {name: value for name, value in record.items() if value != MISSING}
    flight_number = record["carrier"] + record["flight"]
    aircraft = known.get("tailnum")
    message = Message(
        TOPIC,
        json.dumps({name: _typed(name, value) for name, value in record.items()}, separators=(",", ":")),
        tag=record["carrier"],
        keys=(flight_number,) if aircraft is None else (flight_number, aircraft),
        properties={name: known[name] for name in _PROPERTIES if name in known},
    )
    return Flight(message, aircraft or flight_number)


def _typed(name: str, value: str) -> str | int | None:
    if value == MISSING:
        return None
    return value if name in _TEXT_COLUMNS else int(value)
