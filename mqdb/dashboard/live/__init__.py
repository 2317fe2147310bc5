"""The live parts of pages, and the streams of server-sent events that bring them.

pulse, subject_figures    the live part of the overview; of a topic and a group: from samples in memory
streams                   their streams, one for each open page
tail                      the stream of new messages of a topic, which queries the database
"""
