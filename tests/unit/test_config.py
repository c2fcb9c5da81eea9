"""Settings: which source wins, and the error when a value cannot be used."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerhouse.broker.net.named_addresses import listeners_text, parse_listeners
from brokerhouse.broker.settings import config, config_sources
from brokerhouse.broker.settings.config import ConfigError, Settings
from brokerhouse.common.address import Address, parse_address


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a settings file."""

    def write(text: str) -> Path:
        path = tmp_path / "broker.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def sentence(
    flags: dict[str, object] | None = None,
    config_file: Path | None = None,
    environ: dict[str, str] | None = None,
) -> str:
    """What `load` complains about."""
    with pytest.raises(ConfigError) as caught:
        config_sources.load(flags, config_file, environ or {})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_any_source_every_setting_is_its_default() -> None:
    loaded = config_sources.load(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    toml: Callable[[str], Path],
) -> None:
    path = toml("lanes = 3\nlinger_ms = 3\nnode_id = 3\n")
    environ = {"BROKERHOUSE_LANES": "4", "BROKERHOUSE_LINGER_MS": "4"}
    loaded = config_sources.load({"lanes": "5", "node_id": None}, path, environ)
    assert (loaded.settings.lanes, loaded.settings.linger_ms, loaded.settings.node_id) == (5, 4, 3)
    assert loaded.settings.num_partitions == 1
    names = ("lanes", "linger_ms", "node_id", "num_partitions")
    assert [loaded.sources[name] for name in names] == ["flag", "env", str(path), "default"]


def test_the_sql_memory_limit_follows_from_the_memory_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mib = 1 << 20
    monkeypatch.setattr(config, "memory_bytes", lambda: 8192 * mib)
    user = {"sql_user": "a", "sql_password": "b"}

    def limits(**flags: object) -> tuple[int, int, int]:
        sql = config_sources.load(flags, environ={}).settings.sql_limits
        return sql.max_queries, sql.bounds.max_memory_bytes // mib, sql.kept_for_writer

    assert limits() == (4, 512, 0)
    assert limits(**user) == (4, 512, 1)
    assert limits(sql_max_queries=16, **user) == (16, 128, 4)
    assert limits(sql_memory_bytes=400 * mib) == (4, 100, 0)
    assert limits(sql_max_memory_bytes=1000 * mib) == (2, 1000, 0), "all stay within the total"
    assert limits(sql_max_memory_bytes=9000 * mib, **user) == (1, 2048, 0)
    monkeypatch.setattr(config, "memory_bytes", lambda: 64 * mib)
    assert limits() == (1, 16, 0)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"sql_memory_bytes": 1000}, "sql_memory_bytes (1000) must be 0 or at least 16777216"),
        (
            {"sql_memory_bytes": 1 << 30, "sql_max_memory_bytes": 1 << 31},
            "is smaller than sql_max_memory_bytes (2147483648)",
        ),
    ],
)
def test_an_impossible_sql_memory_limit_is_refused(flags: dict[str, object], what: str) -> None:
    assert what in sentence(flags)


def test_an_environment_variable_names_the_settings_file(toml: Callable[[str], Path]) -> None:
    environ = {"BROKERHOUSE_CONFIG": str(toml("lanes = 7\n"))}
    assert config_sources.load(environ=environ).settings.lanes == 7


def test_an_empty_environment_variable_counts_as_not_set() -> None:
    loaded = config_sources.load(environ={"BROKERHOUSE_LANES": "", "BROKERHOUSE_ADVERTISED": ""})
    assert loaded.settings == Settings()
    assert loaded.sources["lanes"] == "default"


def test_constructing_settings_reads_no_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKERHOUSE_LANES", "9")
    assert Settings().lanes == 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_an_address_is_parsed_and_formatted(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", ":9092", "::1:9092", "a b:1", "host:"])
def test_the_error_for_a_bad_address_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|0 to 65535"):
        parse_address(text)


@pytest.mark.parametrize("port", ["65536", "-1", "http", "٣", "99999999999999999999"])
def test_a_bad_port_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=f"from 0 to 65535, not {port!r}"):
        parse_address(f"host:{port}")


def test_a_bad_flag_is_named_with_its_value_and_the_advice() -> None:
    assert sentence({"kafka": "9092"}) == (
        "kafka = '9092' (flag --kafka) cannot be used: "
        "write HOST:PORT, for example 127.0.0.1:9092 or [::1]:9092"
    )


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("lanes", "0", "it must be at least 1"),
        ("tail_cache_bytes", "-1", "it must be at least 0"),
        ("lanes", "65", "it must be at most 64"),
        ("lanes", "two", "it must be a whole number"),
        ("fsync", "perhaps", "it must be true or false"),
        ("log_format", "xml", "it must be 'console' or 'json'"),
        ("advertised", "host:0", "write the port that they should use"),
        ("kafka", "host:1,host:2", "write NAME://HOST:PORT,NAME://HOST:PORT"),
        ("kafka", "a://host:1,a://host:2", "there are two addresses of the listener A"),
        ("kafka", "a b://host:1", "letters, digits, '.', '_' and '-' can"),
        ("kafka", "sasl_ssl://host:1", "TLS and SASL are not served"),
        ("kafka", "a://host:1,", "write NAME://HOST:PORT,NAME://HOST:PORT"),
    ],
)
def test_a_bad_environment_variable_is_named_with_the_advice(
    name: str, value: str, advice: str
) -> None:
    variable = f"BROKERHOUSE_{name.upper()}"
    text = sentence(environ={variable: value})
    assert text.startswith(f"{name} = '{value}' ({variable}) cannot be used: ")
    assert text.endswith(advice)


