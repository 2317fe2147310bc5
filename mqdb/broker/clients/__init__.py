"""The verbs for clients: register, heartbeat, leave, and answer requests.

membership       clients register, send heartbeats, and leave
client_requests  requests to a running client
"""
