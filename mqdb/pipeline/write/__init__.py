"""A write of format("mqdb"): each batch is appended once.

writers                     the writers that Spark calls
sink                        the work of both writers: workers stage, the driver appends
sink_options, sink_columns  the user's options and columns
cluster_sink, cluster_queues, cluster_rows   writes to several brokers, each with its own ledger
sink_rows, bad_rows         from rows of a DataFrame to rows of the stage
"""
