"""The common text of failures: an error text without the values that differ from message to message.

`no price for order-17` and `no price for order-18` are one cause, and a report that counts causes has to see that.
Values are recognized by their shape: quoted text, times, addresses, ids, numbers. Each is replaced by the name of its
kind, so that the folded text is still readable.
"""

import re
from typing import Final

#: The maximum length of a folded text. Errors that differ only after it count as one cause.
MAX_FOLDED_CHARACTERS: Final = 300

#: Ordered: text replaced by an earlier rule is not seen by later rules. No rule backtracks over more than one token.
_RULES: Final = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        # Not the apostrophe in "can't": an opening quote must not follow a word, and a closing one must not precede a
        # word.
        (r"""(?<!\w)(['"`])(?:\\.|(?!\1)[^\\])*\1(?!\w)""", "<value>"),
        (r"[“«„][^”»“]*[”»“]", "<value>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?(?!\w)", "<time>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b", "<address>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
        # Eight hexadecimal digits or more, letters and digits: a hash, a message id.
        (r"(?<![^\W_])(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}(?![^\W_])", "<hex>"),
        # A digit, letters, a digit: many ids look like this, but no words do.
        (r"(?<![^\W_])(?=[A-Za-z]*\d+[A-Za-z]+\d)[A-Za-z0-9]{16,}(?![^\W_])", "<id>"),
        # The minus of -5, not the hyphen of order-5.
        (r"(?:(?<![\w)\]])[+-])?\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+(?!\w))?", "<n>"),
        # A list of values counts as one value, however long.
        (r"(<(?:value|uuid|time|address|hex|id|n)>)(?:\s*[,;]\s*\1)+", r"\1, ..."),
        (r"\s+", " "),
    )
)


def folded(text: str | None) -> str | None:
    """The text with `<value>`, `<uuid>`, `<time>`, `<address>`, `<hex>`, `<id>` or `<n>` instead of each value.

    Consecutive white space becomes one blank, and a long text is cut at its end. None if nothing is left or `text` is
    None.
    """
    if text is None:
        return None
    for pattern, placeholder in _RULES:
        text = pattern.sub(placeholder, text)
    text = text.strip()
    if len(text) > MAX_FOLDED_CHARACTERS:
        text = text[: MAX_FOLDED_CHARACTERS - 1] + "…"
    return text or None


def folded_exception(name: str | None) -> str | None:
    """The name of an exception, unchanged: the digits of `oauth2.Expired` belong to it.

    If the text is not a name, but a listener's invalid answer (`mqdb.common.failure.Failure`), it is folded.
    """
    if name is not None and all(part.isidentifier() for part in name.replace("<locals>", "locals").split(".")):
        return name
    return folded(name)
