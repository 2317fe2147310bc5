"""mqdb beside other brokers on one machine: `python3 do.py peers`. docs/peers.md explains the table.

__main__      the command line
install       the peers in .peers/, in pinned versions
servers       PostgreSQL, RocketMQ and mqdb serve: only the measured servers run
sides         the brokers that are compared, and their databases
clients       client processes and their CPU time
stages        the work of each stage with a side
rounds        alternating rounds; a measurement on a busy machine is repeated
results       medians, ranges and ratios
table, chart  the output; markup: the SVG of the chart
workers/      the clients in Python, one module for each library; they run in the Python of the peers
rocketmq/     RocketMQ's jars and its clients in Java
"""
