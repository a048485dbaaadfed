// The page: a list of pages, one of them with its annotations, results of a search, and the status of the search index.
// What people wrote gets into the document as text only; nothing is ever parsed as HTML.

const $ = (selector) => document.querySelector(selector);
const main = $("#main");

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(2).filter((child) => child != null && child !== false));
  return element;
}

// --- asking ---

class Refused extends Error {
  constructor(status, said) { super(said); this.status = status; }
}

async function request(path, { method = "GET", body } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The service cannot be reached.");
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found.error ?? answer.statusText);
  return found;
}

function toast(said, { bad = false, act, on, seconds = 6 } = {}) {
  const element = h("div", { className: bad ? "toast bad" : "toast" }, h("span", {}, said));
  if (act) element.append(h("button", { type: "button", onclick: () => { element.remove(); on(); } }, act));
  $("#toasts").replaceChildren(element);
  setTimeout(() => element.remove(), seconds * 1000);
}

const failed = (error) => toast(error.message, { bad: true });
const saved = (what, found) =>
  toast(found.indexed ? `${what}. Searches find it now.` : `${what}. The search index does not answer; searches find it as soon as it does.`);

// --- who is here ---

const me = $("#me");
me.value = localStorage.getItem("user") ?? "guest";
me.addEventListener("change", () => localStorage.setItem("user", me.value.trim()));
const user = () => me.value.trim() || "guest";

// --- the list of pages ---

let pages = [];

async function loadPages() {
  pages = await request("/api/pages");
  drawPages();
}

function drawPages() {
  const wanted = $("#filter").value.trim().toLowerCase();
  const current = place().page;
  $("#pages").replaceChildren(...pages
    .filter((page) => page.name.toLowerCase().includes(wanted))
    .map((page) => h("li", {},
      h("a", { href: link("page", page.name), "aria-current": page.name === current ? "page" : null },
        h("span", {}, page.name), h("span", { className: "count" }, page.annotations)))));
}

$("#filter").addEventListener("input", drawPages);
$("#filter").addEventListener("keydown", (event) => {
  const first = $("#pages a");
  if (event.key === "Enter" && first) location.hash = first.getAttribute("href");
  if (event.key === "ArrowDown" && first) { first.focus(); event.preventDefault(); }
});
$("#pages").addEventListener("keydown", (event) => {
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const next = step && event.target.closest("li")?.[step]?.querySelector("a");
  if (next) { next.focus(); event.preventDefault(); }
});

// --- where we are ---

const link = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");

