"""Tag expressions: `TagA || TagB`, or `*` for everything.

A tag is checked twice. The database compares codes in an index; a code is Java's 32-bit hash of a tag. Different tags
may share a code ("Aa" and "BB" do), so the client compares the text again: `TagExpression.matches`. RocketMQ:
FilterAPI, SubscriptionData, MessageExtBrokerInner.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from mqdb.common.property import BLANKS, find_unstorable
from mqdb.errors import TagExpressionInvalid
from mqdb.selector.subscription import ExpressionType, find_excess

ALL_TAGS: Final = "*"
SEPARATOR: Final = "||"


@dataclass(frozen=True, slots=True)
class TagExpression:
    """A parsed tag expression. If it has no tags and `matches_all` is false, it matches no message.

    `codes` are the codes of `tags`, ascending and without duplicates, which the database compares.
    """

    expression_type: ClassVar[ExpressionType] = ExpressionType.TAG

    text: str
    tags: frozenset[str]
    codes: tuple[int, ...]
    matches_all: bool

    @property
    def canonical_text(self) -> str:
        """The canonical text, which is equal for all expressions that match the same tags."""
        return ALL_TAGS if self.matches_all else f" {SEPARATOR} ".join(sorted(self.tags))

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag matches; exact, unlike the comparison of codes."""
        return self.matches_all or tag in self.tags


def parse_tag_expression(text: str | None) -> TagExpression:
    """Parse a tag expression; None, "" and "*" match everything.

    Blanks around a tag are removed (Java's blanks, so U+00A0 and U+3000 stay), as are empty parts. `*` among other
    tags, or with blanks around it, is an ordinary tag. A text that consists only of separators raises
    TagExpressionInvalid; a text that consists only of blanks is legal and matches no message. Characters that
    PostgreSQL cannot store are refused, too, because no message has such a tag.
    Source: FilterAPI.buildSubscriptionData.
    """
    if not text or text == ALL_TAGS:
        return TagExpression(ALL_TAGS, frozenset(), (), matches_all=True)
    if reason := find_excess(text):
        raise TagExpressionInvalid(text, reason)
    if found := find_unstorable(text):
        raise TagExpressionInvalid(text, f"PostgreSQL cannot store the character U+{ord(found[0]):04X}")
    parts = text.split(SEPARATOR)
    if not any(parts):
        raise TagExpressionInvalid(text, "contains no tag; write tags separated by ||, or * for all")
    tags = frozenset(tag for part in parts if (tag := part.strip(BLANKS)))
    return TagExpression(text, tags, tuple(sorted(set(map(tag_code, tags)))), matches_all=False)


# A topic has few tags and many messages, so the hash of each tag is cached.
@lru_cache(maxsize=4096)
def tag_code(tag: str | None) -> int:
    """The code of a tag in the log and the consume queue; 0 for a message without a tag."""
    return java_string_hash(tag) if tag else 0


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, with 32 bits, signed, wrapping around."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass"))
    code = 0
    for position in range(0, len(units), 2):
        code = (31 * code + units[position] + (units[position + 1] << 8)) & 0xFFFF_FFFF
    return code - 0x1_0000_0000 if code >= 0x8000_0000 else code
