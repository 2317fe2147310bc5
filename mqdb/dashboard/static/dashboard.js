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

// Every 2 s, and only while somebody looks. A part that has been asked for and is not there yet is not asked for again.
setInterval(() => {
  if (document.visibilityState !== "visible") return;
  for (const part of document.querySelectorAll("[data-poll]:not(.htmx-request)")) {
    htmx.trigger(part, "poll");
  }
}, 2000);
