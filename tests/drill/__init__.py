"""A drill: mqdb under load on a cluster of Patroni, while nodes are switched over, killed, frozen and restarted.

    python3 do.py drill --help      for people, with a table
    tests/acceptance/test_patroni.py    the same faults, each with its verdict

`cluster` and `haproxy` start the programs from the files of deploy/patroni, `watch` notes what each node does,
`producing` and `consuming` are the processes of the load, `faults` has the faults, and `judge` the verdict.
"""
