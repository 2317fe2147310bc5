"""Benchmarks of mqdb, each with a reference point. `python3 do.py bench --help` lists them.

commands                     produce, consume, latency, dispatch; more_commands: filter, schedule, grow, spark
running, testbed             from a command to its report; the broker under test, fresh or given
comparison, figures, bench_report   sides in turn, and the measurements of each
produce, consume, latency, dispatch, filter, schedule, spark   the sides that are compared
reference, two_brokers, holding     PostgreSQL by itself; two brokers; a transaction that is open during a benchmark
workers, clients, consumers, wire   the load
message_sample, machine      the messages; CPU and load of the machine
waiting, memory, spark_load  parts of schedule, consume and spark
grow                         the same actions in logs of several sizes; grow_log, grow_items, growing
"""
