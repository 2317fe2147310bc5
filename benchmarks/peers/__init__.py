"""mqdb beside other brokers on one machine: `python3 do.py peers`. docs/peers.md says how to read its table.

__main__      the command line
install       the peers in .peers/, in pinned versions
servers       PostgreSQL, RocketMQ and mqdb serve: only what is measured runs
sides         the brokers that are compared, and their databases
clients       client processes and their CPU time
stages        what each stage does with a side
rounds        alternating rounds; a measurement on a busy machine is repeated
results       medians, ranges and ratios
table, chart  how they are shown; markup: the SVG of the chart
workers/      the clients in Python, one module for each library; they run in the Python of the peers
rocketmq/     RocketMQ's jars and its clients in Java
"""
