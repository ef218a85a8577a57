// Make: a picture or a clip from words, with a preview after each step. Legal values are the server's own.

import { about } from "./ask.js";
import { ask, byId, dataUri, Drop, remember, speak, trouble } from "./common.js";

// The box beside a slider takes all that is legal; the slider spans what is usual.
const SLIDERS = [
  { name: "num_frames", label: "Frames", least: 5, most: 33, step: 4, clips: true },
  { name: "num_inference_steps", label: "Steps", least: 1, most: 50, step: 1 },
  { name: "guidance_scale", label: "Guidance", least: 1, most: 8, step: 0.5 },
  { name: "flow_shift", label: "Shift", least: 1, most: 10, step: 0.5 },
  { name: "seed", label: "Seed", least: 0, most: 99, step: 1 },
];
const drop = new Drop("make");
let job = null, followed = null, model = null;

const kind = () => document.querySelector("input[name=kind]:checked").value;

/** A slider and a box for one number; both empty mean the model's own. */
function slider({ name, label, least, most, step, clips }, legal) {
  const row = Object.assign(document.createElement("div"), { className: "slider own", title: legal.description ?? "" });
  row.dataset.name = name;
  row.dataset.clips = clips ? "yes" : "";
  const bottom = legal.minimum ?? least, top = legal.maximum ?? most;
  const range = Object.assign(document.createElement("input"),
    { type: "range", min: Math.max(least, bottom), max: Math.min(most, top), step, value: 0, ariaLabel: label });
  const box = Object.assign(document.createElement("input"),
    { type: "number", min: bottom, max: top, step: Number.isInteger(step) ? 1 : "any", placeholder: "auto", ariaLabel: `${label}, any legal value` });
  const reset = Object.assign(document.createElement("button"),
    { type: "button", textContent: "↺", title: "The model's own", ariaLabel: `${label}: the model's own` });
  const text = Object.assign(document.createElement("label"), { textContent: label });
  const own = (is) => row.classList.toggle("own", is);
  range.addEventListener("input", () => { box.value = range.value; own(false); });
  box.addEventListener("input", () => { if (box.value) range.value = box.value; own(!box.value); });
  reset.addEventListener("click", () => { box.value = ""; own(true); });
  row.append(text, range, box, reset);
  return row;
}

function fitToKind() {
  for (const row of document.querySelectorAll(".slider[data-clips=yes]")) row.hidden = kind() === "picture";
  byId("make-drop").hidden = kind() === "picture";
}

function wanted() {
  const body = { prompt: byId("prompt").value };
  for (const row of document.querySelectorAll(".slider")) {
    const value = row.querySelector("input[type=number]").value;
    if (value !== "" && !row.hidden) body[row.dataset.name] = Number(value);
  }
  if (kind() === "picture") body.num_frames = 1;
  else if (drop.uri) body.input_reference = drop.uri;
  if (kind() === "sound") body.generate_sound = true;
  return body;
}

async function make() {
  trouble(null);
  stopFollowing();
  const body = wanted();
  remember("videos", body);
  busy(true);
  note("Waiting for its turn …");
  for (const name of ["make-after", "make-receipt"]) byId(name).hidden = true;
  try {
    job = await ask("v1/videos", body);
    follow(job.id, body.num_frames ?? model.usual.frames);
  } catch (error) {
    trouble(error);
    note("");
    busy(false);
  }
}

function follow(id, frames) {
  followed = new EventSource(`v1/videos/${id}/events`);
  followed.addEventListener("progress", (event) => {
    const { step, of, preview } = JSON.parse(event.data);
    if (of) Object.assign(byId("make-progress"), { max: of, value: step });
    if (of) note(`Step ${step} of ${of}`);
    if (preview) paint(preview, frames);
  });
  for (const [name, told] of Object.entries({ completed: done, failed, cancelled })) {
    followed.addEventListener(name, (event) => {
      stopFollowing();
      busy(false);
      told(JSON.parse(event.data));
    });
  }
}

function stopFollowing() {
  followed?.close();
  followed = null;
}

/** The preview's frames lie side by side, one pixel a latent; the middle one is shown. */
async function paint(uri, frames) {
  const strip = new Image();
  strip.src = uri;
  await strip.decode();
  if (!followed) return; // it was finished meanwhile
  const count = Math.ceil((frames - 1) / 4) + 1, width = Math.max(1, Math.round(strip.width / count));
  const canvas = byId("make-frame").querySelector("canvas") ?? document.createElement("canvas");
  Object.assign(canvas, { width, height: strip.height, ariaLabel: "What is taking shape" });
  canvas.getContext("2d").drawImage(strip, -width * Math.floor(count / 2), 0);
  if (!canvas.isConnected) byId("make-frame").replaceChildren(canvas);
}

async function done(video) {
  note(`Made in ${video.inference_time_s} s`);
  try {
    const blob = await (await speak(`v1/videos/${video.id}/content`)).blob();
    const url = URL.createObjectURL(blob), still = blob.type.startsWith("image/");
    const seen = still
      ? Object.assign(new Image(), { src: url, alt: video.prompt })
      : Object.assign(document.createElement("video"), { src: url, controls: true, loop: true, autoplay: true, playsInline: true, ariaLabel: video.prompt });
    byId("make-frame").replaceChildren(seen);
    Object.assign(byId("make-save"), { href: url, download: still ? "made.png" : "made.mp4" });
    byId("make-ask").onclick = async () => {
      about(await dataUri(blob));
      document.getElementById("tab-ask").click();
    };
    byId("make-after").hidden = byId("make-receipt").hidden = false;
    byId("make-receipt").querySelector(".receipt").replaceChildren(receipt(video.receipt));
  } catch (error) {
    trouble(error);
  }
}

function failed(video) {
  note("");
  trouble(video.error?.message ?? "it failed");
}

function cancelled() {
  note("Cancelled");
  byId("make-frame").replaceChildren();
}

export function receipt(told) {
  const table = document.createElement("table");
  for (const [name, value] of Object.entries({ ...told, ...told.used })) {
    if (name === "used" || value === null || (typeof value === "object" && !Object.keys(value).length)) continue;
    const row = table.insertRow();
    row.append(Object.assign(document.createElement("th"), { textContent: name, scope: "row" }));
    row.insertCell().textContent = typeof value === "object" ? JSON.stringify(value).replace(/[{}"[\]]/g, "").replace(/,/g, ", ").replace(/:/g, ": ") : value;
  }
  return table;
}

function busy(is) {
  byId("make-go").disabled = is;
  byId("make-stop").hidden = !is;
  byId("make-progress").hidden = !is;
  byId("make-progress").value = 0;
}

const note = (text) => { byId("make-note").textContent = text; };

export async function start(served) {
  model = served;
  const schema = (await ask("openapi.json")).components.schemas.VideosRequest.properties;
  byId("sliders").replaceChildren(...SLIDERS.map((s) => slider(s, schema[s.name] ?? {})));
  const sound = document.querySelector("input[value=sound]");
  if (!served.abilities.sounds) {
    sound.disabled = true;
    document.querySelector("input[value=clip]").checked = true;
  }
  for (const choice of document.querySelectorAll("input[name=kind]")) choice.addEventListener("change", fitToKind);
  fitToKind();
  byId("make-form").addEventListener("submit", (event) => { event.preventDefault(); make(); });
  byId("make-stop").addEventListener("click", () => job && ask(`v1/videos/${job.id}/cancel`, {}).catch(trouble));
}
