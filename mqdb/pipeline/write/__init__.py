"""A write of format("mqdb"): each batch is appended once.

writers                     the writers that Spark calls
sink                        the work of both: staged by workers, appended by the driver
sink_options, sink_columns  what a user says
cluster_sink, cluster_queues, cluster_rows   the same for several brokers, each with its own ledger
sink_rows, bad_rows         from rows of a DataFrame to rows of the stage
"""
