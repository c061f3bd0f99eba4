"use strict";
/* The page of a job. Whatever comes from a job is put in as text, never as markup. */

const LEVELS = { ok: "ALL RIGHT", warn: "LOOK", bad: "NOT ALL RIGHT", info: "UNKNOWN" };
const VIEWS = [["now", "Now"], ["timeline", "Timeline"], ["hosts", "Hosts"], ["logs", "Logs"], ["checkpoints", "Checkpoints"], ["scaling", "Autoscaling"], ["jobs", "Jobs"]];
const PARTS_OF = { now: ["now", "timeline", "checkpoints"], timeline: ["timeline", "records"], hosts: ["hosts"], logs: [], checkpoints: ["checkpoints"], scaling: ["scaling"], jobs: [] };
const MAX_ROWS = 300, MAX_SHOWN = 400000, AROUND_S = 10;

const offline = document.getElementById("data") ? JSON.parse(document.getElementById("data").textContent) : null;
const state = { token: "", view: "now", job: "", parts: {}, update: null, chosen: null, zoom: null, faults: false, abort: null, leave: [] };

/* --- making elements */

function el(name, props, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/* Replaces what a container holds; the focus stays where it was, by the key of its element. */
function fill(container, ...children) {
  const active = document.activeElement;
  const key = active && container.contains(active) ? active.dataset.key : undefined;
  container.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  if (key !== undefined) {
    const again = [...container.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key);
    if (again) again.focus({ preventScroll: true });
  }
}

function table(headings, rows, caption) {
  if (!rows.length) return el("p", { class: "note", text: "none" });
  const head = el("tr", {}, ...headings.map(([name, kind]) => el("th", { scope: "col", class: kind || "", text: name })));
  const body = rows.map((cells) => {
    const chosen = cells.chosen;
    const made = cells.map((cell, at) => {
      const holder = el("td", { class: headings[at][1] || "", "data-name": headings[at][0] });
      if (cell !== null && cell !== undefined && cell !== "") holder.append(cell);
      return holder;
    });
    return el("tr", { class: chosen ? "chosen" : "" }, ...made);
  });
  return el("div", { class: "scroll" }, el("table", { class: "cards", "aria-label": caption }, el("thead", {}, head), el("tbody", {}, ...body)));
}

function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.map(([name, value, more]) =>
    el("div", {}, el("dt", { text: name }), el("dd", {}, value, more ? el("small", { text: more }) : null))));
}

/* --- words */

const none = "–";
function num(value, digits) {
  return value === null || value === undefined ? none : Number(value).toLocaleString("en", { maximumSignificantDigits: digits || 4 });
}
function whole(value) { return value === null || value === undefined ? none : Number(value).toLocaleString("en"); }
function percent(value) { return value === null || value === undefined ? none : `${(100 * value).toFixed(1)} %`; }
function plural(count, noun) { return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`; }
function dur(seconds) {
  if (seconds === null || seconds === undefined) return none;
  if (seconds < 60) return `${Number(seconds).toLocaleString("en", { maximumSignificantDigits: 3 })} s`;
  const total = Math.round(seconds);
  const [size, small, high, low] = total < 3600 ? [60, 1, "min", "s"] : total < 86400 ? [3600, 60, "h", "min"] : [86400, 3600, "d", "h"];
  const rest = Math.floor((total % size) / small);
  return `${Math.floor(total / size)} ${high}${rest ? ` ${rest} ${low}` : ""}`;
}
function bytes(value) {
  if (value === null || value === undefined) return none;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${num(value, 3)} ${units[at]}`;
}
function clock(date) { return date.toLocaleTimeString("en-GB"); }  /* 24 hours, as on the axes */
function time(t) {
  if (!t) return none;
  const date = new Date(1000 * t), today = new Date().toDateString() === date.toDateString();
  return `${today ? "" : `${date.toLocaleDateString(undefined, { month: "short", day: "numeric" })} `}${clock(date)}`;
}
function wall(at) {
  const known = (state.parts.timeline || { wall: [] }).wall;
  let found = null;
  for (const [from, t] of known) if (from <= at || found === null) found = t + at - from;
  return found;
}
function nowT() { return offline ? offline.written : Date.now() / 1000; }

/* --- the server */

function url(path, params) {
  return `api/${path}?${new URLSearchParams({ job: state.job, ...params })}`;
}
async function ask(path, params, options) {
  const answer = await fetch(url(path, params), { ...options, headers: { Authorization: `Bearer ${state.token}`, ...(options || {}).headers } });
  if (!answer.ok && !(answer.headers.get("content-type") || "").includes("json")) throw new Error((await answer.text()).trim() || `error ${answer.status}`);
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  return found;
}

function refusal(text) {
  try { return JSON.parse(text).error || text; } catch { return text; }
}

