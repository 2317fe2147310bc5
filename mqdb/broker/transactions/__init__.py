"""The verbs that end half messages and check those that have not ended.

transactions        the end of a half message
transaction_checks  asks producers about half messages that have not ended
"""
