"""The choice of the queue for a message.

publish_routes    the queues of a topic on all brokers
queue_choice      the queue of an attempt
queue_selector    selectors of users, by key, hash or machine
fault_tolerance   brokers that have failed are skipped for a while
"""
