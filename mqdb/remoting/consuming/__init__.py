"""Requests of consumers to the front.

consuming      the parts, put together, and their reactions to events
assignments    the queues of a member, and whether it pulls or pops them
pops           messages of any queue, and their acknowledgements
pulls          messages of a queue; turns asks for those of many, and read_ahead keeps the next ones
holds          pulls that wait for messages
waiting_tasks  pulls and pops end with their connection
claims         queues that clients own; hand_over gives them to other members
offsets        offsets of clients
locks          queues that are consumed in order
places         queues by topic and number; readings are how clients read them
"""
