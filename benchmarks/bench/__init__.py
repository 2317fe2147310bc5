"""Benchmarks of mqdb, beside reference points of their own. `python3 do.py bench --help` lists them.

commands                     produce, consume, latency, dispatch; more_commands: filter, schedule, grow, spark
running, testbed             from a command to its report; where it runs: a fresh broker, or one that is given
comparison, figures, bench_report   sides in turn, and what was measured of each
produce, consume, latency, dispatch, filter, schedule, spark   what is compared
reference, two_brokers, holding     PostgreSQL by itself; two brokers; a transaction that is open meanwhile
workers, clients, consumers, wire   the load
message_sample, machine      the messages; CPU and load of the machine
waiting, memory, spark_load  what schedule, consume and spark need
grow                         the same actions in logs of several sizes; grow_log, grow_items, growing
"""
