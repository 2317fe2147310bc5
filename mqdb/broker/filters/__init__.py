"""The verbs that check a filter and try one.

filters   whether a broker accepts SQL92 filters
trial     tries a filter on the existing messages of a topic
"""
