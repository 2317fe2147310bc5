"""Frames of the remoting protocol: a header that describes the request or answer, and a body of any bytes.

    int32 length of what follows | int8 serializer, int24 length of the header | header | body

A header is JSON or binary; an answer uses the format of its request. `opaque` matches answers to requests, separately
for each connection and direction. All numbers are big-endian. RocketMQ: RemotingCommand, RocketMQSerializable,
LanguageCode.
"""

import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from mqdb.errors import ParameterInvalid
from mqdb.remoting.wire.codes import RequestCode


class FrameInvalid(ValueError):
    """Bytes that are not a frame, a frame with an invalid body or field, or a frame that cannot be encoded.

    Only the handlers of this package receive it.
    """


class Serializer(IntEnum):
    """The format of a header. Source: SerializeType."""

    JSON = 0
    ROCKETMQ = 1


#: Language and version in our own frames. A client sends SQL92 filters only to version 232 or later; this is the number
#: of 4.9.8.
LANGUAGE: Final = "PYTHON"
VERSION: Final = 409

#: Bits of `flag`. Source: RemotingCommand.RPC_TYPE, RPC_ONEWAY.
RESPONSE, ONEWAY = 1, 2

#: Bits of Java's int and long.
_INTEGER, _LONG = 32, 64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAST_ALL_PLACES: Final = 2**62