function place() {
  const [view = "", what = "", id = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { view, what, id: Number(id) || null, page: view === "page" ? what : null };
}

let turn = 0; // of the views: an answer that comes when another one is shown is left out

async function show() {
  const mine = ++turn;
  const { view, what, id } = place();
  if (document.activeElement !== $("#words")) $("#words").value = view === "search" ? what : "";
  drawPages();
  try {
    if (view === "page") await showPage(what, id, mine);
    else if (view === "search") await showResults(what, mine);
    else if (view === "index") await showIndex(mine);
    else showStart();
  } catch (error) {
    if (mine === turn) draw("Annotations", h("div", { className: "alarm", role: "alert" }, h("p", {}, error.message)));
  }
}

function draw(title, ...content) {
  document.title = title;
  main.replaceChildren(...content);
  scrollTo(0, 0);
}

function showStart() {
  const keys = [["/", "search"], ["j, k", "next and previous annotation"], ["↑, ↓", "from line to line"], ["a", "annotate the line"], ["Esc", "cancel"]];
  draw("Annotations", h("div", { className: "blank" },
    h("h1", {}, "Read and annotate"),
    h("p", {}, "Choose a page to read it with its annotations, or search all annotations."),
    h("div", { className: "keys" }, ...keys.flatMap(([key, what]) => [h("span", {}, h("kbd", {}, key)), h("span", {}, what)]))));
}

// --- a page with its margin ---

let sheet = null; // the page that is shown

async function showPage(name, id, mine) {
  if (sheet?.name !== name || !sheet.root.isConnected) {
    const found = await request(`/api/pages/${encodeURIComponent(name)}`);
    if (mine !== turn) return;
    sheet = new Sheet(found);
    draw(`${name} – Annotations`, sheet.root);
    sheet.arrange();
    $("#pages [aria-current]")?.scrollIntoView({ block: "nearest" });
  }
  if (id) sheet.choose(id, { scroll: true });
}

class Sheet {
  constructor({ name, text, annotations }) {
    this.name = name;
    this.notes = annotations;
    this.line = annotations[0]?.line ?? 1;
    this.now = null;
    this.form = null;
    this.text = h("div", { className: "text" });
    this.lines = text.replace(/\n$/, "").split("\n").map((line, n) => h("div", { className: "line" },
      h("button", { type: "button", tabIndex: -1, "data-line": n + 1, "aria-label": `Annotate line ${n + 1}` }), h("pre", {}, line || " ")));
    this.text.append(...this.lines);
    this.text.addEventListener("click", (event) => {
      const button = event.target.closest(".line button");
      if (button) this.write(Number(button.dataset.line));
    });
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.margin = h("div", { className: "margin" });
    this.said = h("p", { className: "lead" });
    this.root = h("div", {},
      h("div", { className: "head" }, h("div", {}, h("h1", {}, name), this.said),
        h("button", { type: "button", id: "annotate", onclick: () => this.write(this.line) }, "Annotate")),
      h("div", { className: "sheet" }, this.text, this.margin));
    new ResizeObserver(() => this.arrange()).observe(this.margin);
    this.draw();
  }

  draw() {
    this.notes.sort((a, b) => a.line - b.line || a.id - b.id);
    const noted = new Set(this.notes.map((note) => note.line));
    this.lines.forEach((line, n) => line.classList.toggle("noted", noted.has(n + 1)));
    this.cards = new Map(this.notes.map((note) => [note.id, card(note, {
      choose: () => this.choose(note.id),
      edit: () => this.edit(note),
      remove: () => this.remove(note),
    })]));
    const cards = [...this.cards.values()];
    this.margin.replaceChildren(...(cards.length || this.form ? cards : [h("p", { className: "empty lead" }, "No annotations yet. Click a line number to write one.")]));
    const people = new Set(this.notes.map((note) => note.user)).size;
    this.said.textContent = `${count(this.notes.length, "annotation")}${people > 1 ? ` by ${people} people` : ""} · ${count(this.lines.length, "line")}`;
    this.mark();
    this.arrange();
  }

  mark() {
    for (const [id, element] of this.cards) {
      element.classList.toggle("now", id === this.now);
      element.toggleAttribute("aria-current", id === this.now);
    }
    this.lines.forEach((line, n) => {
      line.classList.toggle("now", n + 1 === this.line);
      line.firstChild.tabIndex = n + 1 === this.line ? 0 : -1;
    });
  }

  // Each note beside its line, and below the one before; the chosen one exactly beside its line.
  arrange() {
    if (!this.root.isConnected || getComputedStyle(this.margin.firstChild ?? this.margin).position !== "absolute") return;
    const top = this.text.offsetTop;
    const boxes = [...this.cards].map(([id, element]) => ({
      id, element, line: this.notes.find((note) => note.id === id).line, height: element.offsetHeight,
    }));
    if (this.form) boxes.push({ id: 0, element: this.form, line: this.line, height: this.form.offsetHeight });
    boxes.sort((a, b) => a.line - b.line || (a.id || Infinity) - (b.id || Infinity));
    const wish = (box) => Math.max(0, this.lines[Math.min(box.line, this.lines.length) - 1].offsetTop - top - 6);
    const fixed = boxes.findIndex((box) => (this.form ? box.id === 0 : box.id === this.now));
    const tops = [];
    let free = 0;
    for (let n = Math.max(fixed, 0); n < boxes.length; n += 1) {
      tops[n] = n === fixed ? wish(boxes[n]) : Math.max(free, wish(boxes[n]));
      free = tops[n] + boxes[n].height + 10;
    }
    if (fixed > 0) {
      // From the top down as without it, then up as far as they are in its way.
      free = 0;
      for (let n = 0; n < fixed; n += 1) { tops[n] = Math.max(free, wish(boxes[n])); free = tops[n] + boxes[n].height + 10; }
      let below = tops[fixed];
      for (let n = fixed - 1; n >= 0; n -= 1) { tops[n] = Math.min(tops[n], below - boxes[n].height - 10); below = tops[n]; }
      const over = Math.min(0, ...tops);
      if (over < 0) {
        free = 0;
        for (let n = 0; n < boxes.length; n += 1) { tops[n] = Math.max(free, wish(boxes[n])); free = tops[n] + boxes[n].height + 10; }
      }
    }
    boxes.forEach((box, n) => { box.element.style.top = `${tops[n]}px`; });
    const last = boxes.length - 1;
    this.margin.style.height = last < 0 ? "" : `${tops[last] + boxes[last].height}px`;
  }

  choose(id, { scroll = false } = {}) {
    const note = this.notes.find((each) => each.id === id);
    if (!note) return;
    this.close();
    this.now = id;
    this.line = note.line;
    this.mark();
    this.arrange();
    if (scroll) this.lines[Math.min(note.line, this.lines.length) - 1].scrollIntoView({ block: "start" });
  }

  step(by) {
    if (!this.notes.length) return;
    const here = this.notes.findIndex((note) => note.id === this.now);
    const next = here < 0 && by < 0 ? this.notes.length - 1 : Math.min(Math.max(here + by, 0), this.notes.length - 1);
    this.choose(this.notes[next].id, { scroll: true });
  }

  key(event) {
    const button = event.target.closest(".line button");
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (!button || !step) return;
    event.preventDefault();
    this.line = Math.min(Math.max(Number(button.dataset.line) + step, 1), this.lines.length);
    this.now = this.notes.find((note) => note.line === this.line)?.id ?? null;
    this.mark();
    this.arrange();
    this.lines[this.line - 1].firstChild.focus();
  }

  write(line) {
    this.close();
    this.line = line;
    this.now = null;
    this.open(noteForm({ title: `Line ${line}`, done: "Save", leave: () => this.close() }, async ({ text, tags }) => {
      const found = await request("/api/annotations", { method: "POST", body: { page: this.name, line, text, tags, user: user() } });
      this.notes.push(found);
      this.written(found, "Saved");
    }));
  }

  edit(note) {
    this.close();
    this.line = note.line;
    this.now = null;
    this.cards.get(note.id).hidden = true;
    this.open(noteForm({ title: `Line ${note.line}`, done: "Save", note, leave: () => this.choose(note.id) }, async ({ text, tags }) => {
      const found = await request(`/api/annotations/${note.id}`, { method: "PUT", body: { text, tags, version: note.version } });
      Object.assign(note, found);
      this.written(found, "Changed");
    }));
  }

  written(found, what) {
    this.close();
    this.now = found.id;
    this.draw();
    saved(what, found);
    loadPages().catch(failed);
    drawStatus();
  }

  async remove(note) {
    try {
      const found = await request(`/api/annotations/${note.id}`, { method: "DELETE" });
      this.notes = this.notes.filter((each) => each !== note);
      this.now = null;
      this.draw();
      toast("Deleted. Searches no longer show it.", {
        act: "Undo",
        on: async () => {
          try {
            const back = await request(`/api/annotations/${note.id}/restore`, { method: "POST" });
            this.notes.push(back);
            this.written(back, "Restored");
          } catch (error) { failed(error); }
        },
      });
      loadPages().catch(failed);
      drawStatus();
    } catch (error) { failed(error); }
  }

  open(form) {
    this.form = form;
    this.margin.querySelector(".empty")?.remove();
    this.margin.append(form);
    this.mark();
    this.arrange();
    form.querySelector("textarea").focus({ preventScroll: true });
    form.scrollIntoView({ block: "nearest" });
  }

  close() {
    this.form?.remove();
    this.form = null;
    for (const element of this.cards.values()) element.hidden = false;
    this.arrange();
  }
}

function card(note, acts) {
  const element = h("article", { className: "note", "data-id": note.id },
    h("p", { className: "by" }, h("b", {}, note.user), h("span", {}, note.group === "all" ? "" : note.group), h("span", { className: "where" }, `line ${note.line}`)),
    h("p", { className: "what" }, note.text),
    tagsOf(note),
    h("div", { className: "acts" },
      h("button", { type: "button", className: "bare", "data-act": "edit", onclick: acts.edit }, "Edit"),
      h("button", { type: "button", className: "bare", "data-act": "delete", onclick: acts.remove }, "Delete")));
  element.addEventListener("click", (event) => { if (!event.target.closest("button")) acts.choose(); });
  return element;
}

const tagsOf = (note) => note.tags.length ? h("ul", { className: "tags" }, note.tags.map((tag) => h("li", {}, tag))) : null;

function noteForm({ title, done, note, leave }, send) {
  const text = h("textarea", { required: true, maxLength: 20000, value: note?.text ?? "", placeholder: "Write about this line", "aria-label": "Annotation" });
  const tags = h("input", { value: note?.tags.join(", ") ?? "", placeholder: "Tags, separated by commas", "aria-label": "Tags" });
  const button = h("button", { type: "submit" }, done);
  const form = h("form", { className: "note now form" }, h("p", { className: "by" }, h("b", {}, user()), h("span", { className: "where" }, title)),
    text, h("div", { className: "row" }, tags, h("button", { type: "button", className: "quiet", onclick: leave }, "Cancel"), button));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!text.value.trim()) return;
    button.disabled = true;
    try {
      await send({ text: text.value.trim(), tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean) });
    } catch (error) { failed(error); button.disabled = false; }
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); leave(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return form;
}