async function follow() {
  let pause = 500;
  const mine = state.abort = new AbortController();
  while (!mine.signal.aborted) {
    try {
      const answer = await fetch(url("live", {}), { headers: { Authorization: `Bearer ${state.token}` }, signal: mine.signal });
      if (!answer.ok) throw new Error(refusal((await answer.text()).trim()));
      showStatus("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        pause = 500;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        const changed = events.map(taken).filter(Boolean);
        if (changed.length) refresh(changed);
      }
      throw new Error("the server has ended");
    } catch (error) {
      if (mine.signal.aborted) return;
      showStatus(`not live: ${error instanceof TypeError ? "the server does not answer" : error.message}`);
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, 10000);
    }
  }
}

function taken(event) {
  const match = /^event: (\w+)\ndata: (.*)$/s.exec(event);
  if (!match) return null;
  state.parts[match[1]] = JSON.parse(match[2]);
  return match[1];
}

function showStatus(text) { document.getElementById("link").textContent = text; }

/* --- the frame */

function refresh(changed) {
  const now = state.parts.now, glance = state.parts.glance;
  const reading = state.parts.reading;
  if (state.parts.error) showStatus(state.parts.error);
  else if (reading !== undefined && reading < 1) showStatus(`reading the journal: ${Math.round(100 * reading)} %`);
  else if (!offline) showStatus("live");
  if (now) {
    if (state.run !== now.run) Object.assign(state, { run: now.run, ...(state.run === undefined ? {} : { chosen: null, zoom: null }) });
    const step = state.parts.step;
    if (step && step.step !== null && !now.ended) { now.step = step.step; if (typeof step.values.loss === "number") now.loss = step.values.loss; }
    verdict(now);
  } else if (glance) verdict(glance);
  if (state.update && (changed === null || changed.some((part) => part === "step" ? state.view === "now" : PARTS_OF[state.view].includes(part)))) state.update();
}

function verdict(now) {
  document.title = `${now.job}: ${LEVELS[now.level].toLowerCase()}`;
  document.getElementById("title").textContent = now.job;
  const box = document.getElementById("verdict");
  box.className = now.level;
  const badge = document.getElementById("badge"), sentence = document.getElementById("sentence"), advice = document.getElementById("do");
  const word = now.word || (now.ended && now.level === "ok" ? "DONE" : LEVELS[now.level]);
  if (badge.textContent !== word) badge.textContent = word;
  if (sentence.textContent !== now.text) sentence.textContent = now.text;
  const proposal = now.do ? `What to do: ${now.do}` : "";
  if (advice.textContent !== proposal) advice.textContent = proposal;
}

function show(view, options) {
  state.view = view;
  state.leave.forEach((ends) => ends());
  state.leave = [];
  for (const button of document.querySelectorAll("nav button")) {
    const selected = button.dataset.view === view;
    button.setAttribute("aria-selected", String(selected));
    button.tabIndex = selected ? 0 : -1;
  }
  const main = document.getElementById("main");
  main.replaceChildren();
  main.setAttribute("aria-label", VIEWS.find(([name]) => name === view)[1]);
  state.update = MAKE[view](main, options || {});
  state.update();
  remember();
}

function remember() {
  const words = [offline ? "" : state.token, state.view, state.job].map(encodeURIComponent);
  history.replaceState(null, "", `#${words.join("/")}`);
}

function every(seconds, does) {
  const timer = setInterval(does, 1000 * seconds);
  state.leave.push(() => clearInterval(timer));
}

function tabs() {
  const nav = document.getElementById("views");
  for (const [name, words] of VIEWS) {
    if (offline && name === "jobs") continue;
    nav.append(el("button", { role: "tab", type: "button", "data-view": name, "aria-controls": "main", text: words, onclick: () => show(name) }));
  }
  nav.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...nav.children], at = all.indexOf(document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    show(next.dataset.view);
  });
}

function waitingFor(main, part) {
  if (state.parts[part]) return false;
  fill(main, el("p", { class: "note", text: state.parts.error || "nothing is known yet" }));
  return true;
}

/* --- Now */

const known = (value) => value !== null && value !== undefined;

