"""Jobs on Spark, of the command line and of programs; `job` is what they have in common.

archiving, archive_files    sealed segments become Parquet
replaying                   and messages again
statistics, statistics_source   what a topic holds
dead_letter_counting, failure_text, dead_letter_report, dead_letter_page   why messages died
"""
