"""The files for containers and systemd: what of them can be checked without Docker and systemd."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brokerhouse.broker.settings import config, config_sources
from tests.support.broker_process import BrokerProcess
from tests.support.prometheus import promtool
from tests.support.server_process import PROJECT, free_port
from tests.support.waiting import until

DOCKER = PROJECT / "docker"
UNIT = PROJECT / "docs/systemd/brokerhouse.service"
FILES = [PROJECT / "docker-compose.yml", DOCKER / "single.yml", DOCKER / "Dockerfile", UNIT]
LIMIT_S = 60.0


def image_environment() -> dict[str, str]:
    """The ENV of the image."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(r"(BROKERHOUSE_[A-Z_]+)=(\S+)", text.partition("\nENV ")[2]))


def health(http: str) -> subprocess.CompletedProcess[str]:
    """Runs the image's health check with this BROKERHOUSE_HTTP."""
    return subprocess.run(
        [sys.executable, str(DOCKER / "healthcheck.py")],
        env={**os.environ, "BROKERHOUSE_HTTP": http},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_the_image_listens_on_all_addresses_and_exposes_these_ports() -> None:
    settings = config_sources.load(environ=image_environment()).settings
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    listening = [settings.listeners[0].address, settings.http_address]
    assert [address.host for address in listening] == ["0.0.0.0", "0.0.0.0"]
    (exposed,) = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert exposed.split() == [str(address.port) for address in listening]
    (advertised,) = settings.advertised_listeners
    assert advertised.port == settings.listeners[0].port
    copied = re.findall(r"^COPY docker/healthcheck.py (\S+)$", text, re.MULTILINE)
    checked = re.findall(r'CMD \["python", "(\S+)"\]', text)
    assert len(copied) == 1
    assert copied == checked


@pytest.mark.parametrize(
    ("path", "brokers"),
    [(DOCKER / "single.yml", 1), (PROJECT / "docker-compose.yml", 2)],
    ids=["single.yml", "docker-compose.yml"],
)
def test_brokers_in_containers_are_reachable_from_containers_and_from_the_machine(
    path: Path, brokers: int
) -> None:
    services = re.split(r"^  (?=\S)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [one for one in services if "BROKERHOUSE_KAFKA" in one]
    assert len(found) == brokers
    for service in found:
        environment = dict(re.findall(r'(BROKERHOUSE_\w+): "(.+)"', service))
        settings = config_sources.load(environ=image_environment() | environment).settings
        containers, machine = settings.listeners
        assert {containers.host, machine.host} == {"0.0.0.0"}
        name = service.partition(":")[0]
        assert settings.advertised_listeners == (
            containers._replace(host=name),
            machine._replace(host="localhost"),
        )
        assert f'"127.0.0.1:{machine.port}:{machine.port}"' in service


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_in_the_files_is_one_of_a_setting(path: Path) -> None:
    named = set(re.findall(r"BROKERHOUSE_[A-Z_]+", path.read_text(encoding="utf-8")))
    known = {config_sources.environment_variable(name) for name in config.Settings.model_fields}
    assert named <= known


@pytest.mark.one_broker("looks at the addresses of one")
def test_the_health_check_of_the_image_says_whether_the_broker_serves_clients(
    broker: BrokerProcess,
) -> None:
    def is_healthy() -> bool:
        found = health(broker.http)
        return (found.returncode, found.stdout, found.stderr) == (0, "", "")

    until(is_healthy, "the health check ends with 0 and says nothing")  # Docker repeats it, too
    port = broker.http.rpartition(":")[2]
    assert health(f"0.0.0.0:{port}").returncode == 0, "where it listens is not where to connect"
    assert "Connection refused" in health(f"127.0.0.2:{port}").stderr, "another address"

    nobody = health(f"127.0.0.1:{free_port()}")
    assert nobody.returncode == 1
    assert "the broker does not answer" in nobody.stderr


def test_prometheus_accepts_the_configuration_beside_the_broker(tmp_path: Path) -> None:
    shutil.copy(DOCKER / "prometheus.yml", tmp_path)
    shutil.copy(PROJECT / "docs/prometheus/alerts.yml", tmp_path)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "16 rules found" in checked.stdout


def test_the_unit_of_systemd_can_be_enabled_and_waits_for_a_stop() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit["Service"]["ExecStart"].split()[1:3] == ["serve", "--config"]
    stop_s = config.Settings().shutdown_timeout_ms / 1000
    assert int(unit["Service"]["TimeoutStopSec"]) > stop_s
    state = Path("/var/lib") / unit["Service"]["StateDirectory"]
    assert unit["Service"]["Environment"] == f"BROKERHOUSE_DATA_DIR={state}"


def test_the_unit_and_the_image_keep_the_data_directory_private() -> None:
    unit = UNIT.read_text(encoding="utf-8").splitlines()
    assert {"StateDirectoryMode=0700", "UMask=0077"} <= set(unit)
    image = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    assert "install -d -m 0700 -o brokerhouse /data" in image
