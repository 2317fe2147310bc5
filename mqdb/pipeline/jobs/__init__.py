"""Jobs on Spark, of the command line and of programs; `job` has their common parts.

archiving, archive_files    sealed segments become Parquet
replaying                   and are sent again as messages
statistics, statistics_source   counts of the messages of a topic
catching_up                     runs a streaming query as a job
table_loading, target_table     a topic becomes a PostgreSQL table
parquet_appending               or Parquet files
mirroring                       or a topic of Kafka, and back
dead_letter_counting, failure_text, dead_letter_report, dead_letter_page   causes of dead letters
"""
