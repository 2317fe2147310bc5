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

prepare(document);
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
document.addEventListener("htmx:load", (event) => prepare(event.detail.elt.parentNode || document));

// A part that fails says so where it would have been.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status >= 400 && event.detail.xhr.getResponseHeader("Content-Type")?.startsWith("text/html")) {
    event.detail.shouldSwap = true;
  }
});

// A live part gets its text from a stream, as long as somebody looks. What the reader has opened stays open.
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
      const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
      part.innerHTML = event.data;
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      prepare(part);
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
