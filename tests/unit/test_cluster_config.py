"""The table `[cluster]` of the settings file: allowed values, and errors about wrong ones."""

from pathlib import Path

import pytest

from broker.cluster.config import ClusterConfig, load_cluster
from broker.config import ConfigError
from broker.config_sources import CLICKHOUSE_PASSWORD_ENV, load

TWO_SHARDS = """
[cluster]
name = "prod"
slots = 8

[[cluster.shards]]
name = "a"
slots = "0-2,7"
replicas = ["http://ch-1a:8123", "http://ch-1b"]

[[cluster.shards]]
name = "b"
slots = "3-6"
replicas = ["https://ch-2a", "https://[::1]:9443/"]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def loaded(tmp_path: Path, text: str, **environ: str) -> ClusterConfig:
    config = load_cluster(write(tmp_path, text), environ)
    assert config is not None
    return config


def refusal(tmp_path: Path, text: str, **environ: str) -> str:
    """The sentence, without the path of the file."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_cluster(path, environ)
    return str(refused.value).replace(str(path), "FILE")


def changed(old: str, new: str) -> str:
    assert TWO_SHARDS.count(old) == 1
    return TWO_SHARDS.replace(old, new)


def test_a_file_without_a_cluster_has_none(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, "node_id = 3\n"), {}) is None


def test_shards_have_slots_and_replicas_in_order(tmp_path: Path) -> None:
    config = loaded(tmp_path, TWO_SHARDS)
    assert config.name == "prod"
    assert [slot.shards for slot in config.first_map().slots] == [(name,) for name in "aaabbbba"]
    first, second = config.shards
    assert first.replicas == ("http://ch-1a:8123", "http://ch-1b:8123")
    assert second.replicas == ("https://ch-2a:8443", "https://[::1]:9443")
    assert config.shard("b") == second
    assert config.shard("c") is None


def test_the_brokers_settings_stand_in_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"node_id = 3\n{TWO_SHARDS}")
    assert load({}, path, {}).settings.node_id == 3
    config = load_cluster(path, {})
    assert config is not None
    assert config.slots == 8


def test_what_is_not_said_suits_replicated_servers(tmp_path: Path) -> None:
    config = loaded(tmp_path, TWO_SHARDS)
    assert (config.replicated, config.distributed) == (True, True)
    assert (config.quorum, config.quorum_min) == (2, 1)
    assert config.user == "default"


@pytest.mark.parametrize(
    ("old", "new"),
    [(', "http://ch-1b"', ""), ("slots = 8\n", "slots = 8\nreplicated = false\n")],
    ids=["a shard with one replica", "nothing replicated"],
)
def test_the_quorum_is_one_where_there_cannot_be_two(tmp_path: Path, old: str, new: str) -> None:
    assert loaded(tmp_path, changed(old, new)).quorum == 1


def test_a_shard_that_was_added_later_has_no_slots(tmp_path: Path) -> None:
    later = '\n[[cluster.shards]]\nname = "c"\nreplicas = ["http://ch-3a"]\n'
    config = loaded(tmp_path, TWO_SHARDS + later)
    assert config.shards[2].slots == ()
    assert all(slot.shards != ("c",) for slot in config.first_map().slots)


