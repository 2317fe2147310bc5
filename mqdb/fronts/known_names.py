"""The names by which the broker knows clients of RocketMQ and their producer groups.

Clients choose their ids and the names of their groups, so these say nothing of whose they are.
"""

from typing import Final

from mqdb.errors import ParameterInvalid

#: Between the id of a client that takes part in broadcasting, the same for all processes of a machine, and its port.
_BROADCASTING: Final = "~bc"

#: Between the id of a client, or its producer group, and its access key. It sorts before what ids hold: so members that
#: sort by these ids, as those in Python do, share out queues as RocketMQ's clients do, which sort by their own.
_OF_KEY: Final = " ~"


def own_id(client_id: str) -> str:
    """The id that a client knows itself by."""
    return client_id.partition(_OF_KEY)[0].partition(_BROADCASTING)[0]


def broadcasting_id(client_id: str, peer: str) -> str:
    """The id of a client at `address:port` that takes part in broadcasting."""
    return client_id + _BROADCASTING + peer.rpartition(":")[2]


def key_of(client_id: str) -> str:
    """The access key that an id names; "" for none."""
    return client_id.partition(_OF_KEY)[2]


def is_of_key(name: str) -> bool:
    """Whether an id or a producer group ends with the access key of its client."""
    return _OF_KEY in name


def id_with_key(client_id: str, access_key: str) -> str:
    """The id by which a client is known that signs with a key; "" for none.

    Where access keys are asked for it names the key: a client of another key is another one, whatever it calls itself.
    Raises ParameterInvalid if it calls itself by such an id.
    """
    if not access_key:
        return client_id
    if is_of_key(client_id):
        raise ParameterInvalid("clientID", client_id, f"must not hold {_OF_KEY!r}")
    return client_id + _OF_KEY + access_key


def group_of_key(group: str, access_key: str) -> str:
    """The producer group by which the broker knows half messages of a key, if keys are asked for.

    So they are the key's alone: a client of another key cannot end them, and is not asked about them.
    Raises ParameterInvalid for a group that names a key itself.
    """
    if not access_key:
        return group
    if is_of_key(group):
        raise ParameterInvalid("producerGroup", group, f"must not hold {_OF_KEY!r}")
    return group + _OF_KEY + access_key


def own_group(group: str) -> str:
    """The producer group as clients name it."""
    return group.partition(_OF_KEY)[0]
