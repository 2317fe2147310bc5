"""What consumers ask of the front.

consuming      the parts, put together, and what follows when something happens
assignments    which queues a member reads, and whether it pulls or pops them
pops           messages of any queue, and their acknowledgements
pulls          messages of a queue; turns asks for those of many, and read_ahead keeps what comes next
holds          pulls that wait for messages
waiting_tasks  pulls and pops end with their connection
claims         queues that clients own; hand_over gives them to other members
offsets        how far clients have come
locks          queues that are consumed in order
places         queues by topic and number; readings are how clients read them
"""
