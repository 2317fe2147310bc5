"""Registered clients, and requests to them.

clients          the clients and their groups
client_requests  requests from operators to a client, and its answers
"""
