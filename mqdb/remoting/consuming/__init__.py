"""What consumers ask of the front.

consuming   the parts, put together, and what follows when something happens
pulls       messages of a queue; turns asks for those of many, and read_ahead keeps what comes next
holds       pulls that wait for messages
claims      queues that clients own; hand_over gives them to other members
offsets     how far clients have come
locks       queues that are consumed in order
places      queues by topic and number; readings are how clients read them
"""
