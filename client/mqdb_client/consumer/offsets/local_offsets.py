"""The offset file of a broadcasting consumer: it records, on the consumer's machine, the progress in each queue.

    <home>/offsets/<address>@<instance name>/<group>/
        offsets.json         the current state
        offsets.json.bak     the previous state; read if the first file is broken or missing
        offsets.json.tmp     the next state, still incomplete
        offsets.lock         held by the consumer; the kernel frees it when its process ends

One of the first two files is always complete, even if the process is killed or the power fails. Two consumers that
share a file would each skip messages that the other has read, so the second consumer is refused. RocketMQ:
LocalFileOffsetStore, OffsetSerializeWrapper.
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
    """The offset of a queue, with proofs for it and for older positions.

    `topic_created_at` distinguishes a topic from an older topic with the same name, also in another database. Offsets
    in one topic are meaningless in the other.
    """

    topic_created_at: datetime
    next_offset: int
    proofs: tuple[Proof, ...] = ()

    @property
    def position(self) -> KeptPosition:
        """The offset with its proofs, to be checked against the log."""
        return KeptPosition(self.next_offset, self.proofs)


Offsets = Mapping[MessageQueue, LocalOffset]


def offsets_directory(home: Path, address: str, instance_name: str, group: str) -> Path:
    """The directory for the offsets of a consumer. The directory is the same after each restart.

    Its name does not contain the client id, which includes the process id unless the instance has a name. A group's
    name is used as it is; the name of an instance is quoted. Source: ClientConfig.changeInstanceNameToPID.
    """
    return home / "offsets" / quote(f"{address}@{instance_name}", safe="@") / group


class LocalOffsets:
    """The offset file in a directory; the directory is created if it is missing. Thread-safe. Call `open` first."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._copy = directory / f"{FILE_NAME}.bak"
        self._partial = directory / f"{FILE_NAME}.tmp"
        # Not thread-local: the file may be closed by another thread than the one that opened it.
        # Any user who can read the file can lock it.
        self._file_lock = FileLock(directory / "offsets.lock", mode=0o600, thread_local=False)
        self._writing = threading.Lock()
        self._offsets: Offsets = {}
        self._is_whole = False

    def open(self) -> None:
        """Lock the file and read it. Raises OffsetsUnusable, and IllegalState while another consumer uses the file."""
        try:
            _make_directory(self.path.parent)
            self._file_lock.acquire(blocking=False)
        except Timeout:
            used = "in use by another consumer of the group on this machine; give each consumer its own instance_name"
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
        """The offset of a queue; None if it was never stored, or only for an older topic."""
        found = self._offsets.get(queue)
        return found if found and found.topic_created_at == topic_created_at else None

    def knows(self, topic: str, broker_name: str, topic_created_at: datetime) -> bool:
        """Whether an offset of any queue of the topic on this broker was ever stored."""
        return any(
            (queue.topic, queue.broker_name, offset.topic_created_at) == (topic, broker_name, topic_created_at)
            for queue, offset in self._offsets.items()
        )

    def put(self, changes: Offsets) -> None:
        """Store the offsets of these queues; they are on disk when this returns.

        Raises OffsetsUnusable. After an error, `get` returns the same offsets as before, and the file holds either the
        old or the new offsets.
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
        if self._is_whole:  # a broken file must not replace an intact copy
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
        # The parent directory may have to be open to PostgreSQL's account; the consumer's directory is private.
        path.mkdir(mode=0o700 if path == directory else 0o777, exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Sync a directory: otherwise a power failure may undo creations and renames in it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
