"""The files in deploy/ are valid for the tools that read them, and refer only to existing parts of mqdb."""

import json
import re
import shlex
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from mqdb.broker.doctor.examine import ALL_CHECKS
from mqdb.cli.app import app
from mqdb.cli.worker.order import UNUSABLE
from mqdb.embedded.ports import candidates, is_free
from mqdb.remoting.session.metrics import TrafficCollector
from mqdb.remoting.session.traffic import Traffic
from mqdb.server import Server, WebParts
from mqdb.settings import Settings, load_settings
from mqdb_client import Admin, Message, Producer
from mqdb_client.metrics import MetricsHook
from tests.fixtures.command_line import Place
from tests.fixtures.deploy_tools import DEPLOY, run_tool
from tests.fixtures.postgres import Database
from tests.fixtures.web import ANY_PORT, get, wait_for_sample

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "mqdb.json"
UNITS = [DEPLOY / "systemd" / name for name in ("mqdb.service", "mqdb-worker.service")]
MANIFESTS = ("mqdb.yaml", "migrate.yaml")
PATRONI = DEPLOY / "patroni"

#: One that clusters still run, and the newest.
KUBERNETES = ("1.31", "1.35")

#: A histogram is exported under its name alone.
METRIC = re.compile(r"\b(?:mqdb|process)_[a-z_]+?(?=_bucket\b|\b)")


