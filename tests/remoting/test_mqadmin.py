"""RocketMQ's own mqadmin against a front: the output of each command."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import Connection

from mqdb.common.http_address import HttpAddress
from mqdb.service.client_reaper import ClientReaper
from mqdb_client import Admin, Message, Producer, PushConsumer
from tests.fixtures.command_line import Place, served
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import Fronts
from tests.fixtures.remoting_kit import NEW, OLD, GetKit, KitProcess

CLUSTER: Final = ("-c", "DefaultCluster")

#: A JVM that lives for a second should not compile for long.
_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto")
_SECONDS: Final = 120
_TRIES: Final = 5
_UNANSWERED: Final = re.compile("Remoting(Timeout|Connect|TooMuchRequest)Exception")


class Mqadmin:
    """mqadmin, for one front."""

    def __init__(self, classpath: str, home: Path, address: HttpAddress) -> None:
        self.address = str(address)
        self._home = home
        settings = (f"-Duser.home={home}", f"-Drocketmq.namesrv.addr={address}")
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        self._command = ["java", *_JVM, *settings, "-cp", classpath, main]

    def __call__(self, *arguments: str) -> str:
        """Run a command; returns its output, with several spaces reduced to one.

        The exit code is 0 even if the command failed. The tool waits a few seconds for an answer. On a busy machine the
        JVM itself may need this time: then the command is repeated.
        """
        command = [*self._command, *arguments]
        for _ in range(_TRIES):
            # consumerStatus writes files where it is.
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=self._home)
            output = done.stdout + done.stderr
            if not _UNANSWERED.search(output):
                break
        return re.sub(" +", " ", output)


@pytest.fixture
def mqadmin(
    java_kit: GetKit, tmp_path: Path, fronts: Fronts, broker: Connection, database: Database
) -> Iterator[Mqadmin]:
    """mqadmin for a front whose broker runs its services."""
    with served(Place(tmp_path, database.dsn), ClientReaper):
        yield Mqadmin(java_kit(NEW).classpath, tmp_path, fronts.start().address)


@pytest.mark.long
def test_a_topic_is_made_and_seen(mqadmin: Mqadmin) -> None:
    made = mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "4", "-w", "4")
    status = mqadmin("topicStatus", "-t", "orders")

    assert f"create topic to {mqadmin.address} success" in made
    assert "broker-a 3 0 0" in status


@pytest.mark.long
def test_the_broker_is_shown(mqadmin: Mqadmin) -> None:
    assert f"DefaultCluster broker-a 0 {mqadmin.address} mqdb" in mqadmin("clusterList")
    assert "DefaultCluster broker-a 0 0 0 0" in mqadmin("clusterList", "-m")
    assert "brokerActive : true" in mqadmin("brokerStatus", "-b", mqadmin.address)
    assert "brokerVersionDesc : mqdb" in mqadmin("brokerStatus", *CLUSTER)
    assert "brokerName = broker-a" in mqadmin("getBrokerConfig", "-b", mqadmin.address)


@pytest.mark.long
def test_topics_are_listed_changed_and_deleted(mqadmin: Mqadmin, database: Database) -> None:
    ordered = mqadmin("updateTopic", "-b", mqadmin.address, "-t", "orders", "-r", "2", "-w", "2", "-o", "true")
    refused = mqadmin("updateTopic", "-b", mqadmin.address, "-t", "bad/name")

    assert "set broker orderConf. isOrder=true, orderConf=[broker-a:2]" in ordered
    assert "CODE: 29" in refused
    assert "\norders\n" in mqadmin("topicList")
    assert re.search("DefaultCluster orders", mqadmin("topicList", "-c"))
    assert '"readQueueNums":2' in mqadmin("topicRoute", "-t", "orders")
    assert "from NameServer success" in mqadmin("deleteTopic", *CLUSTER, "-t", "orders")
    assert "CODE: 17" in mqadmin("topicStatus", "-t", "orders")
    with Admin(database.dsn) as admin:
        verbs = [each.verb for each in admin.operations.list()]
    assert verbs == ["topic.delete", "topic.create"]


@pytest.mark.long
def test_messages_are_sent_found_and_read(mqadmin: Mqadmin) -> None:
    mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "1", "-w", "1")
    sent = mqadmin("sendMessage", "-t", "orders", "-p", "hello", "-k", "k1", "-c", "new")
    assert "SEND_OK" in sent, sent
    unique_id = re.findall("[0-9A-F]{32,}", sent)[-1]

    # A send without an answer, which was tried again, may be stored as well.
    wait_until(lambda: re.search("broker-a 0 0 [1-9]", mqadmin("topicStatus", "-t", "orders")))
    read = mqadmin("consumeMessage", "-t", "orders")

    assert "BODY: hello" in read
    assert unique_id in mqadmin("queryMsgByKey", "-t", "orders", "-k", "k1")
    assert "CODE: 208" in mqadmin("queryMsgByKey", "-t", "orders", "-k", "k2")
    assert "Keys: [k1]" in mqadmin("queryMsgByUniqueKey", "-t", "orders", "-i", unique_id)
    offset_id = re.findall("[^a-zA-Z]msgId=([0-9A-F]{32})", read)[-1]
    assert f"OffsetID: {offset_id}" in mqadmin("queryMsgById", "-t", "orders", "-i", offset_id)


@pytest.mark.long
def test_a_group_in_python_is_shown_reset_and_deleted(mqadmin: Mqadmin, database: Database) -> None:
    mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "1", "-w", "1")
    assert "retryMaxTimes=5" in mqadmin("updateSubGroup", *CLUSTER, "-g", "readers", "-r", "5")
    consumer = PushConsumer("readers", database.dsn)
    consumer.subscribe("orders")
    consumer.register_listener(inbox := Inbox())
    with consumer, Admin(database.dsn) as admin:
        [member] = admin.consumers.list("readers")
        unique_id = _send(database)
        inbox.wait_for(1)

        assert f"{member.client_id} {member.client_id.partition('@')[0]}:0 PYTHON" in mqadmin(
            "consumerConnection", "-g", "readers"
        )
        wait_until(lambda: "orders broker-a 0 1 1 0 0" in mqadmin("consumerProgress", "-g", "readers"))
        assert "Rebalance OK" in mqadmin("consumerStatus", "-g", "readers")
        status = mqadmin("consumerStatus", "-g", "readers", "-i", member.client_id, "-s")
        assert "state : running" in status
        again = ("-g", "readers", "-d", member.client_id)
        assert "consumeResult=CR_SUCCESS" in mqadmin("queryMsgByUniqueKey", "-t", "orders", "-i", unique_id, *again)
        inbox.wait_for(2)
        assert "broker-a 0 0" in mqadmin("resetOffsetByTime", "-g", "readers", "-t", "orders", "-s", "1")
        inbox.wait_for(3)
        assert "has live members" in mqadmin("deleteSubGroup", *CLUSTER, "-g", "readers")
    assert "not online" in mqadmin("consumerConnection", "-g", "readers")
    assert "success" in mqadmin("deleteSubGroup", *CLUSTER, "-g", "readers", "-r", "true")
    with Admin(database.dsn) as admin:
        assert admin.groups.list() == []
        assert [each.name for each in admin.topics.list() if "readers" in each.name] == []


@pytest.mark.long
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_member_in_java_says_how_it_is_and_obeys_a_reset(
    mqadmin: Mqadmin, database: Database, java_kit: GetKit, version: str
) -> None:
    mqadmin("updateTopic", *CLUSTER, "-t", "orders", "-r", "1", "-w", "1")
    unique_id = _send(database)
    member = KitProcess(java_kit(version), "consume", mqadmin.address, "--topic", "orders", "--group", "readers")
    try:
        [client_id] = member.wait_for("client_id")
        member.wait_for("body")
        assert f"{client_id} 127.0.0.1:" in mqadmin("consumerConnection", "-g", "readers")
        assert "Rebalance OK" in mqadmin("consumerStatus", "-g", "readers")
        again = ("-g", "readers", "-d", client_id)
        assert "consumeResult=CR_SUCCESS" in mqadmin("queryMsgByUniqueKey", "-t", "orders", "-i", unique_id, *again)
        progress = ("consumerProgress", "-g", "readers", "-s", "true")
        wait_until(lambda: re.search(r"orders broker-a 0 1 1 [0-9.]+ 0 0", mqadmin(*progress)))

        mqadmin("resetOffsetByTime", "-g", "readers", "-t", "orders", "-s", "1")

        # 4.9 drops the queue, and takes it again at its next rebalance, 20 s later.
        assert member.wait_for("body", count=3) == ["hello"] * 3
    finally:
        member.close()


def _send(database: Database) -> str:
    """Send one message to `orders`; returns its unique id. If mqadmin is run again, it may send another message."""
    with Producer("senders", database.dsn) as producer:
        return producer.send(Message("orders", "hello")).message_id
