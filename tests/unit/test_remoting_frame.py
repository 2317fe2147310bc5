"""Frames: mqdb reads what RocketMQ's library writes, and writes what that library would write.

Other frames are refused.
"""

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.errors import ResponseCode
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, FrameInvalid, Serializer, decode_frame, encode_frame
from tests.fixtures.remoting_vectors import bytes_of, each, remoting_vectors

LENGTH = struct.Struct(">i")


# -- RocketMQ's own frames ------------------------------------------------------------------------


def frame_of(line: dict[str, Any]) -> Frame:
    return Frame(
        line["code"],
        line["fields"] or {},
        bytes_of(line["body"]),
        line["opaque"],
        line["flag"],
        # A binary header cannot tell an empty remark from none.
        line["remark"] or (None if line["serializer"] == "ROCKETMQ" else line["remark"]),
        line["language"],
        line["version"],
        Serializer[line["serializer"]],
    )


@pytest.mark.parametrize("line", each("frame"))
def test_a_frame_of_rocketmq_is_read(line: dict[str, Any]) -> None:
    encoded = bytes_of(line["bytes"])

    assert LENGTH.unpack(encoded[:4]) == (len(encoded) - 4,)
    assert decode_frame(encoded[4:]) == decode_frame(memoryview(encoded)[4:]) == frame_of(line)


@pytest.mark.parametrize("line", each("frame"))
def test_a_frame_is_written_as_rocketmq_does(line: dict[str, Any]) -> None:
    encoded, theirs = encode_frame(frame_of(line)), bytes_of(line["bytes"])

    if line["serializer"] == "JSON":
        ours, wanted = header_of(encoded), header_of(theirs)
        wanted["extFields"] = wanted.get("extFields") or {}
        assert {"extFields": {}, **ours} == wanted
        assert encoded[-len(frame_of(line).body) or len(encoded) :] == frame_of(line).body
    else:  # the order of the fields is that of a Java map
        assert sorted(encoded) == sorted(theirs)
        assert decode_frame(encoded[4:]) == decode_frame(theirs[4:])


def header_of(encoded: bytes) -> dict[str, Any]:
    end = 8 + int.from_bytes(encoded[5:8])
    header: dict[str, Any] = json.loads(encoded[8:end])
    return header


def test_codes_have_the_numbers_of_rocketmq() -> None:
    theirs: dict[str, dict[str, int]] = {"RequestCode": {}, "ResponseCode": {}, "ClientErrorCode": {}}
    for line in remoting_vectors():
        if line["kind"] == "codes" and line["why"] in theirs:
            theirs[line["why"]] |= line["codes"]

    assert {code.name: code.value for code in RequestCode}.items() <= theirs["RequestCode"].items()
    answers = {name.removesuffix("_EXCEPTION"): code for name, code in theirs["ClientErrorCode"].items()}
    assert {code.value for code in ResponseCode} <= {*theirs["ResponseCode"].values(), *answers.values()}


# -- round trips ----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int16, int32 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31))
#: In the binary form these stand for codes of more than 16 bits.
short_codes = {code & 0xFFFF for code in RequestCode if code > 0x7FFF}
frames = st.builds(
    Frame,
    code=int16.filter(lambda code: code not in short_codes),
    fields=st.dictionaries(texts.filter(bool), texts, max_size=5),
    body=st.binary(max_size=50),
    opaque=int32,
    flag=int32,
    remark=st.none() | texts.filter(bool),
    language=st.sampled_from(["JAVA", "CPP", "GO", "NODE_JS", "LANGUAGE_14", "LANGUAGE_255"]),
    version=int16,
    serializer=st.sampled_from(Serializer),
)


@given(frames)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    encoded = encode_frame(frame)

    assert LENGTH.unpack(encoded[:4]) == (len(encoded) - 4,)
    assert decode_frame(encoded[4:]) == frame


@given(frames, st.data())
def test_a_frame_that_ends_early_is_refused(frame: Frame, data: st.DataObject) -> None:
    payload = encode_frame(replace(frame, body=b""))[4:]
    end = data.draw(st.integers(0, len(payload) - 1))

    with pytest.raises(FrameInvalid):
        decode_frame(payload[:end])


def test_flags_tell_requests_from_responses() -> None:
    assert [(Frame(1, flag=flag).is_response, Frame(1, flag=flag).is_oneway) for flag in range(4)] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]


# -- what other clients write ---------------------------------------------------------------------


def json_payload(header: str | bytes) -> bytes:
    encoded = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return LENGTH.pack(len(encoded)) + encoded


@pytest.mark.parametrize("more", ["", ',"language":null,"remark":null,"extFields":null'])
def test_a_header_of_the_least(more: str) -> None:
    frame = decode_frame(json_payload(f'{{"code":34,"opaque":7{more}}}'))

    assert frame == Frame(34, opaque=7, language="OTHER", version=0)


def test_numbers_and_booleans_among_the_fields_are_texts_and_null_is_none() -> None:
    fields = (
        '{"queueId": 3, "unitMode": false, "m": true, "topic": "orders", "offset": -9223372036854775808, "n": null}'
    )
    frame = decode_frame(json_payload(f' {{"code":11, "opaque":1, "language":13, "extFields": {fields}}}\n'))

    assert frame.language == "NODE_JS"
    assert frame.fields == {
        "queueId": "3",
        "unitMode": "false",
        "m": "true",
        "topic": "orders",
        "offset": "-9223372036854775808",
    }


