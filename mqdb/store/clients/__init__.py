"""Clients that are there, and what is asked of them.

clients          who is there, of which group
client_requests  what people ask of one, and its answer
"""