function viewNow(main) {
  const body = el("div");
  main.append(body);
  every(1, () => state.update());
  return () => {
    if (waitingFor(body, "now")) return;
    const now = state.parts.now, sealed = ((state.parts.checkpoints || {}).sealed || [])[0];
    const reasons = reasonRows(now);
    fill(body,
      reasons.length ? el("h2", { text: now.ended ? "Why" : "What happened last" }) : null,
      reasons.length ? el("ul", {}, ...reasons) : null,
      facts([
        ["World", now.size ? plural(now.size, "rank") : "none", now.hosts ? `on ${plural(now.hosts, "host")}; world ${now.generation}` : `world ${now.generation}`],
        [now.call > 1 ? `Step, in call ${now.call}` : "Step", whole(now.step), now.ended ? `ended ${time(now.last)}` : `last line ${dur(Math.max(0, nowT() - now.last))} ago`],
        ["Loss", num(now.loss)],
        ["Throughput", now.rate === null ? none : num(now.rate), now.rate_unit],
        ["Goodput", percent(now.goodput), `of what the listed hosts could have done in ${dur(now.since_s)}`],
        ["Without a step", dur(now.downtime_s), `with the start; ${plural(now.steps_lost, "step")} done again (${dur(now.lost_s)})`],
        known(now.gpu) ? ["GPUs", percent(now.gpu), known(now.gpu_memory) ? `busy; ${percent(now.gpu_memory)} of their memory in use` : "busy"] : null,
        known(now.per_hour) ? ["Price", num(now.per_hour), "an hour, of the hosts that train"] : null,
        ["Process time", dur(3600 * now.process_hours), "of all processes of this run together"],
        ["Newest checkpoint", sealed ? dur(Math.max(0, nowT() - sealed.t)) : none, sealed ? `ago, step ${whole(sealed.step)}` : "none in this run"],
      ].filter(Boolean)),
      el("p", { class: "note", text: `Run ${now.run || "without a name"}${now.runs > 1 ? `, the newest of ${now.runs}` : ""}, began ${time(now.started)}; ${plural(now.lines, "line")} in its journal${now.foreign ? `, ${now.foreign} unreadable` : ""}${now.left_out ? `; ${whole(now.left_out)} old events are left out here` : ""}.` }));
  };
}

function reasonRows(now) {
  const rows = (state.parts.timeline || { rows: [] }).rows;
  const found = now.why.map((id) => rows.find((row) => row.id === id)).filter(Boolean);
  return found.map((row) => el("li", {},
    el("span", { class: `kind-${row.kind}`, text: `${time(wall(row.at))} ${row.event} ` }),
    el("span", { text: `${row.hosts.join(" ")} ${row.text} ` }),
    el("button", { class: "link", type: "button", "data-key": `why${row.id}`, text: "cause, cost and output", onclick: () => { state.chosen = row.id; state.zoom = null; show("timeline", { toDetail: true }); } })));
}

/* --- Timeline */

function viewTimeline(main, options) {
  const holder = el("div", { class: "chart" }), detail = el("div", { class: "details" }), list = el("div");
  const faults = el("input", { type: "checkbox", id: "faults", onchange: () => { state.faults = faults.checked; update(); } });
  const moves = el("input", { type: "checkbox", id: "moves", onchange: () => update() });
  faults.checked = state.faults;
  const zoom = (name, does) => el("button", { type: "button", text: name, onclick: () => { does(); update(); } });
  main.append(
    el("div", { class: "tools", role: "group", "aria-label": "Zoom" },
      zoom("Zoom in", () => scaled(0.5)), zoom("Zoom out", () => scaled(2)), zoom("◀ Earlier", () => moved(-0.5)), zoom("Later ▶", () => moved(0.5)),
      zoom("Whole run", () => { state.zoom = null; }), el("label", { for: "moves", class: "fine" }, moves, "drag to move")),
    el("p", { class: "note" }, el("span", { class: "fine", text: "Drag over a chart, or turn the wheel with Ctrl, to zoom. " }), "Select a line, a checkpoint (▲) or a row to see its cause, what it cost and the output around it."),
    holder, detail, el("h2", { text: "Events" }), el("label", { for: "faults" }, faults, " faults only"), list);
  let drawn = null, soon = null;
  const choose = (id) => { state.chosen = id; update(); detail.scrollIntoView({ block: "nearest" }); };
  const plots = charts.timeline(holder, { choose, zoomed: (part) => { zoomTo(...part); soon ??= requestAnimationFrame(() => { soon = null; listed(); }); } });
  state.leave.push(plots.remove);
  const listed = () => fill(list, rowsTable(state.parts.timeline, choose));
  const update = () => {
    if (waitingFor(list, "timeline")) return;
    const content = state.parts.timeline;
    plots.update(content, state.chosen, state.zoom, moves.checked);
    const row = content.rows.find((each) => each.id === state.chosen);
    const key = row ? `${row.id} ${row.down} ${row.text}` : "";
    if (key !== drawn) { fill(detail, row ? detailOf(row) : null); drawn = key; }
    listed();
  };
  if (options.toDetail) setTimeout(() => { detail.scrollIntoView({ block: "start" }); }, 0);
  return update;
}

/* What is zoomed to, on the axis of the charts. */
function range(content) { return state.zoom || charts.clock(content).whole; }
function scaled(by) {
  const [from, to] = range(state.parts.timeline), middle = (from + to) / 2, half = Math.max(500, by * (to - from) / 2);
  zoomTo(middle - half, middle + half);
}
function moved(by) { const [from, to] = range(state.parts.timeline); zoomTo(from + by * (to - from), to + by * (to - from)); }
function zoomTo(from, to) {
  const [first, last] = charts.clock(state.parts.timeline).whole, span = Math.min(to - from, last - first);
  const begin = Math.max(first, Math.min(from, last - span));
  state.zoom = span >= last - first ? null : [begin, begin + span];
}