def test_an_advertised_address_belongs_to_a_listener() -> None:
    text = sentence({"kafka": "in://h:1,out://h:2", "advertised": "h:2"})
    assert "the listener PLAINTEXT, but kafka has only IN, OUT: write NAME://HOST:PORT" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("h:1", "h:1"),
        ("PLAINTEXT://h:1", "h:1"),
        ("inside://[::1]:1", "INSIDE://[::1]:1"),
        ("A://h:1 , b-c://h:2", "A://h:1,B-C://h:2"),
    ],
)
def test_listeners_are_written_in_one_way(text: str, shown: str) -> None:
    assert listeners_text(parse_listeners(text)) == shown
    assert parse_listeners(shown) == parse_listeners(text)


def test_a_bad_value_in_the_file_names_the_file(toml: Callable[[str], Path]) -> None:
    path = toml("lanes = 1.5\n")
    text = sentence(config_file=path)
    assert text == f"lanes = 1.5 ({path}) cannot be used: it must be a whole number"


def test_an_unknown_environment_variable_names_the_nearest_that_is_known() -> None:
    assert sentence(environ={"BROKERHOUSE_DATADIR": "/x"}) == (
        "environment variable BROKERHOUSE_DATADIR sets nothing: did you mean BROKERHOUSE_DATA_DIR?"
    )
    assert "`brokerhouse config`" in sentence(environ={"BROKERHOUSE_ZZZZ": "1"})


def test_an_environment_variable_in_the_wrong_case_is_not_ignored() -> None:
    assert "did you mean BROKERHOUSE_LANES?" in sentence(environ={"BROKERHOUSE_Lanes": "1"})


def test_an_unknown_key_in_the_file_names_the_nearest_that_is_known(
    toml: Callable[[str], Path],
) -> None:
    path = toml("kafka_ = 'x:1'\n")
    assert sentence(config_file=path) == f"{path} has the unknown key 'kafka_': did you mean kafka?"


def test_a_syntax_error_in_the_file_names_the_line(toml: Callable[[str], Path]) -> None:
    path = toml("lanes = 1\nfsync = \n")
    text = sentence(config_file=path)
    assert text.startswith(f"{path} is not valid TOML")
    assert "line 2" in text


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert sentence(config_file=path) == f"{path} cannot be read: No such file or directory"


def test_a_settings_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert sentence(config_file=path) == f"{path} is not valid TOML: it is not UTF-8 text"


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("message_max_bytes", "request_max_bytes"),
        ("request_max_bytes", "in_flight_max_bytes"),
        ("message_max_bytes", "decompressed_max_bytes"),
    ],
)
def test_an_unreachable_limit_is_refused(smaller: str, larger: str) -> None:
    flags: dict[str, object] = {
        "message_max_bytes": 5000,
        "request_max_bytes": 6000,
        "in_flight_max_bytes": 7000,
        "decompressed_max_bytes": 8000,
    }
    config_sources.load(flags, environ={})
    flags[larger] = 2000
    text = sentence(flags)
    assert re.match(rf"{larger} \(2000\) is smaller than {smaller} \(\d+\): raise ", text)


def test_a_user_needs_a_password_and_a_password_a_user() -> None:
    assert "set sql_password too" in sentence({"sql_user": "me"})
    assert "set sql_user too" in sentence(environ={"BROKERHOUSE_SQL_PASSWORD": "x"})


def test_a_password_is_never_printed() -> None:
    loaded = config_sources.load(
        {"sql_user": "me"}, environ={"BROKERHOUSE_SQL_PASSWORD": "hunter2"}
    )
    assert loaded.settings.sql_password is not None
    assert loaded.settings.sql_password.get_secret_value() == "hunter2"
    shown = "".join(f"{row}" for row in config_sources.rows(loaded))
    assert "hunter2" not in shown + repr(loaded)
    assert "5" not in sentence({"sql_user": "me", "sql_password": 5})


def test_a_missing_data_directory_is_created(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "a" / "b")
    assert config.prepare_data_dir(settings) == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_data_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(data_dir=tmp_path / "file" / "data")
    with pytest.raises(ConfigError, match=r"data_dir .*/file/data cannot be written .*: name a"):
        config.prepare_data_dir(settings)


def test_relative_paths_keep_their_meaning_after_entering_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    given = Settings(data_dir=Path("data"), iceberg_warehouse=Path("tables"))
    settings = config.enter_warehouse(given)
    assert Path.cwd() == tmp_path / "tables"
    assert settings.data_dir == tmp_path / "data"
    assert settings.sql_limits.bounds.iceberg_warehouse == str(tmp_path / "tables")


def test_every_setting_says_its_unit_and_what_it_is_in_one_line() -> None:
    for row in config_sources.rows(config_sources.load(environ={})):
        assert row.unit
        assert row.description[0].isupper()
        assert "\n" not in row.description
        assert len(row.description) <= 90
