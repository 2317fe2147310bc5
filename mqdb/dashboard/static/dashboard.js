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