function rowsTable(content, choose) {
  const [from, to] = range(content), { x } = charts.clock(content), inside = (row) => x(row.at) >= from && x(row.at) <= to;
  const rows = content.rows.filter((row) => inside(row) && (!state.faults || row.kind === "bad")).reverse();
  const shown = rows.slice(0, MAX_ROWS).map((row) => {
    const cells = [
      time(wall(row.at)),
      el("button", { class: `link kind-${row.kind}`, type: "button", "data-key": `row${row.id}`, "aria-pressed": String(row.id === state.chosen), text: row.event, onclick: () => choose(row.id) }),
      row.hosts.join(" ") + (row.more ? ` and ${row.more} more` : ""),
      row.before !== null && row.after !== null ? `${row.before} → ${row.after}` : "",
      row.down === null ? "" : dur(row.down), row.lost === null ? "" : whole(row.lost), row.text,
    ];
    cells.chosen = row.id === state.chosen;
    return cells;
  });
  const left = rows.length - shown.length + (content.first || 0);
  return el("div", {},
    table([["When", "t"], ["Event", "h"], ["Hosts", "h"], ["Size", "t"], ["No step for", "n"], ["Steps lost", "n"], ["Why"]], shown, "Events, the newest first"),
    left > 0 ? el("p", { class: "note", text: `${whole(left)} older ones are not shown; zoom to them.` }) : null);
}

function detailOf(row) {
  const box = el("section", { class: "detail", "aria-label": "The chosen event" });
  const costs = [row.down !== null ? `no step for ${dur(row.down)}` : "", row.lost !== null ? `${plural(row.lost, "step")} done again` : "", row.before !== null && row.after !== null && row.before !== row.after ? `${row.before} → ${row.after} ranks` : ""].filter(Boolean);
  const near = (state.parts.records || []).filter(([at]) => at >= row.at - AROUND_S && at <= row.at + 2);
  box.append(
    el("h2", { text: `${time(wall(row.at))}: ${row.event} ${row.hosts.join(" ")}${row.more ? ` and ${row.more} more` : ""}` }),
    row.means ? el("p", { class: "note", text: `${row.event}: ${row.means}` }) : "",
    el("p", {}, el("strong", { text: "Cause: " }), el("span", { class: "cause", text: row.text || row.event })),
    row.do ? el("p", {}, el("strong", { text: "What to do: " }), el("span", { class: "do", text: row.do })) : "",
    el("p", {}, el("strong", { text: "Cost: " }), costs.join(", ") || "none known"));
  for (const [who, t] of row.who) box.append(outputAround(who, t));
  if (!row.who.length && row.kind === "bad") box.append(el("p", { class: "note", text: "No process ended with an error just before." }));
  if (!row.who.length && row.on.length) box.append(outputOf(row.on));
  box.append(el("h2", { text: "Journal around it" }), el("pre", { tabindex: 0, "aria-label": "Journal around the event", text: near.slice(-30).map(([at, generation, event, detail]) => `${time(wall(at))}  world ${generation}  ${event}\n    ${detail.split("\n").join("\n    ")}`).join("\n") || "nothing" }));
  return box;
}

function outputAround(who, t) {
  const file = `rank.${who}/stderr`, pre = el("pre", { tabindex: 0, "aria-label": `Output of rank ${who}`, text: "…" });
  const box = el("div", {}, el("h2", { text: `Output of ${who.includes("[") ? who : `rank ${who}`} around it` }), pre);
  const put = (text) => { pre.textContent = text || "nothing was written there"; pre.scrollTop = pre.scrollHeight; };
  const take = (part) => {
    put(part.text);
    if (part.file && (!offline || offline.logs.ends[part.file])) box.append(el("button", { class: "link", type: "button", text: `open ${part.file}`, onclick: () => show("logs", { file: part.file }) }));
  };
  const kept = offline && offline.logs.around[`${file}@${t}`];
  if (kept) take(kept);
  else if (offline && offline.logs.ends[file]) take({ text: offline.logs.ends[file], file });
  else if (offline) put(why(offline.logs.folder));
  else if (!(state.parts.now || {}).output) put(why(null));
  else ask("log", { file, t }).then(take, (error) => put(error.message));
  return box;
}

/* Leads to the output of hosts, where there is some. */
function outputOf(hosts) {
  const box = el("p");
  const offer = (found) => {
    for (const host of hosts) if (found.files.some((each) => each.size > 0 && each.hosts.includes(host))) box.append(el("button", { class: "link", type: "button", text: `output of ${host}`, onclick: () => show("logs", { host }) }), " ");
    if (!found.folder) box.append(why(null));
  };
  if (offline) offer(exported()); else ask("logs", {}).then(offer, (error) => box.append(error.message));
  return box;
}