const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// --- searching ---

$("#search").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = $("#words").value.trim();
  const there = words ? link("search", words) : "#/";
  clearTimeout(typing);
  $("#words").blur();
  if (location.hash === there) show();
  else location.hash = there;
});

// Search while a person types: after a short pause, one search at a time.
let typing, flying = Promise.resolve();
$("#words").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const words = $("#words").value.trim();
    if (words.length < 2) return;
    const there = link("search", words);
    if (location.hash === there) return;
    // One entry in the history for all that is typed.
    if (place().view === "search") history.replaceState(null, "", there);
    else history.pushState(null, "", there);
    flying = flying.then(() => location.hash === there && show());
  }, 250);
});

async function showResults(words, mine) {
  let results;
  try {
    ({ results } = await request(`/api/search?q=${encodeURIComponent(words)}`));
  } catch (error) {
    if (mine !== turn) return;
    if (error.status !== 503) throw error;
    draw(`${words} – Annotations`, h("div", { className: "alarm", role: "alert" },
      h("p", {}, h("b", {}, "Search is unavailable: "), `${error.message}. `),
      h("p", {}, "You can still read and write. Searches find new annotations as soon as the index answers.")));
    return;
  }
  if (mine !== turn) return;
  if (!results.length) {
    draw(`${words} – Annotations`, h("div", { className: "blank" }, h("h1", {}, "Nothing found"),
      h("p", {}, "No annotation contains “", h("b", {}, words), "”. Try fewer words, or “or” between them.")));
    return;
  }
  draw(`${words} – Annotations`,
    h("h1", {}, words), h("p", { className: "lead" }, results.length < 50 ? count(results.length, "annotation") : "The best 50 annotations"),
    h("div", { className: "results" }, results.map((note) => h("article", { className: "note" },
      h("p", { className: "by" }, h("a", { href: link("page", note.page, note.id) }, note.page), h("span", {}, note.user),
        h("span", { className: "where" }, `line ${note.line}`)),
      h("p", { className: "what" }, excerpt(note.excerpt)), tagsOf(note)))));
}

