"use strict";
// The page of `jitcl explore`. `data` is made by jitcl/cli/explore_page.py; `dagre` and `d3` are in
// libraries.js. What is shown is in `state`, and in the address behind #, so that it can be sent.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id), NS = "http://www.w3.org/2000/svg";
const FEW = 80, FULL = 250;     // boxes of a slice that is laid out at once
const state = {part: 0, tab: "graph", stage: null, chosen: null, sort: null};
let part = data.parts[0], drawn = null;

function html(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (value !== null && value !== false) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
function shape(tag, attributes, text) {
  const made = document.createElementNS(NS, tag);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function cut(text, most) { return text.length > most ? text.slice(0, most - 1) + "\u2026" : text; }
function hue(text) {
  let sum = 7;
  for (const c of text) sum = (sum * 31 + c.charCodeAt(0)) % 9973;
  return (sum * 47) % 360;
}
const stem = name => name.replace(/_\d+.*$/, "");
const fill = name => `hsl(${hue(stem(name))} 45% var(--box))`;
function time(seconds) {
  return seconds >= 1 ? seconds.toFixed(2) + " s" : seconds >= 1e-3 ?
    (seconds * 1e3).toFixed(2) + " ms" : (seconds * 1e6).toFixed(1) + " us";
}

// ---- what is known of steps from a profile and a check

function measured(step) {
  return (data.profile ? data.profile.kernels : []).find(k => k.name === step.name) || null;
}
function erring(step) {
  const names = new Set(step.nodes.map(n => n.name));
  return (data.errors ? data.errors.layers : []).filter(l => names.has(l.node));
}

// ---- what is chosen: {kind: "group" | "node" | "buffer", number}

function stages() { return part.stages.map((s, k) => k).filter(k => k === 0 || part.stages[k].changed); }
function groupOfStep(number) { return part.steps[number].group; }
function choose(chosen, quietly) {
  state.chosen = chosen;
  details();
  mark(!quietly);
  address();
}
function sameThing(a, b) { return a && b && a.kind === b.kind && a.number === b.number; }

// What a pass changed. A node that reads a changed one is another node, so nodes are compared by
// what they are, not by what they read: [op, attributes, type, node of the model].
function key(number) {
  const [op, , attrs, type, origin] = part.nodes[number];
  return JSON.stringify([op, attrs, type, origin]);
}
function less(one, other) {
  const left = new Map();
  for (const n of other) left.set(key(n), (left.get(key(n)) || 0) + 1);
  return one.filter(n => {
    const count = left.get(key(n)) || 0;
    if (count) left.set(key(n), count - 1);
    return !count;
  });
}
function changes(stage) {
  const all = stages(), at = all.indexOf(stage);
  if (at <= 0) return {before: null, made: [], gone: []};
  const before = all[at - 1], a = part.stages[before].nodes, b = part.stages[stage].nodes;
  return {before, made: less(b, a), gone: less(a, b)};
}

// ---- search

function entries() {
  const found = [];
  part.steps.forEach((s, number) => found.push({
    title: s.name, more: `${s.template || "loops"}; ${s.kernel}`, group: s.group, step: number,
    text: [s.name, s.kernel, s.template || "loops", ...s.ops, ...s.nodes.map(n => n.name),
           ...s.nodes.map(n => n.op_type), ...s.buffers.map(b => b[1])].join(" ").toLowerCase()}));
  part.groups.forEach((g, number) => {
    if (!g.steps.length) found.push({title: g.name, more: "a view", group: number,
      text: [g.name, "view", ...g.members.map(n => part.nodes[n][0] + " " + part.nodes[n][4])]
        .join(" ").toLowerCase()});
  });
  const shown = part.stages[state.stage === null ? part.stages.length - 1 : state.stage];
  for (const n of shown.nodes) {
    const [op, , attrs, type, origin] = part.nodes[n];
    found.push({title: origin || attrs || op, more: `node: ${op} ${type}`, node: n,
                text: ["node", op, type, attrs, origin].join(" ").toLowerCase()});
  }
  return found;
}
function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = entries().filter(e => words.every(w => e.text.includes(w)));
  if (!words.length) found = found.filter(e => e.step !== undefined);
  $("count").textContent = words.length ? `${found.length} found` : `${found.length} launches`;
  $("found").replaceChildren(...found.map(e => {
    const act = () => {
      if (e.node === undefined) {
        if (state.tab === "graph" && state.stage !== null) show("graph", null);
        choose({kind: "group", number: e.group, step: e.step});
      } else {
        if (state.tab !== "graph" || state.stage === null)
          show("graph", state.stage === null ? part.stages.length - 1 : state.stage);
        choose({kind: "node", number: e.node});
      }
    };
    return html("li", {role: "option", tabindex: 0, "data-step": e.step === undefined ? null :
      part.steps[e.step].name, on: {click: act, keydown: event => {
        const next = {ArrowDown: "nextSibling", ArrowUp: "previousSibling"}[event.key];
        if (event.key === "Enter" || event.key === " ") act();
        else if (next) (event.currentTarget[next] || (next === "previousSibling" ? $("search")
          : event.currentTarget)).focus();
        else return;
        event.preventDefault();
      }}}, e.title, html("small", {}, e.more));
  }));
}

// ---- details

function row(name, value) { return value ? [html("p", {}, `${name}: ${value}`)] : []; }
function source(title, text) {
  return text ? [html("h3", {}, title), html("pre", {tabindex: 0}, text)] : [];
}
function details() {
  const c = state.chosen, out = $("details");
  out.scrollTop = 0;
  if (c && c.kind === "group") out.replaceChildren(...ofGroup(part.groups[c.number], c.step));
  else if (c && c.kind === "node") out.replaceChildren(...ofNode(c.number));
  else out.replaceChildren(...(state.tab === "graph" && state.stage !== null ? ofStage() : ofPart()));
}
function ofPart() {
  return [html("h2", {}, part.model), html("p", {}, `on ${part.device}`),
    ...Object.entries(part.options).flatMap(([k, v]) => row(k, String(v))),
    ...["inputs", "outputs"].flatMap(kind => [html("h3", {}, kind), ...part[kind].map(t =>
      html("p", {}, `${t.name} ${t.dtype}[${t.shape}]`))]),
    html("h3", {}, "kernels"), html("p", {}, `${part.steps.length} launches of ${part.kernels} ` +
      `kernels; ${part.groups.length} groups`), html("h3", {}, "memory"),
    html("p", {}, part.memory.says),
    ...(data.program.length ? [html("h3", {}, "program"), html("pre", {}, data.program.join("\n"))] : [])];
}
function line(n, sign) {
  const [op, , attrs, type, origin] = part.nodes[n];
  return html("p", {class: sign === "-" ? "minus" : "plus"},
    `${sign} ${op} ${cut(attrs, 120)} : ${type}${origin ? `  '${origin}'` : ""}`);
}
function ofStage() {
  const s = part.stages[state.stage], {before, made, gone} = changes(state.stage);
  const head = [html("h2", {}, `after ${s.name}`), html("p", {}, `${s.count} nodes` +
    (before === null ? "" : `; before, after ${part.stages[before].name}: ${part.stages[before].count}`))];
  return before === null ? head : [...head, html("h3", {}, `taken out (${gone.length})`),
    ...gone.map(n => line(n, "-")), html("h3", {}, `put in (${made.length})`),
    ...made.map(n => line(n, "+"))];
}
function ofNode(number) {
  const [op, , attrs, type, origin] = part.nodes[number];
  const inside = part.groups.map((g, k) => [g, k]).filter(([g]) => g.members.includes(number));
  return [html("h2", {}, op), ...row("type", type), ...row("attributes", attrs),
    ...row("node of the model", origin),
    ...inside.map(([g, k]) => html("button", {on: {click: () => { show("graph", null);
      choose({kind: "group", number: k}); }}}, `computed in ${g.name}`)),
    ...(inside.length ? [] : [html("p", {}, "A later pass writes this node otherwise.")])];
}
function ofGroup(g, only) {
  const made = [html("h2", {}, g.name), ...row("result", g.type),
    html("p", {}, g.members.map(n => part.nodes[n][0]).join(" + ")),
    ...row("layers", [...new Set(g.members.map(n => part.nodes[n][4]).filter(Boolean))].join(", ")),
    html("h3", {}, "why this kernel"), html("p", {}, g.why)];
  for (const number of g.steps) {
    const s = part.steps[number];
    if (only !== undefined && only !== number) continue;
    const m = measured(s);
    made.push(html("h3", {}, `launch ${number}: ${s.name}`), ...row("kernel", s.kernel),
      ...row("geometry and parameters", s.launch || "shares of the outermost loop, one a thread"),
      html("p", {}, `cost: ${s.work}, ${s.moved} moved` +
        (s.bytes ? `, ${(s.flops / s.bytes).toFixed(2)} FLOP/B` : "")),
      ...row("variant", s.variant), ...(m ? [html("p", {}, `measured: ${time(m.seconds / m.launches)}` +
        (m.of_roof ? `, ${(100 * m.of_roof).toFixed(0)} % of its roof, bound by ${m.bound}` : ""))] : []),
      ...erring(s).map(l => html("p", {}, `error of '${l.node}': ${number3(l.total.relative)}` +
        (l.own ? `, ${number3(l.own.relative)} its own` : ""))),
      ...s.buffers.map(b => html("p", {}, `${b[0]} ${b[1]} ${b[2]}  (${b[3]})`)),
      ...source(`source (${s.language})`, s.text));
  }
  return [...made, ...source("schedule: over work-groups and work-items", g.scheduled),
          ...source("before it was scheduled", g.loops)];
}
function number3(x) { return x === null ? "infinite" : x === 0 ? "0" : x.toPrecision(3); }

// ---- the graph

function wanted() {             // boxes and edges of what is shown: groups, or nodes after a pass
  if (state.stage === null) {
    const inputs = [...new Set(part.groups.flatMap(g => g.inputs))];
    const boxes = [...inputs.map(name => ({id: "in " + name, title: name, more: "input", plain: true})),
      ...part.groups.map((g, k) => ({id: "group" + k, title: g.name, thing: {kind: "group", number: k},
        more: g.steps.length ? [...new Set(g.members.map(n => part.nodes[n][0]))].join(" ") : "a view",
        colour: g.steps.length ? g.name : null}))];
    const edges = part.groups.flatMap((g, k) => [...g.reads.map(r => ["group" + r, "group" + k]),
      ...g.inputs.map(name => ["in " + name, "group" + k])]);
    return {boxes, edges};
  }
  const all = stages(), next = all[all.indexOf(state.stage) + 1];
  const made = new Set(changes(state.stage).made);
  const gone = new Set(next === undefined ? [] : changes(next).gone);
  const owner = new Map(), layers = new Map();        // of nodes that later passes write otherwise
  part.groups.forEach(g => g.members.forEach(n => { owner.set(n, g.name); layers.set(part.nodes[n][4], g.name); }));
  layers.delete("");
  const there = new Set(part.stages[state.stage].nodes);
  const boxes = [...there].map(n => {
    const [op, , attrs, type, origin] = part.nodes[n];
    return {id: "node" + n, title: op === "input" ? attrs : op, more: owner.get(n) || origin || type,
            thing: {kind: "node", number: n}, colour: owner.get(n) || layers.get(origin) || null,
            state: (made.has(n) ? " new" : "") + (gone.has(n) ? " gone" : "")};
  });
  const edges = [...there].flatMap(n => part.nodes[n][1].filter(i => there.has(i))
    .map(i => ["node" + i, "node" + n]));
  return {boxes, edges};
}

// Runs in a worker, so that the page stays usable: sizes and edges in, places and lines out. dagre
// takes more than linear time, so a large graph is cut between ranks, where few edges cross or a
// slice is full, and its slices are laid out one below the other.
const LAYOUT = `onmessage = ({data: {boxes, edges, few, full}}) => {
  const rank = new Map(boxes.map(b => [b[0], 0])), slice = new Map(), slices = [];
  for (const [a, b] of edges) rank.set(b, Math.max(rank.get(b), rank.get(a) + 1));
  const ranks = Array.from({length: Math.max(...rank.values()) + 1}, () => []);
  for (const box of boxes) ranks[rank.get(box[0])].push(box);
  const over = ranks.map(() => 0);
  for (const [a, b] of edges) for (let r = rank.get(a); r < rank.get(b); r++) over[r]++;
  let inside = [];
  ranks.forEach((row, r) => {
    inside.push(...row);
    for (const [id] of row) slice.set(id, slices.length);
    if ((inside.length >= few && over[r] <= 2) || inside.length >= full || r === ranks.length - 1) {
      slices.push(inside);
      inside = [];
    }
  });
  const places = [], lines = [];
  let top = 0, widest = 0;
  slices.forEach((inside, k) => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({nodesep: 14, ranksep: 26, marginx: 20, marginy: 13});
    graph.setDefaultEdgeLabel(() => ({}));
    for (const [id, width] of inside) graph.setNode(id, {width, height: 34});
    for (const [a, b] of edges) if (slice.get(a) === k && slice.get(b) === k) graph.setEdge(a, b);
    dagre.layout(graph);
    const {width, height} = graph.graph(), x = -width / 2, y = top;
    for (const [id] of inside) { const n = graph.node(id); places.push([id, n.x + x, n.y + y]); }
    for (const e of graph.edges()) lines.push([e.v, e.w, graph.edge(e).points.map(p => [p.x + x, p.y + y])]);
    top += height;
    widest = Math.max(widest, width);
  });
  postMessage({width: widest, height: top, places, lines});
};`;
let worker = null;
const laid = new Map();
function layout(boxes, edges, then) {
  const name = `${state.part}/${state.stage}`;
  if (laid.has(name)) return then(laid.get(name));
  if (worker) worker.terminate();
  const text = $("libraries").textContent + "\n" + LAYOUT;
  worker = new Worker(URL.createObjectURL(new Blob([text], {type: "text/javascript"})));
  worker.onmessage = ({data: found}) => { laid.set(name, found); then(found); };
  worker.onerror = event => { $("status").textContent = `no layout: ${event.message}`; };
  worker.postMessage({boxes: boxes.map(b => [b.id, b.width]), edges, few: FEW, full: FULL});
}

function graphView() {
  const all = stages();
  const select = html("select", {"aria-label": "what is shown", on: {change: event =>
    show("graph", event.target.value === "" ? null : Number(event.target.value))}},
    html("option", {value: ""}, `fused groups (${part.groups.length})`),
    ...all.map(k => html("option", {value: k}, `${k} after ${part.stages[k].name} (${part.stages[k].count})`)));
  select.value = state.stage === null ? "" : state.stage;
  const button = (text, title, act) => html("button", {title, on: {click: act}}, text);
  const svg = shape("svg", {class: "picture", tabindex: 0, role: "application",
    "aria-label": "graph: arrows go from node to node, plus and minus zoom"});
  const world = shape("g", {});
  svg.append(world);
  $("view").replaceChildren(html("div", {class: "bar"}, select,
    button("[", "before this pass", () => step(-1)), button("]", "after the next pass", () => step(1)),
    button("+", "closer", () => drawn.zoomBy(1.4)), button("\u2212", "farther", () => drawn.zoomBy(0.7)),
    button("fit", "all of it (0)", () => drawn.fit()),
    html("span", {id: "status"}, "laying out \u2026")), svg);
  const {boxes, edges} = wanted();
  for (const b of boxes) b.width = Math.max(60, 14 + 6.4 * Math.max(
    Math.min(b.title.length, 30), 0.85 * Math.min(b.more.length, 34)));
  const started = `${state.part}/${state.stage}`;
  layout(boxes, edges, found => {
    if (state.tab === "graph" && started === `${state.part}/${state.stage}`) draw(svg, world, boxes, edges, found);
  });
}
function draw(svg, world, boxes, edges, found) {
  const places = new Map(found.places.map(([id, x, y]) => [id, [x, y]])), elements = new Map();
  const lines = new Map(found.lines.map(([a, b, points]) => [a + ">" + b, points]));
  const width = new Map(boxes.map(b => [b.id, b.width]));
  const made = edges.map(([a, b]) => {
    const points = lines.get(a + ">" + b), [ax, ay] = places.get(a), [bx, by] = places.get(b);
    const d = points ? "M" + points.map(p => p.map(v => v.toFixed(1)).join(",")).join("L")
      : `M${ax},${ay + 17} C${ax},${ay + 50} ${bx},${by - 50} ${bx},${by - 17}`;
    return shape("path", {class: "edge", d, "data-from": a, "data-to": b});
  });
  for (const b of boxes) {
    const [x, y] = places.get(b.id);
    const g = shape("g", {class: "node" + (b.state || ""), transform: `translate(${x - b.width / 2} ${y - 17})`,
                          "data-id": b.id});
    const rect = shape("rect", {width: b.width, height: 34, rx: b.plain ? 17 : 4});
    rect.style.fill = b.colour ? fill(b.colour) : "var(--paper)";
    g.append(shape("title", {}, `${b.title}\n${b.more}`), rect,
      shape("text", {x: b.width / 2, y: 15, "text-anchor": "middle"}, cut(b.title, 30)),
      shape("text", {x: b.width / 2, y: 27, "text-anchor": "middle", class: "small"}, cut(b.more, 34)));
    if (b.thing) g.addEventListener("click", () => choose(b.thing, true));
    elements.set(b.id, g);
    made.push(g);
  }
  world.replaceChildren(...made);
  const zoom = d3.zoom().scaleExtent([0.01, 6]).on("zoom", event =>
    world.setAttribute("transform", event.transform));
  const view = d3.select(svg).call(zoom).on("dblclick.zoom", null);
  const size = () => [svg.clientWidth || 800, svg.clientHeight || 600];
  const at = (x, y, k) => view.call(zoom.transform, d3.zoomIdentity.translate(size()[0] / 2 - x * k,
    size()[1] / 2 - y * k).scale(k));
  drawn = {boxes, edges, elements, places, world, svg,
    zoomBy: k => view.call(zoom.scaleBy, k),
    fit: () => at(0, found.height / 2, Math.min(size()[0] / found.width, size()[1] / found.height)),
    top: () => at(0, size()[1] / 2 / start(), start()),
    to: id => { const k = Math.max(0.8, Number(/scale\(([\d.]+)/.exec(world.getAttribute("transform"))?.[1] || 1));
      at(...places.get(id), k); }};
  const start = () => Math.max(Math.min(1, size()[0] / found.width), 0.35);
  drawn.top();
  $("status").textContent = `${boxes.length} boxes` + (state.stage === null ? "" :
    "; green: put in by this pass, red: taken out by the next; colours: kernels");
  mark(true);
  document.body.dataset.drawn = boxes.length;
  document.body.dataset.milliseconds = document.body.dataset.milliseconds || Math.round(performance.now());
}
function mark(move) {
  for (const r of document.querySelectorAll("tr[data-group]"))
    r.classList.toggle("chosen", state.chosen?.kind === "group" && r.dataset.group == state.chosen.number);
  if (!drawn || state.tab !== "graph") return;
  const c = state.chosen, id = c ? c.kind + c.number : "";
  for (const [name, g] of drawn.elements) g.classList.toggle("chosen", name === id);
  for (const e of drawn.world.querySelectorAll(".edge"))
    e.classList.toggle("chosen", e.dataset.from === id || e.dataset.to === id);
  if (move && drawn.elements.has(id)) drawn.to(id);
}
function step(by) {             // to the pass before or behind
  const all = [...stages(), null], at = all.indexOf(state.stage) + by;
  if (at >= 0 && at < all.length) show("graph", all[at]);
}
function walk(event) {          // arrows: along edges, and to neighbours in the order of the model
  if (!drawn) return;
  const things = drawn.boxes.filter(b => b.thing);
  const now = things.findIndex(b => sameThing(b.thing, state.chosen));
  const id = now < 0 ? null : things[now].id;
  const along = {ArrowDown: drawn.edges.filter(e => e[0] === id).map(e => e[1]),
                 ArrowUp: drawn.edges.filter(e => e[1] === id).map(e => e[0])}[event.key];
  const target = id === null ? things[0] : along ? things.find(b => along.includes(b.id))
    : things[now + (event.key === "ArrowRight" ? 1 : -1)];
  if (target) choose(target.thing);
  event.preventDefault();
}

// ---- tables and pictures

function tableView() {
  const columns = [["#", (s, k) => k], ["name", s => s.name], ["ops", s => s.ops.join(" ")],
    ["template", s => s.template || "loops"], ["work", s => s.flops, s => s.work],
    ["moved", s => s.bytes, s => s.moved], ["FLOP/B", s => s.bytes ? s.flops / s.bytes : 0,
     s => s.bytes ? (s.flops / s.bytes).toFixed(1) : ""], ["launch", s => s.geometry]];
  if (data.profile) columns.push(
    ["time", s => { const m = measured(s); return m ? m.seconds / m.launches : 0; },
     s => { const m = measured(s); return m ? time(m.seconds / m.launches) : ""; }],
    ["of roof", s => measured(s)?.of_roof || 0,
     s => { const m = measured(s); return m?.of_roof ? `${(100 * m.of_roof).toFixed(0)} %` : ""; }]);
  if (data.errors) columns.push(["error", s => Math.max(0, ...erring(s).map(l => l.total.relative ?? Infinity)),
    s => erring(s).map(l => number3(l.total.relative)).join(" ")]);
  const rows = part.steps.map((s, k) => [s, k]);
  if (state.sort !== null) {
    const value = columns[state.sort][1];
    rows.sort(([a, i], [b, j]) => { const x = value(a, i), y = value(b, j);
      return typeof x === "number" ? (state.sort === 0 ? x - y : y - x) : x.localeCompare(y); });
  }
  const numbers = new Set(["#", "work", "moved", "FLOP/B", "time", "of roof"]);
  const kind = name => numbers.has(name) ? "number" : null;
  const key = act => event => { if (event.key === "Enter") act(); };
  $("view").replaceChildren(html("div", {class: "scroll"}, html("table", {},
    html("thead", {}, html("tr", {}, ...columns.map(([name], k) => {
      const act = () => { state.sort = k; tableView(); };
      return html("th", {class: kind(name), tabindex: 0, title: "sort by it", on: {click: act, keydown: key(act)}}, name);
    }))),
    html("tbody", {}, ...rows.map(([s, k]) => {
      const act = () => choose({kind: "group", number: s.group, step: k});
      return html("tr", {tabindex: 0, "data-group": s.group, on: {click: act, keydown: key(act)}},
        ...columns.map(([name, value, text]) => html("td", {class: kind(name)}, String((text || value)(s, k)))));
    })))));
  mark();
}
function memoryView() {
  const box = html("div", {class: "scroll memory"});
  box.innerHTML = part.memory.svg;              // jitcl's own picture, its texts escaped
  box.append(html("pre", {tabindex: 0}, part.memory.text));
  $("view").replaceChildren(box);
}
function timelineView() {       // the last run: a lane for the host, one for each device
  const run = data.profile.runs[data.profile.runs.length - 1];
  if (!run) return void $("view").replaceChildren(html("p", {class: "scroll"}, "No run was recorded."));
  const lanes = [...new Set(["host", ...run.spans.map(s => s.on)])], wide = 1200;
  const x = t => 110 + (t - run.begin) / (run.end - run.begin) * (wide - 120);
  const svg = shape("svg", {class: "picture", viewBox: `0 0 ${wide} ${40 + 40 * lanes.length}`, preserveAspectRatio: "xMidYMin",
                            "aria-label": "spans of the last run"});
  const world = shape("g", {});
  svg.append(world);
  lanes.forEach((lane, k) => world.append(shape("text", {x: 4, y: 50 + 40 * k}, cut(lane, 17))));
  for (let k = 0; k <= 10; k++) world.append(shape("text", {x: 110 + k / 10 * (wide - 120), y: 14, class: "small"},
    time(k / 10 * (run.end - run.begin))));
  for (const s of run.spans) {
    const number = part.steps.findIndex(t => t.name === s.name);
    const rect = shape("rect", {x: x(s.begin), width: Math.max(x(s.end) - x(s.begin), 0.3), height: 26,
      y: 32 + 40 * lanes.indexOf(s.on), stroke: "var(--soft)", "stroke-width": 0.2});
    rect.style.fill = s.kind === "kernel" ? fill(s.name) : "var(--line)";
    rect.append(shape("title", {}, `${s.name} (${data.profile.kinds[s.kind] || s.kind}) ${time(s.end - s.begin)}`));
    if (number >= 0) rect.addEventListener("click", () =>
      choose({kind: "group", number: groupOfStep(number), step: number}));
    world.append(rect);
  }
  d3.select(svg).call(d3.zoom().scaleExtent([1, 2000]).on("zoom", event =>
    world.setAttribute("transform", `translate(${event.transform.x} 0) scale(${event.transform.k} 1)`)));
  $("view").replaceChildren(html("div", {class: "bar"}, html("span", {}, `the last of ${data.profile.runs.length} ` +
    `runs: ${time(run.end - run.begin)}. Wheel: zoom, drag: move.`)), svg);
}
function layersView() {         // errors from 1e-9 to 1, as bars of their powers of ten
  const long = error => error === null ? 120 : error > 0 ? Math.max(0, Math.min(120, (9 + Math.log10(error)) * 13)) : 0;
  const bar = error => html("span", {class: "meter", style: `width:${long(error)}px`});
  const e = data.errors;
  $("view").replaceChildren(html("div", {class: "scroll"},
    html("p", {}, `${e.configuration} beside ${e.against}; tolerance ${e.tolerance}`),
    html("table", {}, html("thead", {}, html("tr", {}, ...["layer", "op", "error", "", "its own", ""].map(t => html("th", {}, t)))),
      html("tbody", {}, ...e.layers.map(l => {
        const number = part.steps.findIndex(s => s.nodes.some(n => n.name === l.node));
        const act = () => number >= 0 && choose({kind: "group", number: groupOfStep(number)});
        return html("tr", {tabindex: 0, "data-group": number < 0 ? null : groupOfStep(number),
          on: {click: act, keydown: event => { if (event.key === "Enter") act(); }}},
          html("td", {}, l.node + (l.tensor === e.first ? "  (they part here)" : "")), html("td", {}, l.op_type),
          html("td", {class: "number"}, number3(l.total.relative)), html("td", {}, bar(l.total.relative)),
          html("td", {class: "number"}, l.own ? number3(l.own.relative) : ""), html("td", {}, ...(l.own ? [bar(l.own.relative)] : [])));
      })))));
}

// ---- all of it

const TABS = {graph: graphView, kernels: tableView, memory: memoryView,
  ...(data.profile ? {timeline: timelineView} : {}), ...(data.errors ? {layers: layersView} : {})};
function show(tab, stage = state.stage) {
  if (stage !== state.stage) state.chosen = null;       // details say what the pass changed
  Object.assign(state, {tab, stage});
  for (const t of $("tabs").children) t.setAttribute("aria-selected", t.textContent === tab);
  drawn = null;
  TABS[tab]();
  search();
  details();
  address();
}
function address() {
  const c = state.chosen, words = new URLSearchParams({tab: state.tab, part: state.part + 1});
  if (state.stage !== null) words.set("stage", state.stage);
  if (c) words.set(c.kind, c.number);
  if (document.documentElement.dataset.chosen) words.set("theme", document.documentElement.dataset.theme);
  history.replaceState(null, "", "#" + words);
}
function theme(name, chosen) {
  document.documentElement.dataset.theme = name;
  if (chosen) document.documentElement.dataset.chosen = "yes";
}
function begin() {
  const words = new URLSearchParams(location.hash.slice(1));
  theme(words.get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"), words.has("theme"));
  if (!part) return void ($("details").textContent = "No part of this model is compiled.");
  state.part = Math.min(Math.max(Number(words.get("part") || 1), 1), data.parts.length) - 1;
  part = data.parts[state.part];
  const stage = words.get("stage");
  state.stage = stage !== null && stages().includes(Number(stage)) ? Number(stage) : null;
  const kind = words.has("node") ? "node" : words.has("group") ? "group" : null;
  const number = kind && Number(words.get(kind)), pool = kind === "node" ? part.nodes : part.groups;
  if (kind && pool[number]) state.chosen = {kind, number};
  $("about").textContent = `on ${part.device}` + (data.parts.length > 1 ? `, ${data.parts.length} parts` : "");
  $("part").hidden = data.parts.length < 2;
  $("part").append(...data.parts.map((p, k) => html("option", {value: k}, `part ${k + 1}`)));
  $("part").value = state.part;
  $("part").addEventListener("change", event => {
    Object.assign(state, {part: Number(event.target.value), stage: null, chosen: null});
    part = data.parts[state.part];
    show(state.tab, null);
  });
  $("tabs").append(...Object.keys(TABS).map(name => html("button", {role: "tab",
    on: {click: () => show(name)}}, name)));
  $("theme").addEventListener("click", () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true); address(); });
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", event => {
    const first = $("found").firstChild;
    if (first && event.key === "ArrowDown") first.focus();
    else if (first && event.key === "Enter") first.click();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", event => {
    if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = {"/": () => $("search").focus(), "[": () => step(-1), "]": () => step(1),
      "+": () => drawn?.zoomBy(1.4), "-": () => drawn?.zoomBy(0.7), "0": () => drawn?.fit(),
      Escape: () => choose(null)}[event.key];
    if (at) { at(); event.preventDefault(); }
    else if (/^Arrow/.test(event.key) && event.target === drawn?.svg) walk(event);
  });
  show(TABS[words.get("tab")] ? words.get("tab") : "graph");
}
begin();
