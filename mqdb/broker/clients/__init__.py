"""Come, stay, go, and be asked.

membership       clients come, give signs of life, and go
client_requests  a running client is asked
"""
