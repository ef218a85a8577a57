// What the parts of the page share: speaking to the server, telling trouble, taking files, the last request.

export const byId = (name) => document.getElementById(name);

/** The last request, for the part "Inside": the route that explains it, and its body. */
export const last = { route: null, body: null };

export function remember(route, body) {
  last.route = route;
  last.body = body;
  document.dispatchEvent(new Event("asked"));
}

export function trouble(error) {
  const box = byId("trouble");
  box.textContent = error ? String(error.message ?? error) : "";
  box.hidden = !error;
}

/** Speak JSON with the server; a fault becomes an Error that says what it said. */
export async function speak(path, body, options = {}) {
  const how = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  const answer = await fetch(path, { ...how, ...options });
  if (!answer.ok) throw await fault(answer);
  return answer;
}

export const ask = async (path, body, options) => (await speak(path, body, options)).json();

export async function fault(answer) {
  let said = `${answer.status} ${answer.statusText}`;
  try {
    said = (await answer.json()).error.message ?? said;
  } catch { /* the server did not say */ }
  return new Error(said);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export function dataUri(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A picture or clip as an element, by its data URI. */
export function shown(uri) {
  if (!uri.startsWith("data:video/")) return Object.assign(new Image(), { src: uri, alt: "What you gave" });
  return Object.assign(document.createElement("video"),
    { src: uri, controls: true, muted: true, loop: true, autoplay: true, playsInline: true });
}

/** A place where a file may be dropped, chosen, pasted, or put by another part of the page. */
export class Drop {
  constructor(name, changed = () => {}) {
    this.box = byId(`${name}-drop`);
    this.stage = byId(`${name}-stage`);
    this.input = byId(`${name}-file`);
    this.changed = changed;
    this.uri = null;
    this.box.addEventListener("click", (event) => {
      if (event.target !== this.input && event.target.tagName !== "VIDEO") this.input.click();
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.input.click();
      }
    });
    this.input.addEventListener("change", () => this.take(this.input.files[0]));
    for (const name of ["dragover", "dragleave", "drop"]) {
      this.box.addEventListener(name, (event) => {
        event.preventDefault();
        this.box.classList.toggle("over", name === "dragover");
        if (name === "drop") this.take(event.dataTransfer.files[0]);
      });
    }
  }

  async take(file) {
    if (!file) return;
    trouble(null);
    if (!/^(image|video)\//.test(file.type)) {
      trouble(`${file.name} is neither a picture nor a clip`);
      return;
    }
    this.put(await dataUri(file));
  }

  put(uri) {
    this.uri = uri;
    this.stage.replaceChildren(...(uri ? [shown(uri)] : []));
    this.box.classList.toggle("full", Boolean(uri));
    this.input.value = "";
    this.changed(uri);
  }

  get isClip() {
    return Boolean(this.uri?.startsWith("data:video/"));
  }
}
