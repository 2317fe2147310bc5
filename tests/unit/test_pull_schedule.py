"""The choice of queues to pull: no arrival is missed, and no queue is pulled in vain."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqdb_client.consumer.queues.pull_schedule import PullSchedule


def always(_queue_key: int) -> bool:
    return True


def schedule_of(*queue_keys: int) -> PullSchedule:
    schedule = PullSchedule()
    for key in queue_keys:
        schedule.add(key)
    return schedule


def test_new_queue_is_pulled_once() -> None:
    schedule = schedule_of(2, 1)

    assert [schedule.take(always), schedule.take(always)] == [[1, 2], []]


def test_arrival_marks_its_queue() -> None:
    schedule = schedule_of(1, 2)
    schedule.take(always)

    assert schedule.mark({2, 3})
    assert schedule.take(always) == [2]


def test_arrival_anywhere_marks_all_queues() -> None:
    schedule = schedule_of(1, 2)
    schedule.take(always)

    assert schedule.mark(None)
    assert schedule.take(always) == [1, 2]


def test_arrival_says_whether_it_changed_anything() -> None:
    schedule = schedule_of(1)

    told = [schedule.mark({1}), schedule.take(always), schedule.mark({5}), schedule.mark({1}), schedule.mark({1})]

    assert told == [False, [1], False, True, False]


def test_arrival_during_a_pull_is_kept_for_the_next_one() -> None:
    schedule = schedule_of(1)
    schedule.take(always)  # the pull is on its way

    schedule.mark({1})

    assert schedule.take(always) == [1]


def test_queue_without_room_stays_marked() -> None:
    schedule = schedule_of(1, 2)

    assert schedule.take(lambda key: key == 2) == [2]
    assert schedule.take(always) == [1]


def test_removed_queue_is_not_pulled() -> None:
    schedule = schedule_of(1)
    schedule.remove(1)

    assert not schedule.mark(None)
    assert not schedule.mark({1})
    assert schedule.take(always) == []


class ScheduleMachine(RuleBasedStateMachine):
    """A broker with late announcements, slow pulls, and queues that are sometimes full.

    A queue holds messages up to `end`; the reader has reached `position`. A pull reads the state at its beginning.
    """

    KEYS = (1, 2, 3)

    def __init__(self) -> None:
        super().__init__()
        self.schedule = PullSchedule()
        self.end = dict.fromkeys(self.KEYS, 0)
        self.position: dict[int, int] = {}
        self.announcements: list[set[int]] = []
        self.full: set[int] = set()
        self.on_its_way: dict[int, int] = {}  # queue -> its end when the pull began

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1), count=st.integers(1, 5))
    def dispatch(self, keys: set[int], count: int) -> None:
        for key in keys:
            self.end[key] += count
        self.announcements.append(keys)

    @precondition(lambda self: self.announcements)
    @rule(is_coarse=st.booleans())
    def announce(self, is_coarse: bool) -> None:
        keys = self.announcements.pop(0)
        self.schedule.mark(None if is_coarse else keys)

    @rule(key=st.sampled_from(KEYS))
    def gain(self, key: int) -> None:
        if key not in self.position:
            self.position[key] = 0
            self.schedule.add(key)

    @rule(key=st.sampled_from(KEYS))
    def lose(self, key: int) -> None:
        self.position.pop(key, None)
        self.schedule.remove(key)

    @rule(key=st.sampled_from(KEYS), is_full=st.booleans())
    def change_room(self, key: int, is_full: bool) -> None:
        (self.full.add if is_full else self.full.discard)(key)

    @precondition(lambda self: not self.on_its_way)
    @rule()
    def begin_pull(self) -> None:
        taken = self.schedule.take(lambda key: key not in self.full)
        assert not self.full & set(taken)
        assert set(taken) <= self.position.keys()
        self.on_its_way = {key: self.end[key] for key in taken}

    @precondition(lambda self: self.on_its_way)
    @rule(limit=st.integers(1, 4))
    def end_pull(self, limit: int) -> None:
        for key, end in self.on_its_way.items():
            if key in self.position:
                self.position[key] = min(self.position[key] + limit, end)
                if self.position[key] < end:
                    self.schedule.mark({key})
        self.on_its_way = {}

    @invariant()
    def nothing_is_forgotten(self) -> None:
        announced_later = set().union(*self.announcements)
        behind = {key for key, position in self.position.items() if position < self.end[key]}
        forgotten = behind - announced_later - self.on_its_way.keys() - self._marked()
        assert not forgotten

    def _marked(self) -> set[int]:
        marked = self.schedule.take(always)
        self.schedule.mark(marked)
        return set(marked)


TestScheduleModel = ScheduleMachine.TestCase
TestScheduleModel.settings = settings(stateful_step_count=50)