/* What a page in one file has of the output. */
function exported() { return { folder: offline.logs.folder, files: offline.logs.files.filter((each) => offline.logs.ends[each.file]) }; }

function why(folder) {
  return folder ? "not in this file" : "The output of processes was not kept: start the job with --dashboard, or with --output-filename FOLDER.";
}

/* --- Hosts */

function viewHosts(main) {
  const wanted = el("input", { id: "host-filter", type: "search", oninput: () => update() });
  const list = el("div"), status = el("p", { role: "status", class: "note" });
  main.append(el("div", { class: "tools" }, el("label", { for: "host-filter" }, "Name, state or reason", wanted)), status, list);
  const update = () => {
    if (waitingFor(list, "hosts")) return;
    const all = state.parts.hosts, text = wanted.value.toLowerCase();
    const hosts = all.filter((host) => !text || `${host.name} ${host.state} ${host.why} ${host.notice}`.toLowerCase().includes(text));
    const measures = [["gpu", "GPU", percent], ["gpu_memory", "GPU memory", percent], ["price", "Price/h", num], ["shares", "Share", shares]].filter(([key]) => all.some((host) => known(host[key]) && host[key].length !== 0));
    const steps = all.map((host) => host.step_s).filter((step) => step > 0).sort((a, b) => a - b), middle = steps[Math.floor((steps.length - 1) / 2)] || 0;
    fill(list,
      el("p", { class: "note", text: `${plural(all.length, "host")}; ${all.filter((host) => host.trains).length} train, ${all.filter((host) => host.state === "blocked").length} blocked. ${(state.parts.now || {}).launcher ? "By the launcher, now." : "By the journal."}` }),
      table([["Host", "h"], ["Verdict"], ["Strikes", "n"], ["Why"], ["Ranks"], ["CPU", "n"], ["Memory", "n"], ...measures.map(([, title]) => [title, "n"]), ["Step", "n"], ...(offline ? [] : [["Change", "t"]])], hosts.map((host) => hostCells(host, middle, status, measures)), "Hosts"));
  };
  return update;
}

/* The part of the global batch that each rank of a host gets. */
function shares(parts) { return parts.length > 8 ? `${parts.slice(0, 8).map(percent).join(" ")} …` : parts.map(percent).join(" "); }

function hostCells(host, middle, status, measures) {
  const slow = host.straggler || (middle && host.step_s > 1.5 * middle ? `${dur(host.step_s)} a step, others ${dur(middle)}` : "");
  const words = [host.trains ? "trains" : host.spares ? "is a spare" : host.listed ? "does not train" : "not listed", host.state !== "free" ? host.state : "", host.left_s ? `${dur(host.left_s)} more` : host.state === "blocked" ? "until cleared" : ""].filter(Boolean);
  const kind = host.state === "blocked" || host.gone ? "bad" : host.notice || slow || !(host.trains || host.spares) ? "warn" : "ok";
  const ranks = host.ranks || [];
  return [
    host.name, el("span", { class: `kind-${kind}`, text: words.join(", ") }), host.strikes || "",
    [host.notice ? `notice: ${host.notice}` : "", slow ? `straggler: ${slow}` : "", host.gone, host.why].filter(Boolean).join("; "),
    ranks.length > 8 ? `${ranks.slice(0, 8).join(" ")} … ${ranks[ranks.length - 1]}` : ranks.join(" "),
    known(host.cpu) ? percent(host.cpu) : "", known(host.memory) ? percent(host.memory) : "",
    ...measures.map(([key, , shown]) => (known(host[key]) ? shown(host[key]) : "")),
    host.step_s ? dur(host.step_s) : "",
    ...(offline ? [] : [el("span", {},
      el("button", { type: "button", "data-key": `block ${host.name}`, "aria-label": `Drain and block ${host.name}`, text: "Block…", onclick: () => confirmed(host, "block", status) }), " ",
      el("button", { type: "button", "data-key": `clear ${host.name}`, "aria-label": `Clear ${host.name}`, text: "Clear…", onclick: () => confirmed(host, "clear", status) }))]),
  ];
}

function confirmed(host, what, status) {
  const dialog = document.getElementById("dialog"), block = what === "block";
  const length = el("select", { id: "block-for" }, ...[["", "until it is cleared"], ["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"]].map(([value, text]) => el("option", { value, text })));
  const reason = el("input", { id: "block-reason", maxlength: 150 });
  const act = async () => {
    dialog.close();
    const request = { do: what, host: host.name, ...(block ? { for: length.value ? Number(length.value) : null, reason: reason.value } : {}) };
    try {
      const answer = await ask("act", {}, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
      status.textContent = answer.said;
    } catch (error) { status.textContent = `Not done: ${error.message}`; }
  };
  fill(dialog, ...[
    el("h2", { id: "dialog-title", text: block ? `Block ${host.name}?` : `Clear ${host.name}?` }),
    el("p", { text: block ? "It is drained: its work moves off without a lost step once the job can do without it, and it gets no more. The journal records it." : "Its strikes and blocks are forgotten, and it may work again. The journal records it." }),
    block ? el("p", { class: "tools" }, el("label", { for: "block-for" }, "For", length), el("label", { for: "block-reason" }, "Reason", reason)) : null,
    el("p", { class: "tools" }, el("button", { type: "button", id: "confirm", text: block ? "Drain and block" : "Clear", onclick: act }), el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() })),
  ].filter(Boolean));
  dialog.showModal();
}

