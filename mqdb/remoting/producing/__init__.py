"""Requests of producers to the front.

sends         messages and batches, by group append
send_back     messages that have failed, for later or for the dead letters
transactions  ends of half messages, and checks of them
replies       requests and their replies
"""