// The words found come between two characters that no text has.
function excerpt(text) {
  return text.replace(/\s+/g, " ").split(/(\x02[^\x03]*\x03)/).map((part) => part.startsWith("\x02") ? h("mark", {}, part.slice(1, -1)) : part);
}

// --- the search index ---

let state = { waiting: 0, index: "up" };

function drawStatus() {
  clearTimeout(drawStatus.timer);
  request("/api/status").then((found) => { state = found; }, () => { state = { waiting: 0, index: "gone" }; }).then(() => {
    const [look, said] = stateSaid();
    $("#status .dot").className = `dot ${look}`;
    $("#status .said").textContent = said;
    $("#status").setAttribute("aria-label", `Search index: ${said}`);
    drawOverview();
    drawStatus.timer = setTimeout(drawStatus, $("#overview") ? 1000 : 5000);
  });
}

function stateSaid() {
  if (state.index === "gone") return ["bad", "service does not answer"];
  const jobs = `${count(state.waiting, "job")} waiting`;
  if (state.index === "down") return ["bad", state.waiting ? `search is down, ${jobs}` : "search is down"];
  return state.waiting ? ["wait", jobs] : ["good", "search is up to date"];
}

$("#status").addEventListener("click", () => { location.hash = "#/index"; });

async function drawOverview() {
  const root = $("#overview");
  if (!root || drawOverview.isRunning) return;
  drawOverview.isRunning = true;
  try {
    const found = await request("/api/operations");
    const look = { up: "good", down: "bad" }[state.index] ?? "bad";
    root.querySelector("#meter").replaceChildren(
      row("Search index", h("span", { className: `dot ${look}` }), state.index === "up" ? "answers" : "does not answer"),
      row("Backlog", found.waiting + found.running ? `${count(found.waiting, "job")} waiting, ${found.running.toLocaleString("en")} running` : "no jobs waiting"),
      ...(found.oldest_seconds > 0 ? [row("Oldest due job", `${duration(found.oldest_seconds)} late`)] : []),
      ...found.alerts.map((alert) => row("Alert", h("b", { className: "bad" }, alert.problem))));
    drawFailures(root.querySelector("#failures"), found);
    drawComparison(root.querySelector("#comparison"), found);
  } catch (error) {
    root.querySelector("#meter")?.replaceChildren(row("Service", error.message));
  } finally { drawOverview.isRunning = false; }
}

