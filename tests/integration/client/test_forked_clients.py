"""Clients in a forked child: a shutdown there logs nothing, and changes nothing of the parent's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

CLIENTS = """
import asyncio, logging, os, sys, threading, warnings
warnings.simplefilter("ignore")  # that threads and forks do not mix is the point
from mqdb.settings import load_settings
from mqdb_client import *
from mqdb_client.aio import *

kind, dsn, home = sys.argv[1:]
settings = load_settings(dsn=dsn, home=home)
got = threading.Event()

def listener(messages):
    got.set()
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

def in_order(messages):
    got.set()
    return ConsumeOrderlyStatus.SUCCESS

def in_transaction(messages, connection):
    return listener(messages)

async def in_loop(messages):
    return listener(messages)

class Undecided(TransactionListener):
    def execute_local_transaction(self, message, argument):
        return LocalTransactionState.COMMIT
    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT

def push(cls=PushConsumer, function=listener, **options):
    model = options.pop("message_model", MessageModel.CLUSTERING)
    consumer = cls("group", settings=settings, message_model=model, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.register_listener(function, **options)
    return consumer

def lite_pull(cls):
    return cls("group", settings=settings, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

make = {
    "concurrent": push,
    "orderly": lambda: push(function=in_order, orderly=True),
    "transactional": lambda: push(function=in_transaction, exactly_once=True),
    "broadcasting": lambda: push(message_model=MessageModel.BROADCASTING),
    "async": lambda: push(AsyncPushConsumer, in_loop),
    "lite pull": lambda: lite_pull(LitePullConsumer),
    "async lite pull": lambda: lite_pull(AsyncLitePullConsumer),
    "producer": lambda: Producer("senders", settings=settings),
    "async producer": lambda: AsyncProducer("senders", settings=settings),
    "transaction producer": lambda: TransactionProducer("senders", listener=Undecided(), settings=settings),
}[kind]
client = make()

async def all_in_loop():
    if not kind.endswith("producer"):
        await client.subscribe("orders")
    await client.start()
    await works()
    fork(lambda: asyncio.run(client.shutdown()))
    await works()
    await client.shutdown()

async def works():
    got.clear()
    send()
    if kind == "async":
        await asyncio.to_thread(got.wait, 30)
        assert got.is_set()
    elif kind == "async lite pull":
        while not await client.poll():
            pass
    else:
        await client.send(Message("orders", "x"))

def works_here():
    got.clear()
    send()
    if kind == "lite pull":
        while not client.poll():
            pass
    elif kind.endswith("producer"):
        client.send(Message("orders", "x"))
    else:
        assert got.wait(30)

def send():
    with Producer("others", settings=settings, instance_name="others") as other:
        other.send(Message("orders", "x"))

def fork(shutdown):
    '''Returns when the child has ended, with what it has logged.'''
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        said = os.fdopen(reading).read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
        assert said == "", said
        return
    try:
        os.dup2(writing, 2)
        logging.basicConfig(level=logging.INFO, stream=os.fdopen(os.dup(writing), "w"), force=True)
        shutdown()
        shutdown()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

if kind.startswith("async"):
    asyncio.run(all_in_loop())
else:
    if not kind.endswith("producer"):
        client.subscribe("orders")
    client.start()
    works_here()
    fork(client.shutdown)
    works_here()
    client.shutdown()
"""


KINDS = (
    "concurrent",
    "orderly",
    "transactional",
    "broadcasting",
    "async",
    "lite pull",
    "async lite pull",
    "producer",
    "async producer",
    "transaction producer",
)


@pytest.mark.parametrize("kind", usually("concurrent", "producer", of=KINDS))
def test_a_forked_child_shuts_down_without_a_word(database: Database, kind: str, tmp_path: Path) -> None:
    create_topic(database.connect(), "orders")

    done = subprocess.run(
        [sys.executable, "-c", CLIENTS, kind, database.dsn, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
