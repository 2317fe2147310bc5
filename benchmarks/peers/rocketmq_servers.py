"""RocketMQ's name server and broker, for one measured side. Each start has fresh files."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.peers import install
from benchmarks.peers.servers import Process, Running, free_port, is_listening, stopping
from benchmarks.peers.sides import Side
from mqdb.errors import ResponseCode
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, decode_frame, encode_frame

#: What RocketMQ's own scripts give to the JVM.
_OPENED: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

_LOGGING: Final = '<configuration><root level="WARN"/></configuration>\n'

_BROKER: Final = """\
brokerClusterName=peers
brokerName=peers
brokerId=0
listenPort={port}
haListenPort={ha_port}
bindAddress=127.0.0.1
brokerIP1=127.0.0.1
flushDiskType={flush}
storePathRootDir={home}/store
storePathCommitLog={home}/store/commitlog
autoCreateTopicEnable=false
diskMaxUsedSpaceRatio=95
"""


def java(*arguments: str, memory: str = "512m", options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a class of RocketMQ's or our client."""
    home = install.DATA / "rocketmq"
    logging = f"-Drmq.logback.configurationFile={home}/logback.xml"
    paths = f"{install.ROCKETMQ_JARS}/*{os.pathsep}{install.ROCKETMQ_CLASSES}"
    heap = (f"-Xms{memory}", f"-Xmx{memory}")
    return ["java", *heap, f"-Duser.home={home}", logging, *options, "-cp", paths, *arguments]


@contextmanager
def running(side: Side, settings: str = "") -> Iterator[Running]:
    """A name server and a broker with fresh files. Lines of `settings` override those of broker.conf."""
    home = install.DATA / "rocketmq"
    shutil.rmtree(home, ignore_errors=True)
    (home / "conf").mkdir(parents=True)
    (home / "logback.xml").write_text(_LOGGING)
    names, port = free_port(), free_port()
    (home / "names.conf").write_text(f"listenPort={names}\nbindAddress=127.0.0.1\n")
    broker = _BROKER.format(port=port, ha_port=port + 1, flush=side.flush, home=home) + settings
    (home / "broker.conf").write_text(broker)
    environment = {**os.environ, "ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": f"127.0.0.1:{names}"}
    names_class = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", f"{home}/names.conf")
    broker_class = ("org.apache.rocketmq.broker.BrokerStartup", "-c", f"{home}/broker.conf")
    log = install.DATA / "rocketmq.log"
    name_server = Process(java(*names_class, memory="256m", options=_OPENED), log, environment)
    with stopping(name_server):
        name_server.wait_for(lambda: is_listening(names))
        direct = (*_OPENED, "-XX:MaxDirectMemorySize=2g")
        server = Process(java(*broker_class, memory="1g", options=direct), log, environment)
        with stopping(server):
            server.wait_for(lambda: is_listening(port))
            found = Running(side, [name_server.clock, server.clock], None)
            found.environment = {
                "PEERS_NAME_SERVER": f"127.0.0.1:{names}",
                "PEERS_BROKER": f"127.0.0.1:{port}",
            }
            server.wait_for(lambda: make_topic(found, "bench"))
            # It is in the route only when the broker has told the name server of itself, up to 10 s after its start.
            server.wait_for(lambda: is_routed(names, "bench"))
            yield found


def make_topic(server: Running, topic: str) -> bool:
    """Try to make the topic: False until the broker takes requests."""
    command = java("RocketMQClient", "topic", "--topic", topic)
    done = subprocess.run(command, env={**os.environ, **server.environment}, capture_output=True, timeout=60)
    return done.returncode == 0


def is_routed(name_server: int, topic: str) -> bool:
    """Whether the name server at a port of this machine knows where a topic is."""
    asked = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    with socket.create_connection(("127.0.0.1", name_server)) as connection, connection.makefile("rb") as answers:
        connection.sendall(encode_frame(asked))
        answer = decode_frame(answers.read(int.from_bytes(answers.read(4))))
    return answer.code == ResponseCode.SUCCESS
