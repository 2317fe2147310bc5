"""The list of brokers in a url: `broker-a=postgresql://...;broker-b=postgresql://...`, as MQDB_DSN has it.

A url that names its brokers is a list, also if it names one. Then rows say their broker, and a second broker can
join later.
"""

from collections.abc import Mapping
from typing import Final

from mqdb.pipeline.errors import OptionInvalid

#: Partition 3 of the second broker of a list is 100003, for Kafka's rows. No topic has as many queues.
PARTITIONS_OF_BROKER: Final = 100_000


def listed_brokers(options: Mapping[str, str], name: str = "url") -> dict[str, str]:
    """The DSNs of the option by the names of their brokers, in their order; none for a lone DSN without a name.

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
