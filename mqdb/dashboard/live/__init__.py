"""The live parts of pages, and the streams of server-sent events that update these parts.

pulse, subject_figures    the live parts of the overview, and of topics and groups, from samples in memory
streams                   their streams, one for each open page
tail                      the stream of new messages of a topic, which queries the database
"""
