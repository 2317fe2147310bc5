"""HAProxy in front of a cluster, made from deploy/patroni/haproxy.cfg with other addresses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mqdb.embedded.ports import HOST, is_free
from tests.drill import programs
from tests.drill.cluster import DATABASE, PASSWORD, USER, Cluster
from tests.fixtures.deploy_tools import DEPLOY
from tests.fixtures.processes import wait_until

#: How clients go to the cluster: through HAProxy, or by a DSN with all hosts.
HAPROXY: Final = "haproxy"
HOSTS: Final = "hosts"
WAYS: Final = (HAPROXY, HOSTS)

_SHUTDOWN = " on-marked-down shutdown-sessions"


@contextmanager
def running_haproxy(cluster: Cluster, *, shuts_sessions: bool) -> Iterator[str]:
    """HAProxy in front of a cluster; yields its address for the primary, as a DSN.

    Without `shuts_sessions` connections stay with a demoted node.
    """
    port, other_port = programs.free_port(), programs.free_port()
    text = (DEPLOY / "patroni" / "haproxy.cfg").read_text()
    assert _SHUTDOWN in text
    if not shuts_sessions:
        text = text.replace(_SHUTDOWN, "")
    text = text.replace("*:5000", f"{HOST}:{port}").replace("*:5001", f"{HOST}:{other_port}")
    nodes = {node.name: node for node in cluster.nodes}

    def server(found: re.Match[str]) -> str:
        node = nodes.get(found["name"])
        if node is None:
            return ""
        ports = f"{HOST}:{node.port}{found['options']}check port {node.api_port}"
        return f"    server {node.name} {ports}\n"

    text = re.sub(r" +server (?P<name>pg\d) \S+:5432(?P<options>.*)check port 8008\n", server, text)
    assert "example.org:5432" not in text.split("\nglobal\n")[1]
    home = programs.make_directory(cluster.home / f"haproxy-{port}")
    config = Path(home / "haproxy.cfg")
    config.write_text(text)
    programs.give(config)
    process = programs.start([programs.program("haproxy"), "-db", "-f", str(config)], home, home / "log")
    try:
        wait_until(lambda: not is_free(port) or process.exited.is_set())
        assert not process.exited.is_set(), (home / "log").read_text()
        yield f"postgresql://{USER}:{PASSWORD}@{HOST}:{port}/{DATABASE}"
    finally:
        process.stop()


def hosts_dsn(cluster: Cluster) -> str:
    """A DSN with all nodes; libpq connects to the first one that is read-write."""
    addresses = ",".join(f"{HOST}:{node.port}" for node in cluster.nodes)
    return f"postgresql://{USER}:{PASSWORD}@{addresses}/{DATABASE}?target_session_attrs=read-write"