const row = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));

function duration(seconds) {
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]].find(([least]) => seconds >= least) ?? [1, "second"];
  return count(Math.floor(seconds / size), unit);
}

const ago = (time) => { const seconds = (Date.now() - new Date(time)) / 1000; return seconds < 2 ? "just now" : `${duration(seconds)} ago`; };

function drawFailures(root, { failures, failing, dead }) {
  // With the numbers: they are read after the list, so a job may leave it first.
  const signature = JSON.stringify([failures, failing, dead]);
  if (root.dataset.shown === signature) return; // A button keeps its focus.
  root.dataset.shown = signature;
  const all = failing + dead;
  root.replaceChildren(
    h("p", {}, all ? `${count(failing, "failing job")} will be retried, ${dead.toLocaleString("en")} dead.` : "No failures."),
    ...failures.map((each) => h("div", { className: "failure" },
      h("p", {}, each.page ? h("a", { href: link("page", each.page, each.id) }, `${each.page}, line ${each.line}`) : `annotation ${each.id}`,
        h("span", {}, ` · ${each.is_dead ? "dead" : "retrying"} after ${count(each.attempts, "attempt")}`)),
      h("p", { className: "why" }, each.error),
      h("button", { type: "button", className: "quiet", onclick: (event) => retry(each, event.target) }, "Retry now"))),
    failures.length && failures.length < all ? h("p", {}, `${all - failures.length} more: forebay mirror status annotations.app:app annotations`) : "");
}

async function retry(failure, button) {
  button.disabled = true;
  try {
    await request(`/api/jobs/${failure.job}/retry`, { method: "POST", body: {} });
    toast("Retried.");
    drawStatus();
  } catch (error) { failed(error); button.disabled = false; }
}

const DRIFT = [["missing", "missing"], ["stale", "outdated"], ["orphaned", "deleted here, but in the index"], ["ahead", "newer in the index"]];

function drawComparison(root, { comparison, comparing, problem }) {
  const wrong = comparison ? DRIFT.filter(([name]) => comparison[name]) : [];
  root.replaceChildren(
    comparing ? h("p", {}, "Comparing …") : problem ? h("p", { className: "bad" }, problem) :
      !comparison ? h("p", {}, "Never compared.") :
        h("p", {}, `Compared ${ago(comparison.ended_at)}: ${wrong.length ? "" : `no differences in ${count(comparison.items, "annotation")}.`}`,
          wrong.map(([name, said], n) => [n ? ", " : "", h("b", {}, comparison[name].toLocaleString("en")), ` ${said}`]),
          wrong.length ? `. ${count(comparison.repaired, "job")} enqueued to repair them.` : ""));
}

async function compare(repair) {
  try {
    await request("/api/compare", { method: "POST", body: { repair } });
    drawStatus();
  } catch (error) { failed(error); }
}

