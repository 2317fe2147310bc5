"""A drill: mqdb under load on a Patroni cluster while nodes are switched over, killed, frozen and restarted.

    python3 do.py drill --help      for people, with a table
    tests/acceptance/test_patroni.py    the same faults, each with its verdict

`cluster` and `haproxy` start the programs from the files of deploy/patroni, `watch` records what each node does,
`producing` and `consuming` are the processes of the load, `faults` has the faults, and `judge` the verdict.
"""
