"""The sessions of the front: connections, whose they are, and the clients behind them.

listener     the socket, with or without TLS
connection   one connection: its frames, its answers, what is asked of its client
held_memory  how much connections hold together
access       whose a request is, and which rights it needs
known_names  names as the database knows them, and as their clients do
members      clients, their heartbeats, and the groups they are in
client       what is known of a client, and of it as a consumer of a group
traffic      counts; metrics tells them
"""
