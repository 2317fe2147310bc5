"""Requests and their replies.

request_reply     a request, and who waits for its reply
request_futures   the requests that wait
reply_reader      reads replies
reply_sending     sends a reply
"""
