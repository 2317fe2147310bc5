"""RocketMQ's name server and broker, for one measured side. Each start uses fresh files.

A gRPC side also has RocketMQ's proxy, in the JVM of the broker (LOCAL mode).
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
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


def java(
    program: install.JavaProgram, *arguments: str, memory: str = "512m", options: tuple[str, ...] = ()
) -> list[str]:
    """The command that runs a class of RocketMQ or of this project's client; the arguments begin with the class."""
    home = install.DATA / "rocketmq"
    # Of the servers and the client for remoting, and of the SDK for gRPC.
    logging = (f"-Drmq.logback.configurationFile={home}/logback.xml", "-Drocketmq.log.level=warn")
    heap = (f"-Xms{memory}", f"-Xmx{memory}")
    return ["java", *heap, f"-Duser.home={home}", *logging, *options, "-cp", program.class_path, *arguments]


@contextmanager
def running(side: Side, settings: str = "") -> Iterator[Running]:
    """A name server and a broker with fresh files. Lines of `settings` override those of broker.conf."""
    assert side.java_server is not None
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
    broker_class = ["org.apache.rocketmq.broker.BrokerStartup", "-c", f"{home}/broker.conf"]
    grpc_port = free_port() if side.speaks_grpc else None
    if grpc_port is not None:
        (home / "proxy.json").write_text(json.dumps(_proxy_configuration(names, grpc_port)))
        broker_class = ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", f"{home}/proxy.json"]
        broker_class += ["-bc", f"{home}/broker.conf"]
    log = install.DATA / "rocketmq.log"
    name_server = Process(java(side.java_server, *names_class, memory="256m", options=_OPENED), log, environment)
    with stopping(name_server):
        name_server.wait_for(lambda: is_listening(names))
        direct = (*_OPENED, "-XX:MaxDirectMemorySize=2g")
        server = Process(java(side.java_server, *broker_class, memory="1g", options=direct), log, environment)
        with stopping(server):
            server.wait_for(lambda: is_listening(port) and (grpc_port is None or is_listening(grpc_port)))
            found = Running(side, [name_server.clock, server.clock], None)
            found.environment = {
                "PEERS_NAME_SERVER": f"127.0.0.1:{names}",
                "PEERS_BROKER": f"127.0.0.1:{port}",
                "PEERS_ENDPOINT": "" if grpc_port is None else f"127.0.0.1:{grpc_port}",
            }
            server.wait_for(lambda: make_topic(found, "bench"))
            # It is in the route only when the broker has told the name server of itself, up to 10 s after its start.
            server.wait_for(lambda: is_routed(names, "bench"))
            yield found


def _proxy_configuration(name_server: int, port: int) -> Mapping[str, object]:
    return {
        "rocketMQClusterName": "peers",
        "proxyMode": "LOCAL",
        "namesrvAddr": f"127.0.0.1:{name_server}",
        # Clients are led to this address. The proxy itself listens at all of them.
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": port,
        "remotingListenPort": free_port(),
    }


def make_topic(server: Running, topic: str, group: str | None = None) -> bool:
    """Try to create the topic, and a group if one is given; returns False until the broker accepts requests.

    The proxy only accepts existing groups, whereas the remoting protocol creates a group on first use.
    """
    program = server.side.java_server
    assert program is not None
    arguments = ["topic", "--topic", topic] + ([] if group is None else ["--group", group])
    command = java(program, program.main_class, *arguments)
    done = subprocess.run(command, env={**os.environ, **server.environment}, capture_output=True, timeout=60)
    return done.returncode == 0


def is_routed(name_server: int, topic: str) -> bool:
    """Whether the name server at a port of this machine has a route for a topic."""
    asked = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    with socket.create_connection(("127.0.0.1", name_server)) as connection, connection.makefile("rb") as answers:
        connection.sendall(encode_frame(asked))
        answer = decode_frame(answers.read(int.from_bytes(answers.read(4))))
    return answer.code == ResponseCode.SUCCESS
