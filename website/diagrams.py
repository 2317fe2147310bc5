"""The drawings of docs/how-it-works.md: boxes, arrows and timelines, as SVG in the colours of the reader's theme.

    python -m website.diagrams     writes them into docs/images; a test compares them with this module

Coordinates are pixels of the drawing, from its upper left corner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"

_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}.small{font-size:11px;fill:#52606d}"
    ".box{fill:#fff;stroke:#52606d}"
    ".table{fill:#e8effc;stroke:#3f61b5}.ours{fill:#fdf3dc;stroke:#b7791f}"
    ".line{stroke:#52606d;stroke-width:1.3;fill:none}.dashed{stroke-dasharray:5 4}.tip{fill:#52606d}"
    ".open{stroke:#b7791f;stroke-width:6}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e7eb}.small{fill:#9aa5b1}.box{fill:#1f2933;stroke:#9aa5b1}"
    ".table{fill:#1c2b4a;stroke:#7b9be8}.ours{fill:#3d2e0f;stroke:#e0b04f}.line{stroke:#9aa5b1}.tip{fill:#9aa5b1}"
    ".open{stroke:#e0b04f}}"
)


class Box(NamedTuple):
    """A rectangle with centred lines of text."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> tuple[float, float]:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height


@dataclass
class Drawing:
    """An SVG that is drawn step by step. Screen readers read its title."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, *lines: str, kind: str = "box", width: float = 120, height: float = 46) -> Box:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{kind}"/>')
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 16 * number, line, "small" if number else "", "middle")
        return Box(x, y, width, height)

    def text(self, x: float, y: float, line: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(line)}</text>')

    def arrow(self, *points: tuple[float, float], label: str = "", dashed: bool = False) -> None:
        """Draw an arrow through the points to the last point, with a label above the middle of the first segment."""
        path = " ".join(f"{x},{y}" for x, y in points)
        kind = "line dashed" if dashed else "line"
        self.parts.append(f'<polyline points="{path}" class="{kind}" marker-end="url(#tip)"/>')
        if label:
            (x, y), (past_x, past_y) = points[:2]
            upright = x == past_x
            place = (x + 6, (y + past_y) / 2 + 4) if upright else ((x + past_x) / 2, (y + past_y) / 2 - 6)
            self.text(*place, label, "small", "start" if upright else "middle")

    def line(self, x: float, y: float, past_x: float, past_y: float, kind: str = "line") -> None:
        self.parts.append(f'<line x1="{x}" y1="{y}" x2="{past_x}" y2="{past_y}" class="{kind}"/>')

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {self.width} {self.height}"'
            f" aria-label={quoteattr(self.title)}><title>{escape(self.title)}</title><style>{_STYLE}</style>"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" class="tip"/></marker></defs>' + "\n".join(self.parts) + "</svg>\n"
        )


def message_life() -> Drawing:
    """The tables through which a message passes: from the producer to a listener, to a retry and to dead letters."""
    drawing = Drawing("The way of a message through the tables of mqdb", 820, 250)
    producer = drawing.box(10, 20, "Producer", "or mqdb.send() in SQL", width=150)
    log = drawing.box(240, 20, "commit_log", "all records, in order", kind="table", width=140)
    queue = drawing.box(450, 20, "queue_run", "queue, offset → position", kind="table", width=180)
    consumer = drawing.box(690, 20, "Consumer", "listener", width=125)
    offset = drawing.box(690, 110, "consumer_offset", "of the group", kind="table", width=125)
    schedule = drawing.box(450, 110, "SCHEDULE_TOPIC_XXXX", "waits for its time", kind="table", width=180)
    dead = drawing.box(450, 190, "%DLQ%group", "dead letters", kind="table", width=180)
    drawing.arrow(producer.right, log.left, label="append")
    drawing.arrow(log.right, queue.left, label="dispatch")
    drawing.arrow(queue.right, consumer.left, label="pull")
    drawing.arrow(consumer.bottom, offset.top, label="success")
    drawing.arrow((690, 54), (670, 54), (670, 133), schedule.right)
    drawing.arrow((670, 133), (670, 213), dead.right)
    drawing.text(664, 104, "failure", "small", "end")
    drawing.text(664, 184, "after the last retry", "small", "end")
    drawing.arrow(schedule.left, (310, 133), log.bottom, label="copied to %RETRY%group")
    drawing.arrow(dead.left, (280, 213), (280, 66), label="redrive")
    return drawing


def snapshots() -> Drawing:
    """Three transactions that commit in a different order from that of their positions, and two rounds of dispatch."""
    drawing = Drawing("Positions are taken in one order, and transactions commit in another", 820, 230)
    rows = [("A", 40, "position 1", 120, 640), ("B", 85, "position 2", 180, 330), ("C", 130, "position 3", 250, 420)]
    for name, y, position, begin, end in rows:
        drawing.text(20, y + 5, f"transaction {name}")
        drawing.line(begin, y, end, y, "open")
        drawing.text(begin, y - 9, position, "small")
        drawing.text(end + 8, y + 4, "commit", "small")
    for x, name, found in ((500, "round 1", "finds 2 and 3"), (720, "round 2", "finds 1, a straggler")):
        drawing.line(x, 15, x, 165, "line dashed")
        drawing.text(x, 182, name, anchor="middle")
        drawing.text(x, 199, found, "small", "middle")
    drawing.arrow((110, 215), (790, 215))
    drawing.text(20, 219, "time", "small")
    return drawing


def retries() -> Drawing:
    """The retry ladder: the delays between deliveries, the dead-letter queue, and the way back."""
    drawing = Drawing("A failed message climbs the delay levels, and ends as a dead letter", 820, 170)
    steps = (("orders", "delivery 1"), ("level 3: 10 s", "delivery 2"), ("level 4: 30 s", "delivery 3"))
    boxes: list[Box] = []
    for number, lines in enumerate(steps):
        boxes.append(drawing.box(10 + 150 * number, 20, *lines, kind="box" if number == 0 else "table"))
    boxes.append(drawing.box(490, 20, "level 18: 2 h", "delivery 17", kind="table"))
    dead = drawing.box(690, 20, "%DLQ%group", "a dead letter", kind="ours")
    for before, after in pairwise(boxes):
        drawing.arrow(before.right, after.left, dashed=after is boxes[-1])
    drawing.arrow(boxes[-1].right, dead.left, label="fails")
    drawing.text(455, 15, "1 min to 1 h", "small", "middle")
    again = drawing.box(310, 110, "%RETRY%group", "all retries again", kind="table", width=150)
    drawing.arrow(dead.bottom, (750, 133), again.right)
    drawing.text(600, 127, "redrive, perhaps with another body", "small", "middle")
    drawing.arrow(again.left, (70, 133), boxes[0].bottom, label="to the listener of this group only")
    return drawing


def histories() -> Drawing:
    """A log that a restore has cut, and the records that were written later with the old positions."""
    drawing = Drawing("After a restore, other records have the numbers of the lost ones", 820, 190)
    before = [("1", "box"), ("2", "box"), ("3", "box"), ("4", "box"), ("5", "box")]
    after = [("1", "box"), ("2", "box"), ("3", "box"), ("4", "ours"), ("5", "ours"), ("6", "ours")]
    for y, name, boxes in ((30, "history 1", before), (120, "history 2", after)):
        drawing.text(20, y + 25, name)
        for number, (position, kind) in enumerate(boxes):
            drawing.box(130 + 80 * number, y, position, kind=kind, width=64, height=40)
    drawing.text(545, 48, "a consumer remembers: next is 6", "small")
    drawing.text(545, 64, "and the message at 5", "small")
    drawing.arrow((242, 76), (242, 114), label="restored to a backup taken after 3")
    drawing.text(625, 138, "5 is another message now, so", "small")
    drawing.text(625, 154, "the consumer goes on behind 3", "small")
    return drawing


DRAWINGS: Final[Sequence[Callable[[], Drawing]]] = (message_life, snapshots, retries, histories)


def path_of(draw: Callable[[], Drawing]) -> Path:
    """The file of a drawing, named after its function."""
    return IMAGES / f"{draw.__name__.replace('_', '-')}.svg"


def main() -> None:
    for draw in DRAWINGS:
        path_of(draw).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
