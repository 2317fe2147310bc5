"""What producers ask of the front.

sends         messages and batches, by group append
send_back     messages that have failed, for later or for the dead letters
transactions  ends of half messages, and questions about them
replies       requests and their replies
"""
