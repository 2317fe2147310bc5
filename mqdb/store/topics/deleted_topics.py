"""Topics that were deleted together with the messages waiting for them.

Such a message stays in the log, which is never changed, and names its topic. The row of the topic distinguishes it from
a message to a newer topic with the same name.
"""

from sqlalchemy import ColumnElement, and_, any_, func, literal_column, select

from mqdb.store.tables import deleted_topic


def went_along(topic: ColumnElement[str], log_pos: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a message that waits for a topic was deleted together with an older topic.

    A statement reads the names once, and usually finds no names. Only messages with these names cost a lookup in
    deleted_topic_pkey.
    """
    names = func.array(select(deleted_topic.c.topic).scalar_subquery())
    last_pos = select(deleted_topic.c.last_pos).where(deleted_topic.c.topic == topic).correlate_except(deleted_topic)
    found = and_(topic == any_(names), log_pos <= last_pos.scalar_subquery())
    return func.coalesce(found, literal_column("false"))
