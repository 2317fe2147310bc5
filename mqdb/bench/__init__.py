"""The benchmark: what is compared, the load, and the figures. `mqdb.cli.bench` runs it and prints the report."""
