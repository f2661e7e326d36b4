// The board: a table of all rows, to filter and to sort. No library, no request; the rows are in window.segcalBoard.
(() => {
  "use strict";
  const PAGE = 100;
  const place = document.getElementById("board");
  const { studies, columns, rows } = window.segcalBoard;
  const at = Object.fromEntries(columns.map((name, number) => [name, number + 1]));
  const interval = row => (row[at.low] === "" ? "" : `${row[at.low]} to ${row[at.high]}`);
  const FIELDS = [
    { title: "Study", text: row => studies[row[0]].name },
    { title: "Task", text: row => row[at.task] },
    { title: "Method", text: row => row[at.method] },
    { title: "Metric", text: row => row[at.metric] },
    { title: "Value", text: row => row[at.value], number: row => row[at.value] },
    { title: "Interval", text: interval, number: row => row[at.low] },
    { title: "Cases", text: row => row[at.cases], number: row => row[at.cases] },
    { title: "Repeats", text: row => row[at.repeats], number: row => row[at.repeats] },
    { title: "Note", text: row => row[at.note] },
  ];
  const state = { study: studies[0].name, task: "", metric: "", search: "", sort: -1, down: false, shown: PAGE };

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  // A study, or a study with filters: #table4, #table4?task=roads&metric=NLL
  function readAddress() {
    const [name, filters] = decodeURIComponent(location.hash.slice(1)).split("?");
    if (name !== "all" && !studies.some(study => study.name === name)) return false;
    const found = new URLSearchParams(filters || "");
    Object.assign(state, { study: name === "all" ? "" : name, sort: -1, shown: PAGE });
    for (const key of ["task", "metric", "search"]) state[key] = found.get(key) || "";
    return true;
  }
  function writeAddress() {
    const filters = new URLSearchParams();
    for (const key of ["task", "metric", "search"]) if (state[key]) filters.set(key, state[key]);
    const text = filters.toString();
    history.replaceState(null, "", `#${state.study || "all"}${text ? `?${text}` : ""}`);
  }

  const inStudy = row => !state.study || studies[row[0]].name === state.study;
  const matches = (row, words) => words.every(word => FIELDS.some(field => field.text(row).toLowerCase().includes(word)));
  function filtered(but) {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    return rows.filter(row => inStudy(row)
      && (but === "task" || !state.task || row[at.task] === state.task)
      && (but === "metric" || !state.metric || row[at.metric] === state.metric)
      && matches(row, words));
  }
  function sorted(found) {
    if (state.sort < 0) return found;
    const field = FIELDS[state.sort], sign = state.down ? -1 : 1;
    const order = new Intl.Collator(undefined, { numeric: true });
    return [...found].sort((a, b) => {
      if (!field.number) return sign * order.compare(field.text(a), field.text(b));
      const [x, y] = [field.number(a), field.number(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // what has no number comes last, whatever the order
      return sign * (Number(x) - Number(y));
    });
  }

  const choose = (name, label) => {
    const select = element("select", { name, onchange: () => { state[name] = select.value; changed(name); } });
    return [element("label", {}, label, select), select];
  };
  const [studyLabel, study] = choose("study", "Study");
  const [taskLabel, task] = choose("task", "Task");
  const [metricLabel, metric] = choose("metric", "Metric");
  const search = element("input", {
    type: "search", name: "search", placeholder: "conic mean_logits",
    oninput: () => { state.search = search.value; changed("search"); },
  });
  const reset = element("button", {
    type: "button",
    onclick: () => { Object.assign(state, { task: "", metric: "", search: "", sort: -1 }); changed("reset"); },
  }, "Clear filters");
  const status = element("p", { role: "status" });
  const about = element("p", { class: "board-about" });
  const head = element("thead"), body = element("tbody");
  const caption = element("caption");
  const more = element("button", { type: "button", onclick: () => { state.shown += PAGE; draw(); } });
  const scroll = element("div", { class: "board-scroll", tabindex: "0", role: "region", "aria-label": "Rows of the board" },
    element("table", { class: "board-table" }, caption, head, body));

  function fill(select, values, current, all) {
    select.replaceChildren(element("option", { value: "" }, all), ...values.map(([value, text]) => element("option", { value }, text)));
    select.value = current;
  }
  const distinct = (found, key) => [...new Set(found.map(row => row[at[key]]))].filter(Boolean).map(value => [value, value]);

  function changed(name) {
    if (name === "study") Object.assign(state, { task: "", metric: "", sort: -1 });
    state.shown = PAGE;
    writeAddress();
    draw();
  }

  function drawHead(shown) {
    head.replaceChildren(element("tr", {}, ...shown.map(field => {
      const number = FIELDS.indexOf(field), active = state.sort === number;
      const press = () => {
        Object.assign(state, { sort: number, down: active && !state.down, shown: PAGE });
        draw();
        head.querySelector(`[data-field="${number}"]`).focus();
      };
      const arrow = active ? (state.down ? " ▼" : " ▲") : "";
      return element("th", { scope: "col", class: field.number ? "board-number" : "", "aria-sort": active ? (state.down ? "descending" : "ascending") : "none" },
        element("button", { type: "button", "data-field": number, onclick: press }, field.title + arrow));
    })));
  }

  function draw() {
    fill(study, studies.map(one => [one.name, `${one.title} (${one.name})`]), state.study, "All studies");
    fill(task, distinct(filtered("task"), "task"), state.task, "All tasks");
    fill(metric, distinct(filtered("metric"), "metric"), state.metric, "All metrics");
    if (search.value !== state.search) search.value = state.search;
    const found = sorted(filtered());
    const shown = FIELDS.filter((field, number) => (number ? found.some(row => field.text(row) !== "") : !state.study));
    const first = found.slice(0, state.shown);
    drawHead(shown);
    body.replaceChildren(...first.map(row => element("tr", {},
      ...shown.map(field => element("td", field.number ? { class: "board-number" } : {}, field.text(row))))));
    const one = studies.find(each => each.name === state.study);
    caption.textContent = one ? one.title : "All studies";
    about.replaceChildren(...(one ? [`${one.about} ${one.interval === "none" ? "" : `Intervals: ${one.interval}. `}By ${one.code}: `,
      element("code", {}, one.command), " ", element("a", { href: `board/${one.name}.csv`, download: true }, "CSV")] : []));
    const count = found.length.toLocaleString("en"), every = rows.length.toLocaleString("en");
    status.textContent = `${count} of ${every} rows` + (first.length < found.length ? `, the first ${first.length} shown` : "");
    more.textContent = `Show ${Math.min(PAGE, found.length - first.length)} more`;
    more.hidden = first.length >= found.length;
  }

  readAddress();
  place.append(element("form", { class: "board-filters", onsubmit: event => event.preventDefault() },
    studyLabel, taskLabel, metricLabel, element("label", {}, "Search", search), reset), status, about, scroll, more);
  draw();
  place.dataset.ready = "yes";
  const show = () => place.scrollIntoView();
  addEventListener("hashchange", () => { if (readAddress()) { draw(); show(); } });
  if (location.hash.length > 1 && state.study === decodeURIComponent(location.hash.slice(1)).split("?")[0]) addEventListener("load", show);
})();
