// The console's behaviour on top of plain pages: fresh contents, local times, keys, theme. No page needs it to be read.
const THEMES = ["system", "light", "dark"];
const live = document.getElementById("live");

// --- Times: the server writes UTC, readers see their own zone ---
const pad = (number, width = 2) => String(number).padStart(width, "0");

export function localTimes(root) {
  const today = new Date().toDateString();
  for (const element of root.querySelectorAll("[data-ms]")) {
    const moment = new Date(Number(element.dataset.ms));
    const clock = `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
    if (element.dataset.short !== undefined) {
      element.textContent = clock;
      continue;
    }
    const date = `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
    element.title = `${moment.toISOString()}`;
    const exact = `${clock}.${pad(moment.getMilliseconds(), 3)}`;
    element.textContent = moment.toDateString() === today ? exact : `${date} ${clock}`;
  }
}

// --- Fresh contents: the same page again, of which only the parts marked data-fresh are taken ---
let paused = false;
let timer = 0;

function say(state) {
  if (!live) return;
  live.dataset.state = state;
  live.textContent = { live: live.dataset.liveText, paused: live.dataset.pausedText, failed: live.dataset.failedText }[state] || "";
}

function isBusy(element) {
  const chosen = window.getSelection();
  return element.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")
    || Boolean(chosen && !chosen.isCollapsed && element.contains(chosen.anchorNode))
    || Boolean(element.querySelector("input:checked"));
}

export async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const element of document.querySelectorAll("[data-fresh]")) {
    const other = page.getElementById(element.id);
    if (!other || isBusy(element)) continue;
    localTimes(other);
    if (other.innerHTML === element.innerHTML) continue;
    const scroll = element.querySelector(".scroll");
    const left = scroll ? scroll.scrollLeft : 0;
    const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    element.replaceChildren(...other.childNodes);
    if (left) element.querySelector(".scroll").scrollLeft = left;
    if (focused) element.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

async function again() {
  const every = Number(document.body.dataset.live) * 1000;
  if (!paused && !document.hidden) {
    try {
      await refresh();
      say("live");
    } catch {
      say("failed");
    }
  }
  timer = window.setTimeout(again, every);
}

if (document.body.dataset.live) {
  timer = window.setTimeout(again, Number(document.body.dataset.live) * 1000);
}

export function togglePause() {
  if (!document.body.dataset.live) return;
  paused = !paused;
  say(paused ? "paused" : "live");
}

// --- Theme, forms ---
document.getElementById("theme")?.addEventListener("click", () => {
  const now = document.documentElement.dataset.chosen;
  localStorage.setItem("theme", THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  window.dispatchEvent(new Event("skylark-theme"));
});
for (const choice of document.querySelectorAll("[data-go]")) {
  choice.addEventListener("change", () => location.assign(choice.value));
}
for (const box of document.querySelectorAll("[data-submit]")) {
  box.addEventListener("change", () => box.form.requestSubmit());
}
for (const form of document.querySelectorAll("form[data-filter]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (!field.value) field.disabled = true; // short addresses
  });
}
document.getElementById("query")?.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") event.target.form.requestSubmit();
});
document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = button.dataset.copied;
});

// --- Keys: single letters, but not while somebody types ---
const PLACES = { o: "overview", t: "topics", g: "groups", d: "dead_letters", p: "pipelines", s: "sql", c: "clients", b: "brokers", m: "map", h: "health", a: "access", x: "changes" };
let going = false;
const help = document.getElementById("keys");
const keysOn = document.getElementById("keys-on");
if (help) {
  keysOn.checked = localStorage.getItem("keys") !== "off";
  keysOn.addEventListener("change", () => localStorage.setItem("keys", keysOn.checked ? "on" : "off"));
  document.getElementById("help").addEventListener("click", () => help.showModal());
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    document.getElementById("find")?.focus();
    return;
  }
  const target = event.target;
  if (event.key === "Escape" && target instanceof HTMLElement) target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || help?.open || !keysOn?.checked) return;
  if (target instanceof Element && target.matches("input, textarea, select")) return;
  if (going) {
    going = false;
    const place = PLACES[event.key];
    if (place) document.querySelector(`nav.rail a[data-key="${place}"]`)?.click();
    return;
  }
  const links = [...document.querySelectorAll("main tbody tr td.c-name a, main tbody tr td.c-time a")];
  const at = links.indexOf(document.activeElement);
  switch (event.key) {
    case "g": going = true; break;
    case "/": event.preventDefault(); (document.getElementById("filter") || document.getElementById("find"))?.focus(); break;
    case "l": togglePause(); break;
    case "r": refresh().catch(() => say("failed")); break;
    case "j": links[Math.min(at + 1, links.length - 1)]?.focus(); break;
    case "?": help.showModal(); break;
    case "k": links[Math.max(at - 1, 0)]?.focus(); break;
  }
});

