"""What every room may use.

* clock.py: milliseconds. tasks.py: periodic work, waits with a limit, pauses that grow.
* timings.py: durations, counted for a histogram.
* logging.py: log lines. console.py: tables and text for a terminal.
* process.py: its memory, its garbage collector. text_table.py: tables of rules, as text.
* options.py: options of commands. address.py: HOST:PORT. environment.py: names of variables.
* zstd.py and batched.py: what newer versions of Python have.
"""
