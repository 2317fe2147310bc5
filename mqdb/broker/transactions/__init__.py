"""End half messages, and ask about those without an end.

transactions        the end of a half message
transaction_checks  producers are asked about those without an end
"""