/* --- Logs */

function viewLogs(main, options) {
  const pick = el("input", { id: "log-filter", type: "search", placeholder: "0, h3, stderr", oninput: () => files() });
  const select = el("select", { id: "log-file", onchange: () => open(select.value) });
  const part = el("select", { id: "log-part", onchange: () => read(part.value ? { start: part.value } : {}) });
  const live = el("input", { type: "checkbox", id: "log-follow" });
  const words = el("input", { id: "log-search", type: "search" }), host = el("input", { id: "log-host", size: 10 }), world = el("input", { id: "log-world", inputmode: "numeric", size: 5 });
  const pre = el("pre", { tabindex: 0, "aria-label": "Output" }), hits = el("div"), note = el("p", { class: "note", role: "status" }), result = el("p", { class: "note", role: "status" });
  live.checked = !offline;
  pick.value = options.host || "";
  const at = { file: options.file || "", start: 0, end: 0, all: [] };
  main.append(note,
    el("form", { class: "tools", role: "search", onsubmit: (event) => { event.preventDefault(); search(); } },
      el("label", { for: "log-search" }, "Find in all output", words), ...(offline ? [] : [el("label", { for: "log-host" }, "of host", host), el("label", { for: "log-world" }, "of world", world)]), el("button", { type: "submit", text: "Find" })),
    result, hits,
    el("div", { class: "tools" }, el("label", { for: "log-filter" }, "Rank or host", pick), el("label", { for: "log-file" }, "File", select),
      ...(offline ? [] : [el("label", { for: "log-part" }, "Part", part), el("button", { type: "button", text: "Earlier", onclick: () => earlier() }), el("label", { for: "log-follow" }, live, "follow")])),
    pre);

  const list = async () => {
    const found = offline ? exported() : await ask("logs", {}), ended = (state.parts.now || {}).ended;
    note.textContent = !found.folder ? why(null) : offline ? `The ends of ${found.files.length} of ${plural(offline.logs.files.length, "file")} of ${found.folder} are in this page.` : found.files.length ? `${plural(found.files.length, "file")} in ${found.folder}` : `no output ${ended ? "" : "yet "}in ${found.folder}`;
    const names = found.files.map((each) => each.file).join("\n"), before = at.all.map((each) => each.file).join("\n");
    at.all = found.files;
    if (names !== before || !select.options.length) files();
  };
  const files = () => {
    const text = pick.value.toLowerCase();
    const fits = at.all.filter((each) => !text || each.who === text || `${each.file} ${each.hosts.join(" ")}`.toLowerCase().includes(text)).slice(0, 500);
    fill(select, ...fits.map((each) => el("option", { value: each.file, text: `rank ${each.who} ${each.stream}${each.host ? ` on ${each.host}` : ""}, ${bytes(each.size)}` })));
    if (!fits.length) return;
    const best = fits.find((each) => each.file === at.file) || fits.find((each) => each.size > 0 && each.stream === "stderr") || fits.find((each) => each.size > 0) || fits[0];
    select.value = best.file;
    if (best.file !== at.file || !at.opened) open(best.file);
  };
  const open = async (file) => { at.file = file; at.opened = true; select.value = file; await read({}); };
  const put = (text, keep) => {
    const bottom = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
    pre.textContent = text.length > MAX_SHOWN ? text.slice(-MAX_SHOWN) : text;
    if (bottom && !keep) pre.scrollTop = pre.scrollHeight;
  };
  const read = async (where, keep) => {
    if (offline) { put(offline.logs.ends[at.file]); return; }
    const file = at.file;
    try {
      const found = await ask("log", { file, sections: 1, ...where });
      if (file !== at.file) return;
      at.start = found.start; at.end = found.end;
      put(found.text, keep);
      if (!keep) pre.scrollTop = where.start === undefined ? pre.scrollHeight : 0;
      const chosen = part.value;
      fill(part, el("option", { value: "", text: "newest" }), ...found.sections.map((each) => el("option", { value: each.start, text: `world ${each.generation}, ${each.host} slot ${each.slot}, ${time(each.t)}` })));
      part.value = chosen;
      if (part.selectedIndex < 0) part.value = "";
    } catch (error) { put(error.message); }
  };
  const earlier = async () => {
    if (offline || !at.start) return;
    const found = await ask("log", { file: at.file, end: at.start });
    at.start = found.start;
    live.checked = false;
    pre.textContent = found.text + pre.textContent;
    pre.scrollTop = 0;
  };
  const tail = async () => {
    if (offline || !live.checked || !at.file || part.value) return;
    const file = at.file, found = await ask("log", { file, start: at.end });
    if (file === at.file && found.text && found.start === at.end) { at.end = found.end; put(pre.textContent + found.text); }
  };
  const search = async () => {
    if (offline) {
      const wanted = words.value.toLowerCase();
      const rows = Object.entries(offline.logs.ends).flatMap(([file, text]) => text.split("\n").filter((line) => wanted && line.toLowerCase().includes(wanted)).map((line) => ({ file, text: line })));
      found({ hits: rows.slice(0, 200), whole: rows.length <= 200 });
      return;
    }
    try { found(await ask("search", { q: words.value, host: host.value, generation: world.value })); } catch (error) { result.textContent = error.message; }
  };
  const found = (answer) => {
    result.textContent = `${plural(answer.hits.length, "line")} found${answer.whole ? "" : "; there are more"}`;
    fill(hits, answer.hits.length ? table([["File"], ["Line"]], answer.hits.map((hit) => [
      el("button", { class: "link", type: "button", text: hit.file, onclick: async () => { live.checked = false; at.file = hit.file; at.opened = true; select.value = hit.file; await read(hit.at === undefined ? {} : { start: Math.max(0, hit.at - 2000) }); } }), hit.text]), "Lines found") : null);
  };
  const quietly = (does) => () => does().catch((error) => { note.textContent = error.message; });
  quietly(list)();
  if (!offline) { every(1, quietly(tail)); every(4, quietly(list)); }
  return () => {};
}

