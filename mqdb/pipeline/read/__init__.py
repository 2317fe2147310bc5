"""A read of format("mqdb"), from what a user says to what Spark gets.

source_options, positions, offsets, schema   what can be said, where a read starts and ends, what it gives
body_schema                   the option schema: columns that are made of bodies
planning, planner, tasks      on the driver: bounds become ranges, ranges parts, parts tasks; the planner is pure
reader, engines, rows, body_columns   on a worker: a task's statements become Arrow
cluster_options, cluster_planning, cluster_reader   the same for several brokers: each is asked for itself
created_tables                the columns of CREATE TABLE ... USING mqdb
progress                      how far a query is, as offsets of a group that people see
jdbc, jdbc_driver, jdbc_url   the same read by Spark's JDBC reader
"""
