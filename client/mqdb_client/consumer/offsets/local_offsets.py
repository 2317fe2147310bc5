"""The offset file of a broadcasting consumer: how far it has read each queue, kept on its own machine.

    <home>/offsets/<address>@<instance name>/<group>/
        offsets.json         what counts
        offsets.json.bak     what counted before; read where the first is broken or missing
        offsets.json.tmp     what will count, not whole yet
        offsets.lock         held by the consumer; the kernel frees it when its process ends

At every moment one of the first two is a whole file, also when the process is killed or the power fails. Two consumers
in one file would each skip what the other one has read, so the second is refused.
RocketMQ: LocalFileOffsetStore, OffsetSerializeWrapper.
"""

import json
import logging
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

from filelock import FileLock, Timeout

from mqdb.common.message import MessageQueue
from mqdb.common.proof import KeptPosition, Proof
from mqdb.errors import IllegalState, OffsetsUnusable

logger = logging.getLogger(__name__)

FILE_NAME: Final = "offsets.json"


class LocalOffset(NamedTuple):
    """The offset of a queue, with proofs of it and of older positions.

    `topic_created_at` tells a topic from an older one with the same name, also in another database. An offset of one of
    them means nothing in the other.
    """

    topic_created_at: datetime
    next_offset: int
    proofs: tuple[Proof, ...] = ()

    @property
    def position(self) -> KeptPosition:
        """The offset with its proofs, as the log checks it."""
        return KeptPosition(self.next_offset, self.proofs)


Offsets = Mapping[MessageQueue, LocalOffset]


def offsets_directory(home: Path, address: str, instance_name: str, group: str) -> Path:
    """The directory for the offsets of a consumer. It is the same directory after each restart.

    Its name does not contain the client id, which has the number of the process unless the instance has a name. The
    name of a group fits a directory as it is; the name of an instance is quoted. Source:
    ClientConfig.changeInstanceNameToPID.
    """
    return home / "offsets" / quote(f"{address}@{instance_name}", safe="@") / group


class LocalOffsets:
    """The offset file in a directory, which is created if it is missing. Safe for threads; open it first."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._copy = directory / f"{FILE_NAME}.bak"
        self._partial = directory / f"{FILE_NAME}.tmp"
        # Not thread-local: the thread that closes is not always the one that has opened.
        # A user who can read a file can lock it.
        self._file_lock = FileLock(directory / "offsets.lock", mode=0o600, thread_local=False)
        self._writing = threading.Lock()
        self._offsets: Offsets = {}
        self._is_whole = False

    def open(self) -> None:
        """Lock the file and read it. Raises IllegalState while another consumer has it, OffsetsUnusable."""
        try:
            _make_directory(self.path.parent)
            self._file_lock.acquire(blocking=False)
        except Timeout:
            used = "in use by another consumer of the group on this machine; give each an instance_name of its own"
            raise IllegalState(f"offset file {self.path}", used) from None
        except OSError as exc:
            raise OffsetsUnusable(self.path, f"cannot be locked: {exc}") from exc
        try:
            self._offsets = self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file for another consumer. Calling it twice has no effect."""
        self._file_lock.release()

    def get(self, queue: MessageQueue, topic_created_at: datetime) -> LocalOffset | None:
        """The offset of a queue; None if it was never put, or only for an older topic."""
        found = self._offsets.get(queue)
        return found if found and found.topic_created_at == topic_created_at else None

    def knows(self, topic: str, broker_name: str, topic_created_at: datetime) -> bool:
        """Whether any queue of the topic on that broker was ever put."""
        return any(
            (queue.topic, queue.broker_name, offset.topic_created_at) == (topic, broker_name, topic_created_at)
            for queue, offset in self._offsets.items()
        )

    def put(self, changes: Offsets) -> None:
        """Set the offsets of these queues; on return they are on the disk.

        Raises OffsetsUnusable; then `get` returns what it did, and the file holds these or those of before.
        """
        with self._writing:
            offsets = {**self._offsets, **changes}
            if offsets == self._offsets:
                return
            try:
                self._write(offsets)
            except OSError as exc:
                raise OffsetsUnusable(self.path, f"cannot be written: {exc}") from exc
            self._offsets = offsets

    def _read(self) -> Offsets:
        reasons = []
        for path in (self.path, self._copy):
            try:
                offsets = _parsed(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as exc:
                reasons.append(f"{path.name}: {exc}")
                fields = {"path": str(path), "reason": str(exc)}
                logger.warning("could not read offset file %(path)s: %(reason)s", fields, extra=fields)
                continue
            self._is_whole = path is self.path
            return offsets
        if reasons:
            remedy = f"remove {self.path.parent} to start where a new consumer does"
            raise OffsetsUnusable(self.path, f"cannot be read, nor can its copy ({'; '.join(reasons)}); {remedy}")
        return {}

    def _write(self, offsets: Offsets) -> None:
        with open(self._partial, "w", encoding="utf-8") as file:
            file.write(_written(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self._is_whole:  # a broken file must not take the place of a copy that is whole
            os.replace(self.path, self._copy)
            self._is_whole = False
        os.replace(self._partial, self.path)
        self._is_whole = True
        _sync_directory(self.path.parent)


def _written(offsets: Offsets) -> str:
    entries = [
        {
            "topic": queue.topic,
            "topic_created_at": offset.topic_created_at.isoformat(),
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "next_offset": offset.next_offset,
            "proofs": [[*proof[:2], str(proof.msg_id), proof.store_time.isoformat()] for proof in offset.proofs],
        }
        for queue, offset in sorted(offsets.items())
    ]
    return json.dumps({"offsets": entries}, indent=1) + "\n"


def _parsed(text: str) -> Offsets:
    """Raises ValueError."""
    match json.loads(text):
        case {"offsets": list(entries)}:
            return dict(map(_entry, entries))
    raise ValueError("it holds no list of offsets")


def _entry(entry: object) -> tuple[MessageQueue, LocalOffset]:
    match entry:
        case {
            "topic": str(topic),
            "topic_created_at": str(created_at),
            "broker_name": str(broker_name),
            "queue_id": int(queue_id),
            "next_offset": int(next_offset),
            "proofs": list(proofs),
        }:
            queue = MessageQueue(topic, broker_name, queue_id)
            return queue, LocalOffset(datetime.fromisoformat(created_at), next_offset, tuple(map(_proof, proofs)))
    raise ValueError(f"{entry} is not an offset of a queue")


def _proof(value: object) -> Proof:
    match value:
        case [int(queue_offset), int(log_pos), str(msg_id), str(store_time)]:
            return Proof(queue_offset, log_pos, UUID(msg_id), datetime.fromisoformat(store_time))
    raise ValueError(f"{value} is not a proof of an offset")


def _make_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        # The home above may have to let PostgreSQL's account through; the consumer's own is for nobody else.
        path.mkdir(mode=0o700 if path == directory else 0o777, exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Without this a power failure may undo what was made or renamed in it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