/* --- Checkpoints */

function viewCheckpoints(main) {
  const body = el("div");
  main.append(body);
  every(1, () => state.update());
  return () => {
    if (waitingFor(body, "checkpoints")) return;
    const content = state.parts.checkpoints, newest = content.sealed[0], ended = (state.parts.now || {}).ended;
    const next = newest && content.every_s && !ended ? newest.t + content.every_s - nowT() : null;
    fill(body,
      content.place ? null : el("p", { class: "kind-warn", text: "This job makes no checkpoints: start it with --checkpoint-every auto to keep what it learns when all hosts are lost." }),
      facts([
        ["Newest", newest ? `step ${whole(newest.step)}` : none, newest ? `${dur(Math.max(0, nowT() - newest.t))} old` : "none in this run"],
        ["Whole on storage", newest ? { true: "yes", false: "NO", null: "not seen from here" }[String(newest.there)] : none, newest ? newest.path : content.place || ""],
        ["Next", next === null ? none : next > 0 ? `in ${dur(next)}` : "due", content.every_s ? `every ${dur(content.every_s)}` : ""],
        ["In this run", whole(content.count), content.failed.length ? `${content.failed.length} failed` : "none failed"],
      ]),
      content.because ? el("p", { class: "note", text: content.because }) : null, content.commits ? el("p", { class: "note", text: content.commits }) : null,
      content.failed.length ? el("h2", { text: "Failed" }) : null,
      content.failed.length ? table([["When", "t"], ["What"], ["Why"]], content.failed.map((each) => [time(each.t), el("span", { class: "kind-bad", text: each.event }), each.why]), "Checkpoints that failed") : null,
      el("h2", { text: "Complete" }),
      table([["When", "t"], ["Step", "n"], ["Size", "n"], ["Took", "n"], ["On storage"], ["Where"]], content.sealed.map((each) => [time(each.t), whole(each.step), bytes(each.bytes), dur(each.seconds), each.there === null ? "" : each.there ? "whole" : "no longer", each.path]), "Checkpoints"));
  };
}

/* --- Autoscaling */

