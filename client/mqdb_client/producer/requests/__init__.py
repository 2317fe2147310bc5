"""Requests and their replies.

request_reply     sends a request and waits for its reply
request_futures   the waiting requests
reply_reader      reads replies
reply_sending     sends a reply
"""
