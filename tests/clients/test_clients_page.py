"""The examples of docs/clients.md run unchanged, read a record and commit it.

Only the addresses, the topic and the group of each example are replaced. An example that never ends
is stopped when it has printed the record.
"""

import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support import tools
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.waiting import until

LIMIT_S = 60.0
BLOCK = re.compile(r"^## (.+?)$|^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
JAVA = """
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Example {{
    public static void main(String[] arguments) {{
{body}
    }}
}}
"""


def examples() -> Iterator[tuple[str, str, str]]:
    """Heading, language and text of each that reads as a member of the group."""
    heading = ""
    for title, language, text in BLOCK.findall((tools.PROJECT / "docs" / "clients.md").read_text()):
        heading = title or heading
        if "billing" in text and heading != "Kafka's own tools":
            yield heading, language, text


EXAMPLES = {heading: (language, text) for heading, language, text in examples()}


@pytest.fixture(scope="module")
def page_topic(broker: BrokerProcess) -> str:
    """A topic with the record that the page writes."""
    name = "events-of-the-page"
    ConfluentKafka().create_topic(broker.kafka, name, 1)
    ConfluentKafka().produce(broker.kafka, name, [Record(b"key", b"value")])
    return name


def command(language: str, text: str, directory: Path) -> list[str]:
    """How to run an example."""
    if language == "sh":
        return ["bash", "-c", f"exec {text}"]
    if language == "python":
        return [sys.executable, "-c", text]
    if language == "js":
        return [tools.node_command()[0], "-e", text]
    assert language == "java", language
    source = directory / "Example.java"
    source.write_text(JAVA.format(body=text))
    *java, classes = tools.java_command()
    compiler = "org.eclipse.jdt.internal.compiler.batch.Main"
    options = ["-17", "-proc:none", "-nowarn", "-d", str(directory)]
    libraries = [str(jar) for jar in Path(classes.split(":")[1]).parent.glob("*.jar")]
    tools.run(
        [*java, classes, compiler, *options, "-cp", ":".join(libraries), str(source)],
        limit_s=LIMIT_S,
    )
    return [*java, f"{directory}:{classes}", "Example"]


@pytest.mark.parametrize("heading", EXAMPLES)
def test_each_example_reads_the_record_and_commits_its_offset(
    broker: BrokerProcess, page_topic: str, tmp_path: Path, heading: str
) -> None:
    language, text = EXAMPLES[heading]
    group = "billing-" + re.sub(r"\W+", "-", heading)
    text = text.replace("localhost:9092", broker.kafka).replace("billing", group)
    text = text.replace("events", page_topic)
    with subprocess.Popen(
        command(language, text, tmp_path),
        cwd=tools.JS if language == "js" else tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=pump, args=(process.stdout, lines), daemon=True).start()
        try:
            while "value" not in lines.get(timeout=LIMIT_S):
                pass  # kafkajs writes its log there, too
            until(lambda: 0 in ConfluentKafka().committed(broker.kafka, group, page_topic))
        finally:
            process.terminate()


def pump(output: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    for line in output:
        lines.put(line)


def test_the_page_has_an_example_for_each_client() -> None:
    assert list(EXAMPLES) == [
        "kcat",
        "kafka-python",
        "aiokafka",
        "confluent-kafka (librdkafka)",
        "Java",
        "kafkajs",
    ]
