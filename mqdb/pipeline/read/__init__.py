"""A read of format("mqdb"), from the user's options to the data for Spark.

source_options, positions, offsets, schema   the options, the start and the end of a read, its columns
body_schema                   the option schema: columns made from bodies
planning, planner, tasks      on the driver: bounds become ranges, ranges become parts, parts become tasks; the planner
is pure reader, engines, rows, body_columns   on a worker: a task's statements become Arrow cluster_options,
cluster_planning, cluster_reader   reads of several brokers, each with its own plan created_tables                the
columns of CREATE TABLE ... USING mqdb progress                      the progress of a query, shown as offsets of a
group jdbc, jdbc_driver, jdbc_url   the read by Spark's JDBC reader
"""
