"""The metrics that docs/monitoring.md explains, and those that an answer of /metrics shows."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.support.server_process import PROJECT

PAGE = PROJECT / "docs/monitoring.md"


def documented(section: str) -> dict[str, tuple[str, str, str]]:
    """The rows of a table of docs/monitoring.md: type, labels and meaning by name."""
    text = PAGE.read_text(encoding="utf-8").partition(f"### {section}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", text, re.MULTILINE)
    return {name: (kind, labels, meaning) for name, kind, labels, meaning in rows}


def shown(text: str) -> dict[str, tuple[str, str, str]]:
    """The same of an answer of /metrics, without metrics of prometheus_client itself."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("brokerhouse_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            names = ", ".join(f"`{label}`" for label in sorted(labels))
            found[name] = (family.type, names, family.documentation)
    return found
