"""Producers. A reader meets the modules in this order:

producer                                          the public class; config, running_producer: what it works with
sending, retry_policy, send_hooks, batch          one send and its attempts; send_result: what it returns
queue_choice, queue_selector, fault_tolerance     which queue an attempt goes to; publish_routes: which there are
append_plan, refusals, group_append, waking       the append: what is decided, without threads; and what is done
broker_link, held_connection, durability          the connection of an append
unknown, settling, handed_sends, async_send       sends without an answer; sends that nobody waits for
joined_sending, joined_send, callers_connection   sends in the caller's transaction
request_reply, request_futures, reply_reader      requests and their replies
sent_messages, recalling                          what becomes of a message afterwards
"""