const CHOICES = {
  page: { title: "Page", fields: [["page", "Name of the page", "asyncio.tasks"]] },
  user: { title: "User", fields: [["user", "Name of the user", "stdlib"]] },
  group: { title: "Group", fields: [["group", "Name of the group", "asyncio"]] },
  time: { title: "Time", fields: [["since", "Changed from", "", "datetime-local"], ["until", "up to", "", "datetime-local"]] },
  ids: { title: "Ids", fields: [["ids", "One on each line", "", "ids"]] },
};

async function showIndex(mine) {
  if (mine !== turn) return;
  const fields = h("div", {});
  const told = h("span", { className: "said-of", role: "status" });
  const choose = (which) => {
    told.textContent = "";
    fields.className = which === "time" ? "pair" : "";
    fields.replaceChildren(...CHOICES[which].fields.map(([name, title, example, type]) => h("label", { className: "field" }, title,
      type === "ids" ? h("textarea", { name, required: true, spellcheck: false }) :
        h("input", { name, required: type !== "datetime-local", type: type ?? "text", step: 1, placeholder: example, spellcheck: false }))));
  };
  const wanted = () => {
    const data = new FormData(form);
    const body = { force: data.has("force") };
    if (data.get("by") === "ids") body.ids = data.get("ids").split(/[\s,]+/).filter(Boolean).map(Number);
    else if (data.get("by") === "time") {
      for (const name of ["since", "until"]) if (data.get(name)) body[name] = new Date(data.get(name)).toISOString();
    } else body[data.get("by")] = data.get(data.get("by")).trim();
    return body;
  };
  const send = async (dry) => {
    if (!form.reportValidity()) return;
    try {
      const found = await request("/api/reindex", { method: "POST", body: { ...wanted(), dry_run: dry } });
      told.textContent = dry ? `Dry run: ${count(found.count, "annotation")}.` : `${count(found.jobs, "job")} enqueued.`;
      if (!dry) drawStatus();
    } catch (error) { told.textContent = error.message; }
  };
  const form = h("form", { className: "panel", id: "reindex" },
    h("h2", {}, "Reindex"),
    h("p", {}, "Compare annotations with the index, and write those that are missing or outdated."),
    h("fieldset", {}, h("legend", { className: "hidden" }, "Which annotations"),
      h("div", { className: "choices" }, Object.entries(CHOICES).map(([name, { title }]) => h("label", {},
        h("input", { type: "radio", name: "by", value: name, checked: name === "page", onchange: () => choose(name) }), title))),
      fields),
    h("label", { className: "check" }, h("input", { type: "checkbox", name: "force" }), h("div", {}, "Overwrite unchanged")),
    h("button", { type: "submit" }, "Reindex"), " ",
    h("button", { type: "button", className: "quiet", id: "count", onclick: () => send(true) }, "Dry run"), told);
  form.addEventListener("submit", (event) => { event.preventDefault(); send(false); });
  choose("page");
  const panel = (title, ...content) => h("section", { className: "panel" }, h("h2", {}, title), ...content);
  draw("Search index – Annotations", h("h1", {}, "Search index"),
    h("p", { className: "lead" }, "Each change enqueues a job. The job ends when a read of the index shows the change."),
    h("div", { className: "panels" },
      h("div", { id: "overview" },
        panel("Status", h("dl", { id: "meter", role: "status" }, "…")),
        panel("Failures", h("div", { id: "failures" }, "…")),
        panel("Differences", h("p", {}, "Compare the index with all annotations. Changes whose jobs still wait count as differences."),
          h("div", { id: "comparison", role: "status" }, "…"),
          h("button", { type: "button", id: "compare", onclick: () => compare(false) }, "Compare"), " ",
          h("button", { type: "button", id: "repair", className: "quiet", onclick: () => compare(true) }, "Compare and repair"))),
      form));
  drawStatus();
}

// --- keys ---

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input, textarea")) { event.target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const shown = place().view === "page" ? sheet : null;
  const acts = {
    "/": () => { $("#words").focus(); $("#words").select(); },
    a: () => shown?.write(shown.line),
    j: () => shown?.step(1),
    k: () => shown?.step(-1),
  };
  if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
});

addEventListener("hashchange", () => { show(); });
await loadPages().catch(failed);
await show();
drawStatus();
