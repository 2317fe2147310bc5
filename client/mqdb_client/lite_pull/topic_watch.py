"""Topic watch: notifies the user when the queues of a topic change.

RocketMQ: TopicMessageQueueChangeListener, DefaultLitePullConsumerImpl.fetchTopicMessageQueuesAndCompare.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from mqdb.common.message import MessageQueue
from mqdb.common.user_error import log_error
from mqdb.errors import MqdbError, RouteNotFound
from mqdb_client.option_rules import seconds_to_wait

logger = logging.getLogger(__name__)

#: Called with the topic and all its readable queues, in order.
TopicMessageQueueChangeListener: TypeAlias = Callable[[str, tuple[MessageQueue, ...]], None]


class TopicWatch:
    """Periodically checks the topics that have listeners. The watch is started once, then stopped once."""

    def __init__(self, group: str, find: Callable[[str], tuple[MessageQueue, ...]], interval: timedelta) -> None:
        """`find` returns the queues of a topic, and raises RouteNotFound if the topic does not exist."""
        self._group = group
        self._find = find
        self._interval = seconds_to_wait(interval)
        self._listeners: dict[str, TopicMessageQueueChangeListener] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        self._looking = threading.Lock()
        self._stopping = threading.Event()
        #: Whether a listener is running.
        self.is_calling = False
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-topics", daemon=True)

    def listen(self, topic: str, listener: TopicMessageQueueChangeListener) -> None:
        """Call `listener` when the topic's queues have changed since the start."""
        with self._looking:
            self._listeners[topic] = listener
            if self._thread.is_alive():
                self._look(topic)

    def start(self) -> None:
        """Note the current queues, and check for changes from now on."""
        with self._looking:
            for topic in self._listeners:
                self._look(topic)
            self._thread.start()

    def is_own_thread(self) -> bool:
        """Whether the caller runs on the thread that calls the listeners."""
        return threading.current_thread() is self._thread

    def stop(self, seconds: float) -> None:
        """Stop checking. Waits for a running listener for `seconds` at most."""
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            with self._looking:
                changes = [(self._listeners[topic], topic) for topic in self._listeners if self._look(topic)]
            for listener, topic in changes:
                if not self._stopping.is_set():
                    self._tell(listener, topic)

    def _look(self, topic: str) -> bool:
        """Check a topic. Returns True if its queues differ from the queues at the last check."""
        known = self._known.get(topic)
        try:
            self._known[topic] = self._find(topic)
        except RouteNotFound:
            self._known[topic] = ()
        except MqdbError as error:  # the next check may show it
            logger.debug("topic not looked at", extra={"group": self._group, "topic": topic, "reason": str(error)})
            return False
        return known is not None and known != self._known[topic]

    def _tell(self, listener: TopicMessageQueueChangeListener, topic: str) -> None:
        queues = self._known[topic]
        logger.info("queues of a topic changed", extra={"group": self._group, "topic": topic, "count": len(queues)})
        self.is_calling = True
        try:
            listener(topic, queues)
        except BaseException as error:  # noqa: BLE001 - also sys.exit(), which would end the thread
            fields = {"group": self._group, "topic": topic}
            log_error(logger, "topic listener of group %(group)s failed at topic %(topic)s", error, fields)
        finally:
            self.is_calling = False
