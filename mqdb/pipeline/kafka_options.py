"""Options of Spark's Kafka source and sink that mqdb ignores, so that a job can keep them when its format changes."""

import logging
import re
from collections.abc import Mapping
from typing import Final

from mqdb.pipeline.errors import OptionInvalid

logger = logging.getLogger(__name__)

#: In lower case.
_OF_KAFKA: Final = re.compile(r"(kafka|fetchoffset|kafkaconsumer)\..*|groupidprefix")

#: Spark passes names in lower case; messages show them as in Spark's documentation.
_WRITTEN: Final = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)
_SERVERS: Final = "kafka.bootstrap.servers"


def is_of_kafka(name: str) -> bool:
    """Whether an option is ignored."""
    return _OF_KAFKA.fullmatch(name.lower()) is not None


def refuse_servers(options: Mapping[str, str]) -> None:
    """Raise OptionInvalid for a job that has Kafka's servers but no url, and say what replaces them."""
    servers = next((value for name, value in options.items() if name.lower() == _SERVERS), None)
    if servers is not None:
        reason = "leads to Kafka; give .option('url', 'postgresql://user@host:5432/database') for a broker of mqdb"
        raise OptionInvalid(_SERVERS, servers, reason)


def warn_of_ignored(options: Mapping[str, str]) -> None:
    """List all ignored options in one warning."""
    if ignored := sorted(filter(is_of_kafka, options), key=str.lower):
        known = {name.lower(): name for name in _WRITTEN}
        names = ", ".join(known.get(name.lower(), name) for name in ignored)
        logger.warning("ignored options of Kafka, which have no meaning for mqdb: %s", names)
