"""Members are killed with -9 while their group changes between pull and pop: no message is lost."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.leftovers import return_leftovers
from mqdb.common.group import ConsumeMode
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumer_processes import ConsumerProcess, RunConsumer
from tests.fixtures.processes import wait_until
from tests.fixtures.timers import deliver_all

MESSAGES = 1_500
MEMBERS = 3
MODES = [ConsumeMode.PULL, ConsumeMode.POP]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("run", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 10))])
def test_whoever_is_killed_while_the_mode_changes_no_message_is_lost(
    broker: Connection, run_consumer: RunConsumer, run: int
) -> None:
    seed = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1_000_000) + run
    chance = random.Random(seed)
    route = topic(broker, queues=chance.choice([1, 4]))
    update_group(broker, "readers")
    living = [run_consumer() for _ in range(MEMBERS)]
    dead: list[ConsumerProcess] = []
    names = [f"m{number}" for number in range(MESSAGES)]
    changes = 0
    for first in range(0, MESSAGES, 50):
        append(broker, route, *names[first : first + 50], queue_id=chance.randrange(len(route.queue_keys)))
        dispatch_all(broker)
        time.sleep(chance.uniform(0, 0.1))  # the moments of kills and changes are what chance decides
        if chance.random() < 0.4:
            changes += 1
            update_group(broker, "readers", consume_mode=MODES[changes % 2])
        if chance.random() < 0.3:
            killed = living.pop(chance.randrange(MEMBERS))
            killed.end(signal.SIGKILL)
            dead.append(killed)
            living.append(run_consumer())

    def everything_has_come() -> bool:
        # What the killed had popped is due now. While the group pulls, a server sends it back.
        broker.execute(
            text("""UPDATE mqdb.pop_batch SET visible_at = mqdb.now()
                    WHERE visible_at > mqdb.now() AND client_id NOT IN (SELECT client_id FROM mqdb.client)""")
        )
        return_leftovers(broker)
        deliver_all(broker)
        dispatch_all(broker)
        return {body for each in (*living, *dead) for body in list(each.bodies)} == set(names)

    wait_until(everything_has_come, 60)
    counts = Counter(body for each in (*living, *dead) for body in list(each.bodies))
    doubled = {body for body, count in counts.items() if count > 1}
    assert doubled <= {body for each in dead for body in each.bodies}, f"seed {seed}: {changes} changes"