def free_port() -> int:
    return next(port for port in candidates(0, None) if is_free(port))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def shown() -> set[str]:
    """The metrics that the Grafana dashboard queries."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {name for panel in panels for each in panel["targets"] for name in METRIC.findall(each["expr"])}


def manifests() -> list[dict[str, Any]]:
    return [each for name in MANIFESTS for each in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]


def containers() -> list[dict[str, Any]]:
    pods = [each["spec"]["template"]["spec"] for each in manifests() if "template" in each["spec"]]
    return [container for pod in pods for container in pod["containers"]]


def test_prometheus_takes_the_alerts() -> None:
    assert "20 rules found" in run_tool("promtool", "check", "rules", ALERTS)


def test_the_alerts_sound_when_they_should_and_not_else(tmp_path: Path) -> None:
    labels = 'broker="broker-a",cluster="DefaultCluster"'
    group = f'{{{labels},consumer_group="billing",topic="orders"}}'
    quiet = {
        f"mqdb_leader{{{labels}}}": "1x30",
        f"mqdb_dispatch_behind_seconds{{{labels}}}": "1x30",
        f'mqdb_segments{{{labels},state="open"}}': "2x30",
        f"mqdb_consumer_lag_seconds{group}": "20x30",
        f"mqdb_consumer_lag_messages{group}": "20x30",
        f'mqdb_consumer_members{{{labels},consumer_group="billing"}}': "1x30",
        f'mqdb_dlq_messages_total{{{labels},consumer_group="billing"}}': "4x30",
        f'mqdb_remoting_requests_total{{{labels},response="SUCCESS"}}': "0+1000x30",
        f'mqdb_remoting_requests_total{{{labels},response="SYSTEM_ERROR"}}': "0+1x30",
        f"mqdb_sync_wait_seconds{{{labels}}}": "1x30",
        f'mqdb_server_is_standby{{{labels},instance="a"}}': "1x30",
        f'mqdb_server_is_standby{{{labels},instance="b"}}': "0x30",
        f"mqdb_history_changes_total{{{labels}}}": "3x30",
        f'mqdb_slot_kept_bytes{{{labels},slot="pg2"}}': "1e9x30",
        f"mqdb_archiver_failing_seconds{{{labels}}}": "0x30",
        f"mqdb_published_tables_without_identity{{{labels}}}": "0x30",
        'mqdb_client_broker_away{broker="broker-a",instance="shop"}': "0x20 1 0x9",
    }
    loud = {
        "MqdbNoLeader": {f"mqdb_leader{{{labels}}}": "0x30"},
        "MqdbDispatchBehind": {f"mqdb_dispatch_behind_seconds{{{labels}}}": "11x30"},
        "MqdbNoSegmentLeft": {f'mqdb_segments{{{labels},state="open"}}': "1x30"},
        "MqdbLag": {f"mqdb_consumer_lag_seconds{group}": "301x30"},
        "MqdbNoMember": {f'mqdb_consumer_members{{{labels},consumer_group="billing"}}': "0x30"},
        "MqdbServiceFails": {f'mqdb_service_rounds_total{{{labels},service="dispatcher"}}': "3x30"},
        "MqdbDeadLetters": {f'mqdb_dlq_messages_total{{{labels},consumer_group="billing"}}': "4x20 5x10"},
        "MqdbWaitsForStandby": {f"mqdb_sync_wait_seconds{{{labels}}}": "11x30"},
        "MqdbServerIsStandby": {f'mqdb_server_is_standby{{{labels},instance="b"}}': "1x30"},
        "MqdbHistoryChanged": {f"mqdb_history_changes_total{{{labels}}}": "3x20 4x10"},
        "MqdbSlotKeepsWal": {f'mqdb_slot_kept_bytes{{{labels},slot="pg2"}}': "11e9x30"},
        "MqdbArchiverFails": {f"mqdb_archiver_failing_seconds{{{labels}}}": "601x30"},
        "MqdbPublicationWithoutIdentity": {f"mqdb_published_tables_without_identity{{{labels}}}": "1x30"},
        "MqdbClientWithoutBroker": {'mqdb_client_broker_away{broker="broker-a",instance="shop"}': "0x20 1x10"},
        "MqdbRemotingErrors": {f'mqdb_remoting_requests_total{{{labels},response="SYSTEM_ERROR"}}': "0+20x30"},
    }
    names = [rule["alert"] for rule in rules()]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in (quiet | others).items()],
            "promql_expr_test": [
                {
                    "expr": f'count by (alertname) (ALERTS{{alertname="{name}", alertstate="firing"}})',
                    "eval_time": "25m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name == sounds else [],
                }
                for name in names
            ],
        }
        for sounds, others in [(None, {}), *loud.items()]
    ]
    file = tmp_path / "alerts_test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))

    run_tool("promtool", "test", "rules", file)


def test_each_alert_names_a_check_of_the_doctor() -> None:
    assert {rule["annotations"]["doctor"] for rule in rules()} <= {check.name for check in ALL_CHECKS}


def test_alerts_and_dashboard_ask_for_what_is_exported(database: Database) -> None:
    asked = shown() | {name for rule in rules() for name in METRIC.findall(rule["expr"])}

    with Admin(database.dsn) as admin, Producer("billing", database.dsn) as producer:
        admin.topics.create("orders")
        producer.send(Message("orders", "the oldest"))

    front = partial(TrafficCollector, traffic=Traffic())
    with Server(load_settings(dsn=database.dsn, http=ANY_PORT), web=WebParts(metrics_of=[front])) as server:
        wait_for_sample(server)
        page = get(server, "/metrics").body
    MetricsHook(clients := CollectorRegistry())
    exported = set(re.findall(r"^# TYPE (\S+)", page + generate_latest(clients).decode(), re.MULTILINE))

    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    assert len(asked) > 20
    assert asked <= exported
    assert {
        name for name in exported if not re.search(rf"`{name}[`{{]", page) and not name.startswith("process_")
    } == set()


def test_the_dashboard_shows_outages_of_clients_and_the_replication_of_the_server() -> None:
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    outages = page.partition("\n### Outages\n")[2].partition("\n### ")[0]
    replication = page.partition("| `mqdb_server_is_standby`")[2].partition("\n\n")[0]
    told = {*re.findall(r"`(mqdb_client_\w+)` \|", outages), *re.findall(r"`(mqdb_\w+)`", replication)}

    assert len(told) > 12
    # The timeline is told by clients, with the server; the age of a failure is for the alert.
    assert told - shown() == {"mqdb_server_timeline", "mqdb_archiver_failing_seconds"}


def test_the_dashboard_has_each_panel_once() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]

    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_does_not_restart_what_somebody_has_to_mend(unit: Path) -> None:
    assert f"RestartPreventExitStatus={UNUSABLE}" in unit.read_text().splitlines()


def test_a_wrong_setting_is_to_be_mended(tmp_path: Path) -> None:
    for command in ("serve", "web", "remoting"):
        outcome = Place(tmp_path).call(command, MQDB_PORT="70000")

        assert outcome.code == UNUSABLE, command
        assert outcome.errors.startswith("mqdb: setting port = '70000' (from environment MQDB_PORT)"), command


def test_an_address_that_is_taken_may_be_free_later(tmp_path: Path, database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for setting in ("MQDB_HTTP", "MQDB_REMOTING"):
            outcome = Place(tmp_path, database.dsn).run("serve", **{setting: address})

            assert outcome.code == 1, setting
            assert f"(from environment {setting}): cannot listen there: " in outcome.errors, setting


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(tmp_path: Path, unit: Path) -> None:
    copy = tmp_path / unit.name
    # The program is not there before it is installed.
    copy.write_text(re.sub(r"/opt/\S+/bin/mqdb", sys.executable, unit.read_text()))

    assert run_tool("systemd-analyze", "verify", "--man=no", copy) == ""


def test_patroni_takes_its_file(tmp_path: Path) -> None:
    text = (PATRONI / "patroni.yml").read_text()
    copy = tmp_path / "patroni.yml"
    with ExitStack() as stack:
        # It asks whether etcd answers, and whether it could listen itself.
        for etcd in re.findall(r"etcd\d\.example\.org:2379", text):
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            text = text.replace(etcd, f"127.0.0.1:{listening.getsockname()[1]}")
        copy.write_text(re.sub(r"listen: \S+", lambda _: f"listen: 127.0.0.1:{free_port()}", text))

        run_tool("patroni", "--validate-config", copy)


def test_a_primary_of_patroni_demotes_itself_before_its_key_expires() -> None:
    dcs = yaml.safe_load((PATRONI / "patroni.yml").read_text())["bootstrap"]["dcs"]

    assert dcs["ttl"] >= dcs["loop_wait"] + 2 * dcs["retry_timeout"]


def test_haproxy_takes_its_file(tmp_path: Path) -> None:
    copy = tmp_path / "haproxy.cfg"
    copy.write_text(re.sub(r"pg\d\.example\.org", "127.0.0.1", (PATRONI / "haproxy.cfg").read_text()))

    run_tool("haproxy", "-c", "-f", copy)


def test_pgbackrest_takes_its_file(tmp_path: Path) -> None:
    config = PATRONI / "pgbackrest.conf"

    told = run_tool("pgbackrest", f"--config={config}", f"--repo1-path={tmp_path}", "--log-level-file=off", "info")

    assert "WARN" not in told


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_the_manifests(version: str) -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_what_is_deployed_says_only_what_mqdb_understands() -> None:
    command = typer.main.get_command(app)
    texts = [unit.read_text() for unit in UNITS]
    starts = [shlex.split(line) for text in texts for line in re.findall(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE)]
    assert len(starts) == len(UNITS)
    for arguments in (*starts, *(container["args"] for container in containers())):
        name, *options = arguments
        command.commands[name].make_context(name, options)  # type: ignore[attr-defined]
    names = re.findall(r"\bMQDB_([A-Z_]+)", "".join(texts) + json.dumps(manifests()))
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_probes_ask_where_the_container_answers() -> None:
    [serve] = [container for container in containers() if container["args"][0] == "serve"]
    [http] = serve["ports"]
    environment = {each["name"]: each.get("value") for each in serve["env"]}

    address = load_settings(http=environment["MQDB_HTTP"], web_password="x").http_address
    assert address is not None
    assert address.port == http["containerPort"]
    paths = {serve[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert paths == {"/healthz", "/readyz"}
    assert {serve[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {http["name"]}
