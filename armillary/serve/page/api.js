// Every route with what it takes, from the server's own description.

const make = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);

function kind(shape) {
  if (shape.$ref) return shape.$ref.split("/").pop();
  if (shape.enum || "const" in shape) return (shape.enum || [shape.const]).join(" | ");
  if (shape.anyOf) return shape.anyOf.filter((s) => s.type !== "null").map(kind).join(" or ");
  if (shape.type === "array") return `list of ${kind(shape.items || {})}`;
  return shape.type || "anything";
}

function fields(schema) {
  const table = make("table");
  for (const [name, shape] of Object.entries(schema.properties || {})) {
    const row = table.insertRow();
    row.append(make("th", name, { scope: "row" }));
    row.insertCell().textContent = kind(shape) + ((schema.required || []).includes(name) ? ", needed" : "");
    row.insertCell().textContent = shape.description || "";
  }
  return table;
}

const told = await (await fetch("../openapi.json")).json();
for (const [path, methods] of Object.entries(told.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const part = make("details", "", { className: "route" });
    const head = make("summary");
    head.append(make("code", `${method.toUpperCase()} ${path}`), ` ${route.description || ""}`);
    part.append(head);
    const content = Object.values(route.requestBody?.content || {})[0];
    const name = content?.schema?.$ref?.split("/").pop();
    if (told.components.schemas[name]) part.append(fields(told.components.schemas[name]));
    document.getElementById("routes").append(part);
  }
}
