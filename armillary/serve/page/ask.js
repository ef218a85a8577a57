// Ask: a conversation about a picture or a clip; boxes and points of the answer are drawn on it.

import { ask, byId, Drop, fault, remember, trouble } from "./common.js";

const COLOURS = ["#d7352f", "#2f6f7c", "#8a5fbf", "#2c7a4b", "#b8531c", "#375fbd"];
const IDEAS = {
  none: [],
  picture: ["Find all objects. Answer with boxes.", "Describe this.", "How many objects are there?"],
  clip: ["Describe this.", "What happens when? Answer with events.", "How many objects are there?"],
};
let turns = [];
let running = null, marked = "";

const drop = new Drop("ask", (uri) => {
  turns = [];
  marked = "";
  byId("said").replaceChildren();
  byId("ask-clear").hidden = !uri;
  suggest(!uri ? "none" : drop.isClip ? "clip" : "picture");
});

export function about(uri) {
  drop.put(uri);
}

function suggest(kind) {
  byId("ideas").replaceChildren(...IDEAS[kind].map((text) => {
    const button = Object.assign(document.createElement("button"), { className: "quiet", textContent: text });
    button.addEventListener("click", () => send(text));
    return button;
  }));
}

function say(who, text) {
  const line = Object.assign(document.createElement("p"), { className: who, textContent: text });
  byId("said").append(line);
  line.scrollIntoView({ block: "nearest" });
  return line;
}

async function send(text) {
  running?.abort();
  trouble(null);
  drawMarks("");
  const content = [{ type: "text", text }];
  if (drop.uri && !turns.length) {
    const kind = drop.isClip ? "video_url" : "image_url";
    content.unshift({ type: kind, [kind]: { url: drop.uri } });
  }
  turns.push({ role: "user", content });
  say("you", text);
  const line = say("it", "");
  line.classList.add("busy");
  const body = { messages: turns, stream: true, stream_options: { include_usage: true } };
  remember("chat/completions", { messages: [...turns] });
  running = new AbortController();
  try {
    const { said, usage } = await read(body, line, running.signal);
    turns.push({ role: "assistant", content: said });
    const marks = drawMarks(said);
    const note = document.createElement("small");
    note.textContent = `${usage ? `${usage.prompt_tokens} tokens read, ${usage.completion_tokens} written` : ""}`
      + `${marks ? ` · ${marks} drawn on the picture` : ""}`;
    line.append(note);
  } catch (error) {
    turns.pop();
    if (error.name !== "AbortError") trouble(error);
    if (!line.textContent) line.remove();
  } finally {
    line.classList.remove("busy");
  }
}

/** The answer as it streams in, server-sent event by event. */
async function read(body, line, signal) {
  const answer = await fetch("v1/chat/completions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!answer.ok) throw await fault(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", said = "", usage = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return { said, usage };
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((part) => part.startsWith("data: "))?.slice(6);
      if (!data || data === "[DONE]") continue;
      const piece = JSON.parse(data);
      if (piece.error) throw new Error(piece.error.message);
      usage = piece.usage ?? usage;
      said += piece.choices?.[0]?.delta?.content ?? "";
      line.textContent = said;
    }
  }
}

// Boxes and points are 0 to 1000 of each side.

export function marksIn(text) {
  const found = [];
  for (const [whole] of text.matchAll(/\{[^{}]*\}/g)) {
    try {
      const item = JSON.parse(whole);
      const at = item.bbox_2d ?? item.point_2d;
      if (Array.isArray(at) && at.every(Number.isFinite)) found.push({ at, label: String(item.label ?? "") });
    } catch { /* cut off, or no mark */ }
  }
  return found.filter(({ at }) => at.length === 4 || at.length === 2);
}

function clearMarks() {
  for (const mark of drop.stage.querySelectorAll("svg, .tag")) mark.remove();
}

function drawMarks(text) {
  clearMarks();
  marked = text;
  const marks = marksIn(text), seen = drop.stage.firstElementChild;
  if (!marks.length || !seen) return 0;
  const natural = [seen.naturalWidth ?? seen.videoWidth, seen.naturalHeight ?? seen.videoHeight];
  const box = seen.getBoundingClientRect(), scale = Math.min(box.width / natural[0], box.height / natural[1]);
  const size = natural.map((side) => side * scale);
  const left = (box.width - size[0]) / 2, top = (box.height - size[1]) / 2;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  drop.stage.append(svg); // below the tags
  marks.forEach(({ at, label }, i) => {
    const colour = COLOURS[i % COLOURS.length];
    const place = at.map((v, n) => (n % 2 ? top : left) + (v / 1000) * size[n % 2]);
    svg.append(place.length === 4 ? rectangle(place, colour) : circle(place, colour));
    const tag = Object.assign(document.createElement("span"), { className: "tag", textContent: label });
    Object.assign(tag.style, { left: `${place[0]}px`, top: `${Math.max(place[1], 28)}px`, background: colour });
    if (label) drop.stage.append(tag);
  });
  return `${marks.length} ${marks.length === 1 ? "mark" : "marks"}`;
}

function shape(name, values, colour) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
  made.setAttribute(name === "rect" ? "stroke" : "fill", colour);
  return made;
}

const rectangle = ([x1, y1, x2, y2], colour) =>
  shape("rect", { x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1), rx: 3 }, colour);
const circle = ([x, y], colour) => shape("circle", { cx: x, cy: y, r: 6 }, colour);

export function start() {
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = byId("question");
    send(field.value);
    field.value = "";
  });
  byId("ask-clear").addEventListener("click", () => drop.put(null));
  byId("ask-scene").addEventListener("click", async () => {
    trouble(null);
    try {
      drop.put((await ask(`v1/table/${2 * Math.floor(Math.random() * 500)}`)).picture);
    } catch (error) {
      trouble(error);
    }
  });
  new ResizeObserver(() => drawMarks(marked)).observe(drop.stage);
}
