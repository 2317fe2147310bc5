"""The names by which the broker knows RocketMQ clients and their producer groups.

Clients choose their ids and group names freely, so these do not identify their owners.
"""

from typing import Final

from mqdb.errors import ParameterInvalid

#: Separates the id of a broadcasting client, which all processes of a machine share, from its port.
_BROADCASTING: Final = "~bc"

#: Separates the id of a client, or its producer group, from its access key. It sorts before all characters of ids:
#: members that sort by these ids, as those in Python do, thus divide queues in the same way as RocketMQ's clients,
#: which sort by their own ids.
_OF_KEY: Final = " ~"


def own_id(client_id: str) -> str:
    """The id by which a client knows itself."""
    return client_id.partition(_OF_KEY)[0].partition(_BROADCASTING)[0]


def broadcasting_id(client_id: str, peer: str) -> str:
    """The id of a broadcasting client at `address:port`."""
    return client_id + _BROADCASTING + peer.rpartition(":")[2]


def key_of(client_id: str) -> str:
    """The access key in an id; "" if the id contains no key."""
    return client_id.partition(_OF_KEY)[2]


def is_of_key(name: str) -> bool:
    """Whether an id or a producer group ends with the access key of its client."""
    return _OF_KEY in name


def id_with_key(client_id: str, access_key: str) -> str:
    """The id by which a client that signs with a key is known; "" stands for no key.

    If access keys are required, the id contains the key: a client with another key is a different client, whatever id
    it uses. Raises ParameterInvalid if the client's own id contains a key.
    """
    if not access_key:
        return client_id
    if is_of_key(client_id):
        raise ParameterInvalid("clientID", client_id, f"must not contain {_OF_KEY!r}")
    return client_id + _OF_KEY + access_key


def group_of_key(group: str, access_key: str) -> str:
    """The producer group of a key's half messages at the broker, if keys are required.

    They belong to the key only: a client with another key cannot end them, and is not asked about them. Raises
    ParameterInvalid if the name of the group contains a key.
    """
    if not access_key:
        return group
    if is_of_key(group):
        raise ParameterInvalid("producerGroup", group, f"must not contain {_OF_KEY!r}")
    return group + _OF_KEY + access_key


def own_group(group: str) -> str:
    """The name by which clients know a producer group."""
    return group.partition(_OF_KEY)[0]
