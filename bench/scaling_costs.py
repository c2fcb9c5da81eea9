"""The costs of the model, from the figures that `python -m bench.scaling_inputs` measured."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.scaling_model import Costs, Linear

INPUTS = Path(__file__).with_name("scaling.toml")


def read_inputs(path: Path = INPUTS) -> Mapping[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def costs_of(inputs: Mapping[str, Any]) -> Costs:
    """The costs that explain the figures: fixed parts from the smallest, the rest from the largest.

    Each cost is computed from as few figures as possible, so that it can be checked by hand.
    """
    inserts = {(row["record_bytes"], row["rows"]): row for row in inputs["inserts"]}
    produced = {row["what"]: row for row in inputs["produced"]}
    one = inserts[100, 1]
    small, large = (inserts[size, max(rows for each, rows in inserts if each == size)]
                    for size in (100, 1000))  # fmt: skip
    loop_block = one["sender_cpu_ms"] / 1e3
    batches = produced["batches of 10"]
    loop_fixed = (batches["loop_s"] - batches["blocks"] * loop_block) / (
        batches["records"] / batches["batch_records"]
    )
    few, wide = produced["batches of 9,000"], produced["1 KB"]

    def loop_rest(row: Mapping[str, Any]) -> float:
        spent = row["blocks"] * loop_block + row["records"] / row["batch_records"] * loop_fixed
        return float(row["loop_s"] - spent)

    def through(seconds: Callable[[Mapping[str, Any]], float]) -> Linear:
        at_once = seconds(one)
        return _linear(
            at_once, (small, seconds(small) - at_once), (large, seconds(large) - at_once)
        )

    def after(row: Mapping[str, Any]) -> float:
        return max(float(row["engine_cpu_ms"] - row["merge_cpu_ms"] - row["min_ms"]) / 1e3, 0.0)

    idle = inputs["idle"]
    return Costs(
        loop_batch=_linear(
            loop_fixed, (few, loop_rest(few)), (wide, loop_rest(wide)), rows="records"
        ),
        loop_block=loop_block,
        build=_linear(0.0, (few, few["threads_s"]), (wide, wide["threads_s"]), rows="records"),
        insert=through(lambda row: float(row["min_ms"]) / 1e3),
        after=through(after),
        merge=through(lambda row: float(row["merge_cpu_ms"]) / 1e3),
        client=_linear(0.0, (few, few["client_s"]), (wide, wide["client_s"]), rows="records"),
        sent_per_byte=small["sent_bytes"] / (small["rows"] * small["record_bytes"]),
        stored_per_byte=small["stored_bytes"] / (small["rows"] * small["record_bytes"]),
        idle_loop=idle["loop_cores"],
        idle_shard=idle["engines_cores"] / 2,
        idle_keeper_per_s=idle["keeper_requests_per_s"],
    )


def _linear(
    fixed: float,
    first: tuple[Mapping[str, Any], float],
    second: tuple[Mapping[str, Any], float],
    rows: str = "rows",
) -> Linear:
    """A line through two figures of different record sizes; never negative."""
    (a, a_seconds), (b, b_seconds) = first, second
    per_a, per_b = a_seconds / a[rows], b_seconds / b[rows]
    byte = (per_b - per_a) / (b["record_bytes"] - a["record_bytes"])
    byte = min(max(byte, 0.0), per_b / b["record_bytes"])
    record = max(per_a - byte * a["record_bytes"], 0.0)
    return Linear(max(fixed, 0.0), record, byte)
