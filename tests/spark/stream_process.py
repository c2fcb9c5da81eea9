"""A streaming query in a process of its own, for tests that kill it.

`python stream_process.py URL TOPIC DIRECTORY WHERE`: writes what it reads, batch by batch, as one
file per batch id, and prints that. WHERE it stops and waits to be killed: `inside` the second batch
that is not empty, with half of it written; `between` that one and the next; or `nowhere`: then it
ends when all is read.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from brokerhouse.spark_jobs.session import session


def main(url: str, topic: str, directory: str, where: str) -> None:
    spark = session("stream under test", "local[2]", spark__driver__memory="512m")
    files = Path(directory, "files")
    files.mkdir(exist_ok=True)
    written = 0

    def wait_to_be_killed() -> None:
        print("here", flush=True)
        signal.pause()

    def write(batch: DataFrame, batch_id: int) -> None:
        """As a sink that knows a batch by its id, and replaces what it has of it."""
        nonlocal written
        rows = batch.select("partition", "offset").collect()
        if where == "between" and written == 2:
            wait_to_be_killed()
        lines = [f"{row.partition} {row.offset}\n" for row in rows]
        stop = where == "inside" and written == 1 and rows
        if stop:
            lines = lines[: len(lines) // 2]
        temporary = files / "new"
        temporary.write_text("".join(lines))
        os.replace(temporary, files / str(batch_id))
        written += bool(rows)
        if stop:
            wait_to_be_killed()

    starting = os.environ.get("STARTING_OFFSETS", "earliest")
    stream = (
        spark.readStream.format("brokerhouse")
        .options(servers=url, subscribe=topic, startingOffsets=starting)
        .options(maxOffsetsPerTrigger="100", columns="partition,offset")
        .load()
    )
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(directory, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