function viewScaling(main) {
  const body = el("div"), holder = el("div", { class: "chart" }), more = el("div"), plot = charts.curve(holder);
  main.append(body, holder, more);
  state.leave.push(plot.remove);
  return () => {
    if (waitingFor(body, "scaling")) return;
    const content = state.parts.scaling, live = content.live, newest = content.decisions[0];
    const decision = live ? live.why : newest ? newest.why : "", [policy, ...options] = content.policy.split(":");
    fill(body,
      !live && !newest ? el("p", { class: "note", text: "No policy decides the number of hosts: start the job with --autoscale POLICY." }) : null,
      live || newest ? facts([
        ["Policy", policy || none, options.join(":").replaceAll(",", ", ")],
        ["Hosts asked for", live && live.wanted !== null ? whole(live.wanted) : newest && newest.event === "scaled" ? whole(newest.hosts) : none, live && live.by_hand ? "by hand" : ""],
        ["Recommended", live && live.recommended !== null ? whole(live.recommended) : newest && newest.event !== "scaled" ? whole(newest.hosts) : none],
        ["A change costs", live ? dur(live.resize_s) : none],
      ]) : null,
      decision ? el("p", {}, el("strong", { text: "Decision: " }), decision) : null,
      el("h2", { text: "How fast each size was" }),
      el("p", { class: "note", text: content.curve.length ? content.means : "no size has had enough steps yet" }));
    holder.hidden = !content.curve.length; // a new run has none yet
    if (content.curve.length) plot.update(content);
    fill(more,
      content.curve.length ? table([["Hosts", "n"], [`Throughput (${content.unit})`, "n"], ["A host", "n"], ["A further host added", "n"]], content.curve.map(([size, speed, added]) => [whole(size), num(speed), num(speed / size, 3), added === null ? "" : num(added, 3)]), "Throughput by number of hosts") : null,
      el("h2", { text: "Decisions" }),
      table([["When", "t"], ["What"], ["Hosts", "n"], ["Why"]], content.decisions.map((each) => [time(each.t), each.event, each.before === null ? whole(each.hosts) : `${each.before} → ${each.hosts}`, each.why]), "Decisions"));
  };
}

/* --- Jobs */

/* Kind and mark of each state: no two of them differ by their colour alone. */
const STATES = { trains: ["ok", "▶"], starts: ["info", "…"], sleeps: ["info", "☾"], done: ["ok", "✓"], stopped: ["warn", "■"], failed: ["bad", "✗"], lost: ["warn", "?"] };
const ON_CLUSTER = { Running: STATES.trains, Suspended: STATES.sleeps, Succeeded: STATES.done, Failed: STATES.failed };

function marked(kind, mark, text) {
  return el("span", { class: `kind-${kind}` }, el("span", { class: "mark", "aria-hidden": "true", text: mark }), text);
}

function viewJobs(main) {
  const list = el("div"), cluster = el("div");
  main.append(list, cluster);
  const update = async () => {
    try {
      const jobs = await ask("jobs", {});
      fill(list, !jobs.length ? el("p", { class: "note", text: "no job has a journal here" }) : table([["Job"], ["State"], ["Step", "n"], ["Size", "n"], ["Last line", "t"]], jobs.map((job) => [
        el("button", { class: "link", type: "button", "data-key": job.name, text: job.name, onclick: () => choose(job.name) }),
        marked(...STATES[job.state], job.told),
        job.step === null ? "" : whole(job.step), job.size === null ? "" : whole(job.size), `${dur(Math.max(0, nowT() - job.t))} ago`]), "Jobs"));
    } catch (error) { fill(list, el("p", { class: "note", text: error.message })); }
  };
  let named = true, asks = false;
  const updateCluster = async () => {
    if (!named || asks) return;
    asks = true;
    try {
      const content = await ask("cluster", {});
      named = content.namespace !== undefined;
      if (named) fill(cluster, ...clusterJobs(content));
    } catch (error) { fill(cluster, el("p", { class: "note", text: error.message })); }
    asks = false;
  };
  every(3, update);
  every(3, updateCluster);
  return () => { update(); updateCluster(); };
}

function clusterJobs(content) {
  const rows = content.jobs.map((job) => [
    job.name, job.kind,
    marked(...(ON_CLUSTER[job.state] || STATES.starts), [job.state, job.message].filter(Boolean).join(": ")),
    `${whole(job.ready)} of ${job.asked === null ? "?" : whole(job.asked)}`, dur(Math.max(0, nowT() - Date.parse(job.created) / 1000)), job.do]);
  return [
    el("h2", { text: `Namespace ${content.namespace}` }),
    content.problem ? el("p", { class: "note kind-warn", text: content.problem }) : null,
    rows.length ? table([["Job"], ["Kind"], ["State"], ["Workers ready", "n"], ["Age", "n"], ["To see more"]], rows, "Jobs of the namespace") : el("p", { class: "note", text: content.problem ? "no job is known" : "no job was submitted here" })];
}

function choose(job) {
  if (state.abort) state.abort.abort();
  Object.assign(state, { job, parts: {}, run: undefined, chosen: null, zoom: null });
  document.getElementById("title").textContent = job;
  show("now");
  follow();
}

const MAKE = { now: viewNow, timeline: viewTimeline, hosts: viewHosts, logs: viewLogs, checkpoints: viewCheckpoints, scaling: viewScaling, jobs: viewJobs };

function begin() {
  const [token, view, job] = location.hash.slice(1).split("/").map(decodeURIComponent);
  Object.assign(state, { token: token || "", job: job || "" });
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
  tabs();
  if (offline) {
    state.parts = offline.parts;
    showStatus(`as of ${new Date(1000 * offline.written).toLocaleDateString()} ${clock(new Date(1000 * offline.written))}`);
    refresh(null);
  }
  show(MAKE[view] && !(offline && view === "jobs") ? view : "now");
  if (!offline) follow();
}

begin();