def test_the_password_is_the_first_line_of_a_file_beside_this_one(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("tiger\r\n\n")
    config = loaded(tmp_path, changed("slots = 8\n", 'slots = 8\npassword_file = "secret"\n'))
    assert config.password.get_secret_value() == "tiger"
    assert "tiger" not in repr(config)


def test_the_password_comes_from_the_environment(tmp_path: Path) -> None:
    text = changed("slots = 8\n", 'slots = 8\npassword_env = "CH"\n')
    assert loaded(tmp_path, text, CH="tiger").password.get_secret_value() == "tiger"
    config = loaded(tmp_path, TWO_SHARDS, **{CLICKHOUSE_PASSWORD_ENV: "lion"})
    assert config.password.get_secret_value() == "lion"


def test_a_password_in_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    text = changed("slots = 8\n", 'slots = 8\npassword = "tiger"\n')
    config = loaded(tmp_path, text, **{CLICKHOUSE_PASSWORD_ENV: "lion"})
    assert config.password.get_secret_value() == "tiger"


def test_a_password_of_the_wrong_type_is_not_printed(tmp_path: Path) -> None:
    text = changed("slots = 8\n", "slots = 8\npassword = 12345\n")
    assert refusal(tmp_path, text) == (
        "cluster.password (FILE) cannot be used: it must be text in quotes"
    )


REFUSED = {
    "a misspelt key": (
        changed("slots = 8", "slot = 8"),
        "FILE has the unknown key cluster.slot: did you mean slots?",
    ),
    "a misspelt key of a shard": (
        changed('replicas = ["https', 'replica = ["https'),
        "FILE has the unknown key cluster.shards[2].replica: did you mean replicas?",
    ),
    "a key like no other": (
        changed("slots = 8", "zzz = 8"),
        "FILE has the unknown key cluster.zzz: the keys are name, slots, replicated, distributed, "
        "quorum, quorum_min, user, password, password_file, password_env, tls_ca, "
        "connect_timeout_ms, request_timeout_ms, shards",
    ),
    "no name": (
        changed('name = "prod"\n', ""),
        "FILE has no key cluster.name: name of the cluster in remote_servers of every server",
    ),
    "no shards": ('[cluster]\nname = "x"\n', "FILE has no key cluster.shards: at least one"),
    "one table of shards": (
        '[cluster]\nname = "x"\n[cluster.shards]\nname = "a"\n',
        "cluster.shards = {'name': 'a'} (FILE) cannot be used: "
        "write each shard as a table [[cluster.shards]]",
    ),
    "a cluster that is no table": (
        'cluster = "prod"\n',
        "cluster in FILE is not a table: write [cluster] and its keys below",
    ),
    "a name that is SQL": (
        changed('name = "prod"', 'name = "prod\'"'),
        'cluster.name = "prod\'" (FILE) cannot be used: '
        "write letters, digits, _ and - only, 63 at most",
    ),
    "slots that are no range": (
        changed('"3-6"', '"3 to 6"'),
        "cluster.shards[2].slots = '3 to 6' (FILE) cannot be used: "
        'write slots like "0-31" or "0-15,40"',
    ),
    "a range backwards": (
        changed('"3-6"', '"6-3"'),
        "cluster.shards[2].slots = '6-3' (FILE) cannot be used: "
        "the range 6-3 ends before it starts",
    ),
    "slots of nobody": (
        changed('"3-6"', '"4-5"'),
        "[cluster] in FILE cannot be used: no shard has the slots 3, 6 of 0-7",
    ),
    "slots of two": (
        changed('"3-6"', '"2-6"'),
        "[cluster] in FILE cannot be used: slot 2 belongs to a and b",
    ),
    "slots beyond the last": (
        changed('"3-6"', '"3-6,8"'),
        "[cluster] in FILE cannot be used: "
        "shard b has the slot 8, but there are 8: the last one is 7",
    ),
    "two shards of one name": (
        changed('name = "b"', 'name = "a"'),
        "[cluster] in FILE cannot be used: the shard name a occurs twice",
    ),
    "a server twice": (
        changed("http://ch-1b", "http://ch-1a:8123"),
        "[cluster] in FILE cannot be used: the replica http://ch-1a:8123 occurs twice",
    ),
    "no replicas": (
        changed('["http://ch-1a:8123", "http://ch-1b"]', "[]"),
        "cluster.shards[1].replicas = [] (FILE) cannot be used: it must not be empty",
    ),
    "a replica without a scheme": (
        changed("http://ch-1b", "ch-1b:8123"),
        "cluster.shards[1].replicas[2] = 'ch-1b:8123' (FILE) cannot be used: "
        "write a URL like http://ch-1:8123 or https://ch-1:8443",
    ),
    "a password in a URL": (
        changed("http://ch-1b", "http://me:pw@ch-1b"),
        "cluster.shards[1].replicas[2] (FILE) cannot be used: "
        "user and password have keys of their own in [cluster]",
    ),
    "a quorum that cannot be": (
        changed("slots = 8", "slots = 8\nquorum = 3"),
        "[cluster] in FILE cannot be used: quorum is 3, but shard a has 2 replicas",
    ),
    "a quorum of what is not replicated": (
        changed("slots = 8", "slots = 8\nreplicated = false\nquorum = 2"),
        "[cluster] in FILE cannot be used: "
        "quorum is 2, but nothing is replicated (replicated = false)",
    ),
    "a least quorum above the quorum": (
        changed("slots = 8", "slots = 8\nquorum = 1\nquorum_min = 2"),
        "[cluster] in FILE cannot be used: quorum_min (2) is larger than quorum (1)",
    ),
    "too few slots": (
        changed("slots = 8", "slots = 0"),
        "cluster.slots = 0 (FILE) cannot be used: it must be at least 1",
    ),
    "no number": (
        changed("slots = 8", 'slots = "many"'),
        "cluster.slots = 'many' (FILE) cannot be used: it must be a whole number",
    ),
    "two passwords": (
        changed("slots = 8", 'slots = 8\npassword = "x"\npassword_env = "Y"'),
        "FILE has both cluster.password and cluster.password_env: remove one",
    ),
    "a variable that is not set": (
        changed("slots = 8", 'slots = 8\npassword_env = "CH"'),
        "cluster.password_env (FILE) names CH, which is not set in the environment",
    ),
    "no TOML": ("[cluster", "FILE is not valid TOML: "),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_told_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    told = refusal(tmp_path, text)
    assert told == sentence or (sentence.endswith(": ") and told.startswith(sentence))


@pytest.mark.parametrize("key", ["password_file", "tls_ca"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, key: str) -> None:
    told = refusal(tmp_path, changed("slots = 8", f'slots = 8\n{key} = "gone"'))
    assert f"{key} {tmp_path / 'gone'}" in told
    assert "\n" not in told