def test_a_language_that_nobody_knows_is_other_in_binary() -> None:
    frame = Frame(0, language="KLINGON", serializer=Serializer.ROCKETMQ)

    assert decode_frame(encode_frame(frame)[4:]).language == "OTHER"


def test_half_a_surrogate_pair_stops_no_answer() -> None:
    for serializer in Serializer:
        assert encode_frame(Frame(1, remark="\ud800", fields={"a": "\udfff"}, serializer=serializer))


# -- faults ---------------------------------------------------------------------------------------

HEAD = '"code":34,"opaque":7'


@pytest.mark.parametrize(
    "header",
    [
        "",
        "null",
        "[]",
        '"text"',
        "{",
        f"{{{HEAD}}} {{}}",
        "{'code':34}",
        "{}",
        '{"code":34}',
        '{"opaque":7}',
        '{"code":"34","opaque":7}',
        '{"code":34.0,"opaque":7}',
        '{"code":true,"opaque":7}',
        '{"code":NaN,"opaque":7}',
        '{"code":2147483648,"opaque":7}',
        '{"code":34,"opaque":-2147483649}',
        f'{{"code":{"9" * 5_000},"opaque":7}}',
        f'{{{HEAD},"flag":null}}',
        f'{{{HEAD},"flag":[]}}',
        f'{{{HEAD},"version":"409"}}',
        f'{{{HEAD},"version":1e400}}',
        f'{{{HEAD},"remark":5}}',
        f'{{{HEAD},"language":[]}}',
        f'{{{HEAD},"language":256}}',
        f'{{{HEAD},"language":-1}}',
        f'{{{HEAD},"extFields":[]}}',
        f'{{{HEAD},"extFields":"a"}}',
        f'{{{HEAD},"extFields":{{"a":{{}}}}}}',
        f'{{{HEAD},"extFields":{{"a":[1]}}}}',
        f'{{{HEAD},"extFields":{{"a":1.5}}}}',
        f'{{{HEAD},"extFields":{{"a":{"9" * 5_000}}}}}',
        f'{{{HEAD},"extFields":{{"a":"\\ud800"}}}}',
        f'{{{HEAD},"extFields":{{"\\uDfff":"a"}}}}',
        f'{{{HEAD},"remark":"\\ud800"}}',
        f'{{{HEAD},"language":"\\ud800"}}',
        f'{{{HEAD},"remark":"\ud800"}}',
        f'{{{HEAD},"remark":"\x01"}}',
        f'{{{HEAD},"x":' + "[" * 200_000,
        f'{{{HEAD},"x":' + '{"a":' * 200_000,
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"code":34,"opaque":7,"remark":"\xc3\x28"}',
    ],
    ids=lambda header: ascii(header[:60]),
)
def test_a_json_header_that_is_none_is_refused(header: str | bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode_frame(json_payload(header))


def binary_payload(remark_bytes: int, rest: bytes) -> bytes:
    header = struct.pack(">hbhiii", 34, 0, 409, 7, 0, remark_bytes) + rest
    return LENGTH.pack(1 << 24 | len(header)) + header


@pytest.mark.parametrize(
    ("remark_bytes", "rest"),
    [
        (0, b""),
        (0, b"\0\0\0"),
        (-1, LENGTH.pack(0)),
        (2**31 - 1, LENGTH.pack(0)),
        (4, LENGTH.pack(0)),
        (2, b"\xc3\x28" + LENGTH.pack(0)),
        (0, LENGTH.pack(-1)),
        (0, LENGTH.pack(1)),
        (0, LENGTH.pack(0) + b"x"),
        (0, LENGTH.pack(1) + b"\0"),
        (0, LENGTH.pack(3) + b"\0\1a"),
        (0, LENGTH.pack(5) + b"\0\1a\0\0"),
        (0, LENGTH.pack(6) + b"\0\0" + LENGTH.pack(0)),
        (0, LENGTH.pack(8) + b"\0\0" + LENGTH.pack(2) + b"ab"),
        (0, LENGTH.pack(7) + b"\0\1a" + LENGTH.pack(1)),
        (0, LENGTH.pack(7) + b"\0\1a" + LENGTH.pack(-1)),
        (0, LENGTH.pack(7) + b"\xff\xffa" + LENGTH.pack(0)),
        (0, LENGTH.pack(8) + b"\0\1a" + LENGTH.pack(2) + b"b"),
        (0, LENGTH.pack(8) + b"\0\1a" + LENGTH.pack(1) + b"\xff"),
        (0, LENGTH.pack(8) + b"\0\1\xff" + LENGTH.pack(1) + b"b"),
    ],
)
def test_a_binary_header_that_is_none_is_refused(remark_bytes: int, rest: bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode_frame(binary_payload(remark_bytes, rest))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0\0\0", b"\0\0\0\1", b'\0\xff\xff\xff{"code":34,"opaque":7}', b"\1\0\0\5\0", b"\2\0\0\0", b"\xff\0\0\2{}"],
)
def test_a_frame_without_its_header_or_of_another_form_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode_frame(payload)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(200050, serializer=Serializer.ROCKETMQ),
        Frame(0, version=2**15, serializer=Serializer.ROCKETMQ),
        Frame(0, fields={"x" * 2**15: ""}, serializer=Serializer.ROCKETMQ),
        Frame(0, fields={"x": "y" * 2**24}, serializer=Serializer.ROCKETMQ),
        Frame(0, remark="x" * 2**24),
    ],
    ids=["code", "version", "name", "fields", "remark"],
)
def test_what_no_header_holds_is_not_written(frame: Frame) -> None:
    with pytest.raises(FrameInvalid):
        encode_frame(frame)
