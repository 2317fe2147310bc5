"""The choice of the queue for a message.

publish_routes    the queues of a topic on all brokers
queue_choice      the queue for an attempt
queue_selector    user-defined selectors, by key, hash or machine
fault_tolerance   skips brokers for a while after they failed
"""
