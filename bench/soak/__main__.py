"""`make soak HOURS=1`: see bench/soak/__init__.py. Prints Markdown; exit code 1 if it failed."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from bench.machine import machine
from bench.soak.report import Report, verdict
from bench.soak.run import Plan, soak

FLAT_FROM_HOURS = 0.5
"""A shorter soak only shows what grew: retention and merges have not reached a balance."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=Path("soak.svg"), help="PNG or SVG")
    parser.add_argument(
        "--compaction-every-minutes",
        type=float,
        default=20.0,
        help="run the compaction job (Spark); 0 for never",
    )
    options = parser.parse_args()
    plan = Plan(options.hours * 3600, options.seed, options.compaction_every_minutes * 60)
    print(f"{options.hours:g} hours, seed {options.seed}, on {machine()}\n", flush=True)
    report = soak(plan, partial(_show, options.plot))
    failures = verdict(report, must_be_flat=options.hours >= FLAT_FROM_HOURS)
    print("\n" + ("\n".join(f"FAILED: {one}" for one in failures) or "nothing lost, nothing twice"))
    sys.exit(1 if failures else 0)


def _show(plot: Path, report: Report) -> None:
    if report.samples:
        print(report.markdown(), flush=True)
        report.draw(plot)
        print(f"\npicture: {plot}", flush=True)


if __name__ == "__main__":
    main()
