// The page as a whole: its four parts, light and dark, and what the last request was like inside.

import { start as startAct } from "./act.js";
import { start as startAsk } from "./ask.js";
import { ask, byId, last, trouble } from "./common.js";
import { start as startMake } from "./make.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const EXAMPLE = { route: "videos", body: { prompt: "a red disc slides right and hits the wall", generate_sound: true } };
let explained = null;

function choose(tab) {
  for (const other of tabs) {
    const is = other === tab;
    other.setAttribute("aria-selected", is);
    other.tabIndex = is ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !is;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  if (tab.id === "tab-inside") explain();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    next.focus();
    choose(next);
  });
}

// -- light and dark

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

byId("theme").addEventListener("click", () => paint(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.documentElement.dataset.theme = localStorage.getItem("theme")
  ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

// -- inside

async function explain() {
  const { route, body } = last.route ? last : EXAMPLE;
  if (explained === body) return;
  trouble(null);
  try {
    const { task, rows, svg } = await ask(`v1/explain/${route}`, body);
    const picture = byId("inside-picture");
    picture.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    picture.alt = `The packed sequence of this ${task.replace("_", " ")}, drawn; the table below says the same`;
    fill(byId("inside-rows"), rows);
    explained = body;
  } catch (error) {
    trouble(error);
  }
}

function fill(table, rows) {
  const names = Object.keys(rows[0] ?? {});
  const head = document.createElement("tr");
  head.append(...names.map((name) => Object.assign(document.createElement("th"), { textContent: name, scope: "col" })));
  const span = (value) => (Array.isArray(value) ? value.map((v) => Math.round(v * 100) / 100).join(" … ") : value);
  table.replaceChildren(head, ...rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...names.map((name) => Object.assign(document.createElement("td"), { textContent: span(row[name]) })));
    return line;
  }));
}

// -- the beginning

try {
  const [model] = (await ask("v1/models")).data;
  byId("model").textContent = byId("model").title = model.id;
  startAsk(model);
  await startMake(model);
  startAct(model);
} catch (error) {
  trouble(error);
}
choose(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
document.documentElement.dataset.ready = "yes";
