// What pages cannot do without a script: times in the zone of the reader, parts that renew themselves, boxes that
// choose all others. Without it everything else works.
"use strict";

const zoned = new Intl.DateTimeFormat("sv-SE", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  timeZoneName: "short",
});

function prepare(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    time.textContent = zoned.format(new Date(time.dateTime));
  }
  for (const text of root.querySelectorAll("[data-copy]:not(:has(button))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "secondary";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy the ${text.querySelector("h3").textContent}`);
    button.addEventListener("click", async () => {
      const shown = text.querySelector("pre");
      try {
        await navigator.clipboard.writeText(shown.textContent);
        button.textContent = "Copied";
      } catch {
        // Without TLS browsers give no clipboard: the text is selected, to be copied by the keys.
        getSelection().selectAllChildren(shown);
      }
    });
    text.append(button);
  }
  for (const box of root.querySelectorAll("input[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      for (const other of box.form.querySelectorAll(`input[type=checkbox][name=${box.dataset.all}]`)) {
        other.checked = box.checked;
      }
    });
  }
}

// A frame that hides a part of its content beside it fades out at that edge.
function fade(frame) {
  const hidden = getComputedStyle(frame).overflowX === "visible" ? 0 : frame.scrollWidth - frame.clientWidth;
  frame.classList.toggle("cut-start", hidden > 1 && frame.scrollLeft > 1);
  frame.classList.toggle("cut-end", hidden > 1 && frame.scrollLeft < hidden - 1);
}

// What is larger than its frame is moved by the arrow keys, so it takes the focus.
function focusable() {
  document.querySelectorAll(".wide, .top nav ul:first-child, .traceback pre").forEach(fade);
  for (const frame of document.querySelectorAll(".wide, pre:not([data-tail] pre)")) {
    if (frame.scrollWidth > frame.clientWidth || frame.scrollHeight > frame.clientHeight) {
      frame.tabIndex = 0;
      frame.setAttribute("role", "region");
      frame.setAttribute("aria-label", frame.tagName === "PRE" ? "Text, larger than its frame" : "Table, wider than the screen");
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
    }
  }
}

prepare(document);
focusable();
window.addEventListener("resize", focusable);
document.addEventListener("scroll", (event) => { if (event.target.matches?.(".wide, .top nav ul, .traceback pre")) fade(event.target); }, true);
document.addEventListener("toggle", focusable, true);
document.addEventListener("htmx:load", focusable);
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
document.addEventListener("htmx:load", (event) => prepare(event.detail.elt.parentNode || document));

// A part that fails says so where it would have been.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status >= 400 && event.detail.xhr.getResponseHeader("Content-Type")?.startsWith("text/html")) {
    event.detail.shouldSwap = true;
  }
});

// A new text for a live part. What the reader has opened stays open, tables stay where they were moved, and the focus stays
// on its link. While some of the part is selected, it is left as it is.
function renew(part, text) {
  const selection = getSelection();
  if (!selection.isCollapsed && part.contains(selection.anchorNode)) return;
  const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
  const moved = [...part.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const place = focused?.closest("details")?.id;
  part.innerHTML = text;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  part.querySelectorAll(".wide").forEach((each, number) => { each.scrollLeft = moved[number] ?? 0; });
  prepare(part);
  focusable();
  if (!focused) return;
  const [goal] = focused.matches("summary")
    ? part.querySelectorAll(`#${place} > summary`)
    : [...part.querySelectorAll(focused.tagName)].filter((each) => each.getAttribute("href") === focused.getAttribute("href"));
  goal?.focus({ preventScroll: true });
}

// A live part gets its text from a stream, as long as somebody looks. The stream may bring several parts of it.
const streams = new Map();
function follow() {
  for (const part of document.querySelectorAll("[data-live]")) {
    const isWatched = document.visibilityState === "visible";
    if (isWatched === streams.has(part)) continue;
    if (!isWatched) {
      streams.get(part).close();
      streams.delete(part);
      continue;
    }
    const stream = new EventSource(part.dataset.live);
    stream.onmessage = (event) => {
      if (!event.data) return;
      const fresh = document.createElement("template");
      fresh.innerHTML = event.data;
      const parts = fresh.content.querySelectorAll("[data-part]");
      const late = (root) => root.querySelector("[data-late]")?.dataset.late;
      const isOther = late(part) !== late(fresh.content);
      if (!parts.length) renew(part, event.data);
      for (const each of parts) {
        const shown = part.querySelector(`[data-part=${each.dataset.part}]`);
        if (shown) renew(shown, each.innerHTML);
      }
      if (isOther) htmx.trigger(document.body, "late");
    };
    streams.set(part, stream);
  }
}
follow();
document.addEventListener("visibilitychange", follow);

// The live tail: rows from a stream, the newest on top, until somebody pauses it or it is over.
const MOST_KEPT = 200;
const tail = document.querySelector("[data-tail]");
if (tail) {
  const button = document.querySelector("[data-pause]");
  const status = document.querySelector("[data-tail-status]");
  let stream = null;
  const stop = (sentence) => {
    stream.close();
    stream = null;
    status.textContent = sentence;
    button.textContent = "Go on";
  };
  const start = () => {
    stream = new EventSource(tail.dataset.tail);
    button.textContent = "Pause";
    status.textContent = "Connecting …";
    stream.addEventListener("begun", () => { status.textContent = "Waiting for messages."; });
    stream.onmessage = (event) => {
      const rows = document.createElement("tbody");
      rows.innerHTML = event.data;
      prepare(rows);
      tail.prepend(...rows.children);
      while (tail.children.length > MOST_KEPT) tail.lastElementChild.remove();
      status.textContent = "Following.";
    };
    stream.addEventListener("over", (event) => stop(event.data));
    stream.onerror = () => {
      if (stream?.readyState === EventSource.CLOSED) stop("The server refuses the tail; perhaps there are too many.");
    };
  };
  button.hidden = false;
  button.addEventListener("click", () => (stream ? stop("Paused. What arrives now is not shown.") : start()));
  start();
}

// Keys: / searches, g and a letter goes to a page, ? lists them. Not while somebody types, nor with Ctrl, Alt or Meta.
const keys = document.getElementById("keys");
const goals = new Map([...document.querySelectorAll("nav [data-key]")].map((link) => [link.dataset.key, link]));
for (const [key, what] of [["/", "Search"], ["?", "These keys"], ...[...goals].map(([key, link]) => [`g ${key}`, link.textContent])]) {
  const term = document.createElement("dt");
  term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
  keys.querySelector("dl").append(term, Object.assign(document.createElement("dd"), { textContent: what }));
}
let hasGone = -Infinity;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, textarea, select, dialog[open]")) return;
  if (event.key === "/") {
    const field = document.querySelector("main input[type=search], main form input:not([type=hidden])") || document.querySelector(".find input");
    if (!field) return;
    event.preventDefault();
    field.focus();
  } else if (event.key === "?") {
    keys.showModal();
  } else if (goals.has(event.key) && event.timeStamp - hasGone < 1_500) {
    goals.get(event.key).click();
  }
  hasGone = event.key === "g" ? event.timeStamp : -Infinity;
});
