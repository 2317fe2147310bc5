"""Proofs of positions: the log entries that must exist for a position to keep its meaning."""

from datetime import timedelta
from uuid import uuid4

from sqlalchemy import Connection

from mqdb.store.log import proofs
from tests.fixtures.broker import append, dispatch_all, topic


def test_the_proof_of_a_position_is_the_message_before_it(broker: Connection) -> None:
    route = topic(broker, queues=2)
    positions = append(broker, route, "a", "b", "c")
    dispatch_all(broker)
    full, empty = route.queue_keys

    found = proofs.find(broker, {full: 2, empty: 0})

    assert found.keys() == {full}
    assert found[full][:2] == (1, positions[1])
    assert proofs.find(broker, {}) == {}


def test_the_log_proves_what_it_holds_and_nothing_else(broker: Connection) -> None:
    route = topic(broker, queues=2)
    append(broker, route, "a", "b", "c")
    append(broker, route, "d", queue_id=1)
    dispatch_all(broker)
    key, other = route.queue_keys
    proof = proofs.find(broker, {key: 2})[key]

    wrong = [
        (key, proof._replace(queue_offset=0)),
        (key, proof._replace(log_pos=proof.log_pos + 1)),
        (key, proof._replace(msg_id=uuid4())),
        (key, proof._replace(store_time=proof.store_time + timedelta(microseconds=1))),
        (other, proof),
        (key, proof._replace(queue_offset=17)),
    ]

    assert proofs.holding(broker, [(key, proof), *wrong, (key, proof)]) == [True, *[False] * 6, True]
    assert proofs.holding(broker, []) == []
