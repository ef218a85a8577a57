// Act: steer the imagined world and the simulator alike, or let the policy follow an instruction.

import { ask, byId, pause, remember, trouble } from "./common.js";

const SPEED = 36, MOVES = 4, FRAME_MS = 125; // px/s; moves in one request, half a second; 8 frames a second
const WAYS = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };
const KEYS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };
const held = new Set();
let dragged = null, going = false, run = 0;
let table = null, done = [], picture = null;

async function begin(number) {
  trouble(null);
  const mine = ++run;
  try {
    const start = await ask(`v1/table/${number}`);
    if (mine !== run) return;
    [table, done, picture] = [start, [], null];
    byId("act-number").value = number;
    byId("instruction").value = start.instruction;
    byId("scores").replaceChildren();
    state("");
    await Promise.all(["imagined", "real"].map((name) => paint(name, start.picture)));
  } catch (error) {
    byId("act-none").hidden = false;
    byId("act-none").textContent = error.message;
    byId("act-all").hidden = true;
  }
}

async function paint(name, uri) {
  const frame = new Image();
  frame.src = uri;
  await frame.decode();
  const canvas = byId(name);
  [canvas.width, canvas.height] = [frame.width, frame.height];
  canvas.getContext("2d").drawImage(frame, 0, 0);
}

/** Where the pusher is to go, as px/s; null for nowhere. */
function direction() {
  let [x, y] = dragged ?? [0, 0];
  for (const way of held) {
    x += WAYS[way][0];
    y += WAYS[way][1];
  }
  const length = Math.hypot(x, y);
  return length < 0.15 ? null : [(x / length) * SPEED, (y / length) * SPEED];
}

async function move(body) {
  const whole = { episode: table.episode, done, seed: done.length, ...(picture ? { picture } : {}), ...body };
  remember("table", whole);
  return ask("v1/table", whole);
}

/** Play frames on both sides; the world moves on by what was done. */
async function play(answer, mine) {
  for (let i = 0; i < answer.imagined.length && mine === run; i++) {
    const next = pause(FRAME_MS);
    await Promise.all([paint("imagined", answer.imagined[i]), paint("real", answer.real[i])]);
    await next;
  }
  if (mine === run && answer.success) state("Done as instructed", "good");
}

/** As long as something is held: while one chunk is shown, the next is being imagined. */
async function steer() {
  if (going || !table) return;
  going = true;
  const mine = run;
  let showing = Promise.resolve(), spent = [];
  try {
    for (let way = direction(); way && mine === run; way = direction()) {
      const began = performance.now();
      const answer = await move({ actions: Array(MOVES).fill(way) });
      if (mine !== run) break;
      spent = [...spent.slice(-5), performance.now() - began];
      done = [...done, ...answer.actions];
      picture = answer.imagined.at(-1);
      await showing;
      state(`A chunk of ${MOVES} frames is imagined in ${Math.round(spent.reduce((a, b) => a + b) / spent.length)} ms`);
      showing = play(answer, mine);
    }
    await showing;
  } catch (error) {
    trouble(error);
    held.clear();
    dragged = null;
  }
  going = false;
}

async function obey() {
  if (going || !table) return;
  going = true;
  trouble(null);
  const mine = run, instruction = byId("instruction").value, count = Number(byId("candidates").value);
  const judge = judgeOf(instruction);
  byId("scores").replaceChildren();
  state("Deciding …");
  try {
    if (count > 1 && !judge) throw new Error('with several candidates, say it like "push the red disc right"');
    picture = null; // it looks at what is really there
    const answer = await move({ instruction, ...(count > 1 ? { candidates: count, ...judge } : {}) });
    if (mine === run) {
      done = [...done, ...answer.actions];
      state("");
      if (answer.receipt.choice) rate(answer.receipt.choice);
      await play(answer, mine);
      if (mine === run && !answer.success) state("Not there yet: do it again, it looks again");
    }
  } catch (error) {
    trouble(error);
    state("");
  }
  going = false;
}

/** What to ask about the outcome of "push the … left". */
function judgeOf(instruction) {
  const found = instruction.match(/push (the .+) (left|right|up|down)$/);
  return found && { judge: `Which way does ${found[1]} go?`, wanted: found[2] };
}

function rate(choice) {
  byId("scores").replaceChildren(...choice.candidates.map(({ score }, i) => {
    const one = Object.assign(document.createElement("span"), { className: i === choice.chosen ? "best" : "" });
    one.append(Object.assign(document.createElement("meter"), { value: score, max: 1 }), `${i === choice.chosen ? "✓ " : ""}${score.toFixed(2)}`);
    return one;
  }));
}

function state(text, kind = "") {
  Object.assign(byId("act-state"), { textContent: text, className: `note ${kind}` });
}

function hold(way, on) {
  on ? held.add(way) : held.delete(way);
  document.querySelector(`.pad [data-way=${way}]`).classList.toggle("held", on);
  if (on) steer();
}

function listenToDragging() {
  const canvas = byId("imagined");
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = [event.clientX, event.clientY];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    const size = canvas.clientWidth / 4;
    dragged = [(event.clientX - from[0]) / size, (event.clientY - from[1]) / size];
    steer();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { from = dragged = null; });
}

export function start(model) {
  if (!model.abilities.robots.includes("tabletop")) {
    byId("act-none").hidden = false;
    byId("act-none").textContent = "This model does not know the table-top's robot.";
    byId("act-all").hidden = true;
    return;
  }
  const number = () => Number(byId("act-number").value);
  byId("act-before").addEventListener("click", () => begin(Math.max(0, number() - 1)));
  byId("act-next").addEventListener("click", () => begin(number() + 1));
  byId("act-again").addEventListener("click", () => begin(number()));
  byId("act-look").addEventListener("click", () => {
    picture = null;
    byId("imagined").getContext("2d").drawImage(byId("real"), 0, 0);
  });
  byId("act-form").addEventListener("submit", (event) => { event.preventDefault(); obey(); });
  for (const [type, on] of [["keydown", true], ["keyup", false]]) {
    document.addEventListener(type, (event) => {
      const way = KEYS[event.key], typing = /INPUT|TEXTAREA|SELECT/.test(event.target.tagName);
      if (!way || byId("act").hidden || typing || event.target.getAttribute("role") === "tab") return;
      event.preventDefault();
      if (!event.repeat) hold(way, on);
    });
  }
  window.addEventListener("blur", () => [...held].forEach((way) => hold(way, false)));
  for (const button of document.querySelectorAll(".pad button")) {
    button.addEventListener("pointerdown", () => hold(button.dataset.way, true));
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) button.addEventListener(name, () => hold(button.dataset.way, false));
    button.addEventListener("keydown", (event) => { if (!event.repeat && /^( |Enter)$/.test(event.key)) hold(button.dataset.way, true); });
    button.addEventListener("keyup", (event) => { if (/^( |Enter)$/.test(event.key)) hold(button.dataset.way, false); });
  }
  listenToDragging();
  begin(0);
}
