"""Sends.

sending           one send and its attempts; retry_policy: the rules for retries
send_result       the result of a send; send_hooks: hooks around it
batch             messages that are stored together or not at all
unknown           sends that may or may not be stored; settling: how the outcome is found
handed_sends      sends that no thread waits for; async_send: sends with futures
sent_messages     the outcome of a send; recalling: recalls a message
"""
