"""Sends.

sending           one send and its attempts; retry_policy: whether there is another one
send_result       what it returns; send_hooks: what is told of it
batch             messages that are stored together or not at all
unknown           sends of which nobody knows whether they are stored; settling: how that is found out
handed_sends      sends that nobody waits for; async_send: those of an event loop
sent_messages     what became of a message; recalling: how it is taken back
"""