@dataclass(slots=True)
class Frame:
    """A request or a response. `fields` are the extFields of its header.

    All texts of a decoded frame can be encoded as UTF-8, but may contain U+0000.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION
    serializer: Serializer = Serializer.JSON
    #: For a received request: its arrival by the loop's clock, its size in bytes, and whether it is answered.
    heard_at: float = field(default=0.0, repr=False, compare=False)
    size: int = field(default=0, repr=False, compare=False)
    is_answered: bool = field(default=False, repr=False, compare=False)

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender does not wait for an answer."""
        return self.flag & ONEWAY != 0

    # Fields as values. A field that is missing or empty raises ParameterInvalid.

    def text(self, name: str) -> str:
        """A required field as text."""
        value = self.fields.get(name)
        if not value:
            raise ParameterInvalid(name, value, "is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A field as a 64-bit integer; required if there is no default."""
        return self._number(name, default, _LONG)

    def position(self, name: str) -> int:
        """A required offset in a queue, or a position in the log.

        Numbers beyond 2**62 become 2**62, at which no message exists and with which PostgreSQL can still calculate.
        """
        return min(self.number(name), _PAST_ALL_PLACES)

    def integer(self, name: str, default: int | None = None) -> int:
        """A field as a 32-bit integer; required if there is no default."""
        return self._number(name, default, _INTEGER)

    def _number(self, name: str, default: int | None, bits: int) -> int:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        try:
            found = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ParameterInvalid(name, value, "must be a whole number") from None
        if not -(1 << bits - 1) <= found < 1 << bits - 1:
            raise ParameterInvalid(name, value, f"has more than {bits} bits")
        return found

    def moment(self, name: str, *, later_ms: int = 0) -> datetime:
        """A required field with milliseconds since 1970 as a time, plus `later_ms`."""
        milliseconds = self.number(name) + later_ms
        try:
            return _EPOCH + timedelta(milliseconds=milliseconds)
        except OverflowError:
            raise ParameterInvalid(name, milliseconds, "is outside the range of times") from None

    def truth(self, name: str) -> bool:
        """Whether a field is true."""
        return self.fields.get(name) == "true"


_JSON, _ROCKETMQ = Serializer

# -- encode -------------------------------------------------------------------------------------

_PREFIX = struct.Struct(">II")
_MOST_HEADER_BYTES: Final = 0xFF_FFFF


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame, starting with its length.

    Raises FrameInvalid if the header has 16 MiB or more, or if a number does not fit into the binary format, which has
    16 bits for the code.
    """
    try:
        header = _json_header(frame) if frame.serializer is _JSON else _binary_header(frame)
    except struct.error as error:
        raise FrameInvalid(f"the binary header cannot hold this: {error}") from error
    header_bytes, body = len(header), frame.body
    if header_bytes > _MOST_HEADER_BYTES:
        raise FrameInvalid(f"a header of {header_bytes:,} bytes; the limit is {_MOST_HEADER_BYTES:,}")
    return _PREFIX.pack(4 + header_bytes + len(body), frame.serializer << 24 | header_bytes) + header + body


def _json_header(frame: Frame) -> bytes:
    # json.dumps would take twice as long.
    text = (
        f'{{"code":{frame.code},"flag":{frame.flag},"language":{quoted(frame.language)},"opaque":{frame.opaque},'
        f'"serializeTypeCurrentRPC":"JSON","version":{frame.version}'
    )
    if frame.remark is not None:
        text += f',"remark":{quoted(frame.remark)}'
    if frame.fields:
        fields = ",".join([f"{quoted(name)}:{quoted(value)}" for name, value in frame.fields.items()])
        text += f',"extFields":{{{fields}}}'
    return (text + "}").encode("ascii")


#: Code, language, version, opaque, flag, and the length of the remark that follows.
_BINARY = struct.Struct(">hBhiii")
_name_length, _length = struct.Struct(">h"), struct.Struct(">i")


def _binary_header(frame: Frame) -> bytes:
    remark = _encoded(frame.remark) if frame.remark else b""
    language = _LANGUAGE_CODES.get(frame.language, _OTHER)
    head = _BINARY.pack(frame.code, language, frame.version, frame.opaque, frame.flag, len(remark))
    fields: list[bytes] = []
    for name_text, value_text in frame.fields.items():
        name, value = _encoded(name_text), _encoded(value_text)
        fields += _name_length.pack(len(name)), name, _length.pack(len(value)), value
    packed = b"".join(fields)
    return head + remark + _length.pack(len(packed)) + packed


def _encoded(text: str) -> bytes:
    return text.encode(
        "utf-8", "replace"
    )  # as in Java: half of a surrogate pair in a remark must not prevent an answer


_OTHER: Final = 7
_LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
    *(f"LANGUAGE_{code}" for code in range(14, 256)),
)
_LANGUAGE_CODES: Final = {name: code for code, name in enumerate(_LANGUAGES)}

# -- decode -------------------------------------------------------------------------------------


def decode_frame(payload: bytes | memoryview) -> Frame:
    """Decode a frame from the bytes that follow its length. Raises FrameInvalid for bytes that are not a frame."""
    if len(payload) < 4:
        raise FrameInvalid(f"{len(payload)} bytes are not a frame")
    end = 4 + (payload[1] << 16 | payload[2] << 8 | payload[3])
    if end > len(payload):
        raise FrameInvalid(f"a header of {end - 4:,} bytes in a frame of {len(payload):,}")
    header, body = bytes(payload[4:end]), bytes(payload[end:])
    try:
        match payload[0]:
            case Serializer.JSON:
                return _decode_json(header, body)
            case Serializer.ROCKETMQ:
                return _decode_binary(header, body)
    except FrameInvalid:
        raise
    # ValueError: texts that are not UTF-8 or not JSON, or numbers with thousands of digits.
    except (ValueError, struct.error, RecursionError) as error:
        raise FrameInvalid(f"a header that cannot be parsed: {error}") from error
    raise FrameInvalid(f"serializer {payload[0]} is unknown")


_read_json = json.JSONDecoder().raw_decode


def _decode_json(header: bytes, body: bytes) -> Frame:
    text = header.decode().strip()
    found: Any
    found, end = _read_json(text)
    if type(found) is not dict or end != len(text):
        raise FrameInvalid(f"the header is a JSON {type(found).__name__}, or more than an object")
    get = found.get
    code, opaque, flag, version = get("code"), get("opaque"), get("flag", 0), get("version", 0)
    if not type(code) is type(opaque) is type(flag) is type(version) is int:
        raise FrameInvalid("code, opaque, flag or version is not a whole number")
    if min(code, opaque, flag, version) < -(2**31) or max(code, opaque, flag, version) >= 2**31:
        raise FrameInvalid("code, opaque, flag or version has more than 32 bits")
    remark, language = get("remark"), get("language")
    if remark is not None and type(remark) is not str:
        raise FrameInvalid(f"the remark is {type(remark).__name__}")
    if type(language) is not str:
        language = _language(language)
    fields = get("extFields")
    if fields is None:
        fields = {}
    elif type(fields) is not dict:
        raise FrameInvalid(f"extFields is {type(fields).__name__}")
    for value in fields.values():
        if type(value) is not str:
            fields = {name: _text(name, value) for name, value in fields.items() if value is not None}
            break
    if b"\\ud" in header or b"\\uD" in header:
        # An escape can be half of a surrogate pair, which the database cannot store.
        "".join([*fields, *fields.values(), remark or "", language]).encode()
    return Frame(code, fields, body, opaque, flag, remark, language, version, _JSON)


def _language(code: object) -> str:
    """The language as text, because some clients send a number or nothing."""
    if code is None:
        return _LANGUAGES[_OTHER]
    if type(code) is not int or not 0 <= code < len(_LANGUAGES):
        raise FrameInvalid(f"the language is {type(code).__name__}, or a number that does not fit into a byte")
    return _LANGUAGES[code]


def _text(name: str, value: object) -> str:
    """A field as text, in Java's form: clients in other languages send numbers and booleans."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    raise FrameInvalid(f"field {name[:50]!r} is {type(value).__name__}")


#: Length of the name, the name, and the length of the value: nearly all names in a send have one letter.
_FIELD_OF_ONE_LETTER = struct.Struct(">HcI")
_UNSIGNED = struct.Struct(">I")


#: The binary format has 16 bits for a code, and RocketMQ's clients omit the higher bits.
_LONG_CODES: Final = {code & 0xFFFF: int(code) for code in RequestCode if code > 0x7FFF}


def _decode_binary(header: bytes, body: bytes) -> Frame:
    code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
    code = _LONG_CODES.get(code, code)
    at = _BINARY.size + remark_bytes
    if remark_bytes < 0 or at + _length.size > len(header):
        raise FrameInvalid(f"a remark of {remark_bytes:,} bytes in a header of {len(header):,}")
    remark = header[_BINARY.size : at].decode() if remark_bytes else None
    (fields_bytes,) = _length.unpack_from(header, at)
    at += _length.size
    if at + fields_bytes != len(header):
        raise FrameInvalid(f"fields of {fields_bytes:,} bytes in a header of {len(header):,}")
    fields: dict[str, str] = {}
    while at < len(header):
        # A wrong length leads beyond the end; so does a negative one, which is read as unsigned here.
        name_bytes, name, value_bytes = _FIELD_OF_ONE_LETTER.unpack_from(header, at)
        value_at = at + _FIELD_OF_ONE_LETTER.size
        if name_bytes != 1:
            if name_bytes == 0:
                raise FrameInvalid("a field without a name")
            name = header[at + 2 : at + 2 + name_bytes]
            (value_bytes,) = _UNSIGNED.unpack_from(header, at + 2 + name_bytes)
            value_at += name_bytes - 1
        at = value_at + value_bytes
        fields[name.decode()] = header[value_at:at].decode()
    if at != len(header):
        raise FrameInvalid("a field that is longer than the header")
    return Frame(code, fields, body, opaque, flag, remark, _LANGUAGES[language], version, _ROCKETMQ)