localTimes(document);
document.querySelector("nav.rail a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
for (const all of document.querySelectorAll("[data-all]")) {
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
  });
}

// --- Messages: forms of a body, a check of JSON, the live tail ---
for (const tab of document.querySelectorAll("[data-form]")) {
  tab.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-form]")) {
      other.setAttribute("aria-selected", String(other === tab));
      document.getElementById(`body-${other.dataset.form}`).classList.toggle("hidden", other !== tab);
    }
  });
}
for (const area of document.querySelectorAll("[data-json-check]")) {
  area.addEventListener("input", () => {
    let fault = "";
    if (/^\s*[{[]/.test(area.value)) {
      try { JSON.parse(area.value); } catch { fault = area.dataset.jsonCheck; }
    }
    document.getElementById(`${area.id}-note`).textContent = fault;
  });
}

const ROWS_MAX = 500;
const tailButton = document.getElementById("tail");
let stream = null;
let passed = 0;

function cell(row, className, text, href) {
  const td = row.insertCell();
  td.className = className;
  td.dataset.label = document.querySelectorAll("#grid-messages th")[td.cellIndex]?.textContent.trim() || "";
  let inside = td;
  if (href) {
    inside = document.createElement("a");
    inside.href = href;
    td.append(inside);
  }
  inside.textContent = text;
  return inside;
}

function addRow(body, message) {
  const row = body.insertRow(0);
  row.className = "fresh";
  const time = document.createElement("time");
  time.dataset.ms = message.stored;
  cell(row, "c-time", "", message.href).append(time);
  cell(row, "c-place", message.queue, message.href);
  cell(row, "c-number", message.offset.toLocaleString("en"));
  cell(row, "c-tag", message.tag || "–");
  cell(row, "c-words", message.keys.join(", ") || "–");
  cell(row, "c-number", `${message.size} B`);
  for (const name of document.getElementById("tail").dataset.columns.split(",")) {
    cell(row, "c-field", message[name] || "–").title = message[name];
  }
  localTimes(row);
  while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
}

function stopTail() {
  stream?.close();
  stream = null;
  tailButton.textContent = tailButton.dataset.off;
  tailButton.setAttribute("aria-pressed", "false");
  say("");
}

function startTail() {
  const state = document.getElementById("tail-state");
  stream = new EventSource(tailButton.dataset.url);
  tailButton.textContent = tailButton.dataset.on;
  tailButton.setAttribute("aria-pressed", "true");
  stream.addEventListener("open", () => say("live"));
  stream.addEventListener("error", () => say("failed"));
  stream.addEventListener("message", (event) => {
    const found = JSON.parse(event.data);
    let body = document.querySelector("#grid-messages tbody");
    if (!body) { location.reload(); return; }
    for (const message of found.rows) addRow(body, message);
    passed += found.passed;
    if (passed) {
      state.classList.remove("hidden");
      state.textContent = state.dataset.passed + passed.toLocaleString("en");
    }
  });
}

tailButton?.addEventListener("click", () => (stream ? stopTail() : startTail()));
document.addEventListener("visibilitychange", () => {
  if (document.hidden && stream) {
    stopTail();
    tailButton.dataset.resume = "1";
  } else if (!document.hidden && tailButton?.dataset.resume) {
    delete tailButton.dataset.resume;
    startTail();
  }
});
