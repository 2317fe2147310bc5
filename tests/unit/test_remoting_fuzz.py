"""Arbitrary bytes are read as a value or refused with FrameInvalid, and a frame that was read can be written again.

Each test tries a hundred cases for each of MQDB_FUZZ_CASES, at least 10,000: random bytes, and RocketMQ's own frames
with some bytes changed.
"""

import random
from collections.abc import Iterator

from mqdb.remoting.wire.frame import FrameInvalid, decode_frame, encode_frame
from mqdb.remoting.wire.messages import decode_batch, decode_offset_id, decode_properties, encode_properties, offset_id
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.remoting_vectors import bytes_of, remoting_vectors

CASES = max(10_000, 100 * fuzz_cases())

#: As lengths, as numbers with a sign, in UTF-8, in JSON.
TELLING = b'\x00\x01\x02\x7f\x80\xc3\xff"\\{}[],:\x10'


def cases(valid: list[bytes]) -> Iterator[bytes]:
    """One case in eight consists of random bytes; the others are valid ones with changes."""
    chance = fuzz_random()
    for number in range(CASES):
        yield chance.randbytes(chance.randrange(60)) if number % 8 == 0 else changed(chance, chance.choice(valid))


def changed(chance: random.Random, valid: bytes) -> bytes:
    """A frame with bytes replaced, left out, doubled or added, in up to four places."""
    mutated = bytearray(valid)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        match chance.randrange(5):
            case 0:
                mutated[at : at + 1] = bytes([chance.choice(TELLING)])
            case 1:
                mutated[at : at + 1] = chance.randbytes(1)
            case 2:
                del mutated[at : at + chance.randint(1, 8)]
            case 3:
                mutated[at:at] = mutated[at : at + chance.randint(1, 16)]
            case _:
                mutated[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"])
    return bytes(mutated)


def encoded(kind: str) -> list[bytes]:
    return [bytes_of(line["bytes"]) for line in remoting_vectors() if line["kind"] == kind]


def test_any_payload_is_a_frame_that_can_be_written_or_none() -> None:
    read = 0
    for number, payload in enumerate(cases([without_body(frame[4:]) for frame in encoded("frame")])):
        if number % 2:
            payload = payload[:1] + max(0, len(payload) - 4).to_bytes(3) + payload[4:]  # its length is right again
        try:
            frame = decode_frame(payload)
        except FrameInvalid:
            continue
        assert decode_frame(encode_frame(frame)[4:]) == frame, payload
        read += 1

    assert read > CASES / 20


def without_body(payload: bytes) -> bytes:
    return payload[: 4 + int.from_bytes(payload[1:4])]


def test_any_bytes_are_a_batch_or_none() -> None:
    batches = encoded("batch")
    first = [batch[: int.from_bytes(batch[:4])] for batch in batches]
    read = 0
    for body in cases(batches + first):
        try:
            decode_batch(body)
        except FrameInvalid:
            continue
        read += 1

    assert 0 < read < CASES


def test_any_text_has_properties() -> None:
    for case in cases([b"TAGS\x01A\x02KEYS\x01k1 k2\x02UNIQ_KEY\x010A0000011F90\x02\xe4\xb8\xad\x01x\x02"]):
        properties = decode_properties(case.decode("utf-8", "replace"))
        assert "" not in properties
        assert decode_properties(encode_properties(properties)) == properties, case


def test_any_text_is_an_offset_id_or_none() -> None:
    read = 0
    for case in cases([offset_id("127.0.0.1", 9876, 42).encode(), b"0A0000011F9000C0FFEE001122334455"]):
        text = case.decode("utf-8", "replace")
        try:
            place = decode_offset_id(text)
        except FrameInvalid:
            continue
        assert offset_id(*place) == text.upper()
        read += 1

    assert read
