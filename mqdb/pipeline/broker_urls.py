"""The list of brokers in a url: `broker-a=postgresql://...;broker-b=postgresql://...`, as in MQDB_DSN.

A url that names its brokers is a list, even with a single broker. Rows of a list include their broker, so a second
broker can be added later.
"""

from collections.abc import Mapping
from typing import Final

from mqdb.pipeline.errors import OptionInvalid

#: In Kafka's rows partition 3 of the second broker of a list is 100003. Topics never have as many queues.
PARTITIONS_OF_BROKER: Final = 100_000


def listed_brokers(options: Mapping[str, str], name: str = "url") -> dict[str, str]:
    """The DSNs in the option by the names of their brokers, in order; empty for a single DSN without a name.

    Raises OptionInvalid.
    """
    from mqdb.common.dsn import parse_brokers, redact

    text = next((value for each, value in options.items() if each.lower() == name.lower()), None)
    if text is None or not text.strip():
        return {}
    try:
        brokers = parse_brokers(text, "")
    except ValueError as error:
        raise OptionInvalid(name, redact(text), str(error)) from None
    return {broker.name: broker.dsn for broker in brokers if broker.name}
