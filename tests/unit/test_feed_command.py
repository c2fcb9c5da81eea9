"""What `brokerhouse feed` needs."""

from pathlib import Path

from tests.support.command_line import complaint


def test_the_feed_command_refuses_to_run_without_a_cluster(tmp_path: Path) -> None:
    config = tmp_path / "single.toml"
    config.write_text('log_level = "info"\n')

    sentence = complaint(2, "feed", "--config", str(config))

    assert sentence.startswith("`brokerhouse feed` needs a file with the table [cluster]")
