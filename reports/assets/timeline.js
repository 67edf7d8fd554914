"use strict";
// One axis of time over everything: uPlot for numbers, HTML for states. Data: reports/timeline.py.
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const root = document.getElementById("timeline");
  const drawer = document.getElementById("drawer");
  const BRIDGED_S = 0.5;  // a line is drawn across empty bins if they are shorter than this
  let [from, to] = [0, Math.max(data.end, 0.001)];
  const whole = to;

  // --- small helpers ------------------------------------------------------------------------------------------
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const at = (t) => ((t - from) / (to - from)) * 100;
  const clock = (t) => new Date(data.began_ms + t * 1000).toISOString().slice(11, 23);
  const css = (name) => getComputedStyle(root.querySelector(".probe-" + name) || root).color;
  const LINES = ["b1", "b2", "b3", "b4", "b5", "b6"];
  for (const name of [...LINES, "dim", "rule", "invalid", "amber"]) {
    const probe = make("i", "probe-" + name);
    probe.style.cssText = `color:var(--${name});display:none`;
    root.append(probe);
  }

  // --- layers -------------------------------------------------------------------------------------------------
  const under = make("div", "area under"), over = make("div", "area over"), axis = make("div", "axis");
  const axisArea = make("div", "area");
  axis.append(axisArea);
  root.append(under, axis);
  const shades = data.faults.map(([start, end, look]) => {
    const shade = make("div", "shade" + (look.includes("unproven") ? " unproven" : ""));
    under.append(shade);
    return [shade, start, end];
  });
  const cursor = make("div", "cursor"), readout = make("b"), select = make("div", "select");
  cursor.append(readout);
  over.append(select, cursor);

  // --- lanes --------------------------------------------------------------------------------------------------
  const placed = [];  // [element, start, end]
  const pinned = [];  // [element, at]
  const row = (name, className, title) => {
    const element = make("div", "row " + (className || ""));
    const label = make("div", "name", name);
    label.title = title || name;
    const track = make("div", "track");
    element.append(label, track);
    return [element, track];
  };
  const addSpan = (track, [start, end, look, text, says], lane) => {
    const span = make(look.startsWith("fault") ? "button" : "div", "span " + look, text);
    span.title = `${lane ? lane + ": " : ""}${says}\n${start.toFixed(2)} to ${end.toFixed(2)} s (${(end - start).toFixed(2)} s)`;
    track.append(span);
    if (!look.startsWith("fault")) span.dataset.letters = text.length;
    placed.push([span, start, end]);
    return span;
  };
  const labels = [];  // of faults, beside them: [element, start, end]
  const stops = [];  // what the keys n and p go through, in order of time: [at, element]
  const addMark = (track, t, look, title, open) => {
    const mark = make("button", "mark " + look);
    mark.title = `${t.toFixed(3)} s  ${title}`;
    mark.setAttribute("aria-label", mark.title);
    mark.addEventListener("click", open);
    if (!look.includes("anomaly")) mark.tabIndex = -1;
    track.append(mark);
    pinned.push([mark, t]);
    return mark;
  };

  const timed = data.anomalies.filter((each) => each[0] !== null);
  if (timed.length) {
    const [element, track] = row("anomalies", "marks");
    for (const [t, by, kind, says, stories] of timed)
      stops.push([t, addMark(track, t, "anomaly", `${kind}: ${says}`, () => openAnomaly(by, kind, says, stories))]);
    root.append(element);
  }
  data.faults.forEach((fault, index) => {
    const [element, track] = row(index ? "" : "faults", "faults");
    const span = addSpan(track, fault);
    span.textContent = "";
    span.setAttribute("aria-label", span.title);
    const label = make("span", "label", fault[3]);
    label.addEventListener("click", () => openFault(fault));
    track.append(label);
    labels.push([label, fault[0], fault[1]]);
    span.addEventListener("click", () => openFault(fault));
    stops.push([fault[0], span]);
    root.append(element);
  });

  // --- charts -------------------------------------------------------------------------------------------------
  const charts = [];
  const gutter = () => parseInt(getComputedStyle(root).getPropertyValue("--gutter"), 10);
  const plotWidth = () => root.clientWidth - 12;
  for (const chart of data.charts) {
    if (!data.x.length) continue;
    const holder = make("div", "chart"), legend = make("div", "legend");
    legend.append(make("b", "", chart.name), make("span", "dim", chart.unit));
    const values = chart.lines.map((line, index) => {
      const item = make("i", "", line.name);
      item.title = line.name;
      item.style.setProperty("--c", `var(--${colour(line.name, index)})`);
      legend.append(item);
      return item;
    });
    holder.append(legend);
    root.append(holder);
    charts.push({ chart, holder, values, plot: null });
  }
  function colour(name, index) {
    return { failed: "invalid", indeterminate: "amber", "ack, longest": "b5", "read, longest": "b3" }[name] || LINES[index % 6];
  }
  function draw() {
    for (const each of charts) {
      if (each.plot) each.plot.destroy();
      const wide = gutter();
      // A logarithmic scale has lines at powers of ten only.
      const powers = (u, splits) => splits.map((v) => (v === 0 || Number.isInteger(Math.round(Math.log10(v) * 1e6) / 1e6) ? v : null));
      const grid = { stroke: css("rule"), width: 1, filter: powers };
      each.plot = new uPlot({
        width: plotWidth(), height: 150, padding: [10, 0, 6, 0], legend: { show: false },
        cursor: { drag: { x: false, y: false }, x: false, y: false, points: { show: true, size: 6 } },
        scales: { x: { time: false, min: from, max: to },
                  y: each.chart.log
                    ? { distr: 3, range: (u, low, high) => [10 ** Math.floor(Math.log10(low || 1)), 10 ** Math.ceil(Math.log10((high || 10) * 1.05))] }
                    // 0 is a value here, and a burst after a pause is a hundred times the usual rate.
                    : { distr: 4, asinh: 30, range: (u, low, high) => [0, Math.max(high || 1, 10) * 1.3] } },
        axes: [{ show: false }, {
          size: wide, stroke: css("dim"), grid, ticks: { show: false }, gap: 6, font: "11px system-ui",
          values: (u, splits) => splits.map((v) => (v === null ? "" : v >= 10000 ? v / 1000 + "k" : String(v))),
          filter: powers,
        }],
        series: [{}, ...each.chart.lines.map((line, index) => ({
          label: line.name, stroke: css(colour(line.name, index)), width: line.name.includes("longest") ? 1 : 1.5,
          points: { show: false }, gaps: (u, series, first, last, gaps) => gaps.filter(([a, b]) => (b - a) / u.bbox.width * (to - from) > BRIDGED_S),
        }))],
      }, [data.x, ...each.chart.lines.map((line) => line.values)], each.holder);
    }
  }

  // --- groups of lanes, then log lines ------------------------------------------------------------------------
  for (const group of data.groups) {
    const box = make("div", "box");
    if (group.name) {
      const head = make("div", "group", group.name);
      const quiet = group.lanes.filter((lane) => lane.quiet).length;
      if (quiet) {
        const loud = group.lanes.length - quiet;
        const words = loud ? `${quiet} more where nothing changed` : `${quiet} where nothing changed`;
        const button = make("button", "", words);
        button.setAttribute("aria-expanded", "false");
        button.addEventListener("click", () => {
          const shown = box.classList.toggle("all");
          button.setAttribute("aria-expanded", String(shown));
          button.textContent = shown ? "fold" : words;
          place();
        });
        head.append(button);
      }
      if (group.key) head.append(make("span", "key", group.key));
      box.append(head);
    }
    for (const lane of group.lanes) {
      const [element, track] = row(lane.name, lane.quiet ? "quiet" : "");
      for (const span of lane.spans) addSpan(track, span, lane.name);
      box.append(element);
    }
    root.append(box);
  }
  const sources = [...new Set(data.marks.map((mark) => mark[1]))];
  sources.sort((a, b) => (a === "jbod") - (b === "jbod") || a.localeCompare(b, undefined, { numeric: true }));
  if (sources.length) root.append(make("div", "group", "log lines that matter"));
  for (const source of sources) {
    const [element, track] = row(source, "marks");
    for (const mark of data.marks.filter((each) => each[1] === source))
      addMark(track, mark[0], mark[2], mark[3], () => openMark(mark));
    root.append(element);
  }
  root.append(over);

  // --- placing ------------------------------------------------------------------------------------------------
  function place() {
    const pixels = (root.clientWidth - gutter() - 12) / 100;
    for (const [element, start, end] of [...placed, ...shades]) {
      const left = Math.max(at(start), 0), right = Math.min(at(end), 101);
      element.style.display = right < 0 || left > 100 ? "none" : "";
      element.style.left = left + "%";
      element.style.width = Math.max(right - left, 0) + "%";
      // A label without room is hidden; the title has it.
      if (element.dataset.letters) element.classList.toggle("narrow", (right - left) * pixels < element.dataset.letters * 6.3 + 9);
    }
    for (const [element, start, end] of labels) {
      const behind = at(end) < 60 || at(start) < 25;
      element.style.display = at(end) < 0 || at(start) > 100 ? "none" : "";
      element.style.left = behind ? Math.max(0, Math.min(at(end), 60)) + "%" : "";
      element.style.right = behind ? "" : 100 - at(start) + "%";
    }
    for (const [element, t] of pinned) {
      const left = at(t);
      element.style.display = left < -0.5 || left > 100.5 ? "none" : "";
      element.style.left = left + "%";
    }
    under.querySelectorAll(".grid").forEach((line) => line.remove());
    axisArea.replaceChildren();
    const step = nice((to - from) / Math.max(3, Math.min(14, (root.clientWidth - gutter()) / 90)));
    const digits = Math.max(0, Math.min(3, -Math.floor(Math.log10(step) + 1e-9)));
    for (let t = Math.ceil(from / step) * step; t <= to + 1e-9; t += step) {
      const line = make("div", "grid"), tick = make("span", "tick", t.toFixed(digits) + " s");
      line.style.left = tick.style.left = at(t) + "%";
      if (at(t) < 2) tick.style.transform = "none";
      if (at(t) > 97) tick.style.transform = "translateX(-100%)";
      under.append(line);
      axisArea.append(tick);
    }
    for (const { plot } of charts) plot.setScale("x", { min: from, max: to });
  }
  function nice(rough) {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough - 1e-12);
  }
  function zoom(a, b) {
    const width = Math.min(Math.max(b - a, 0.02), whole);
    from = Math.min(Math.max(a, 0), whole - width);
    to = from + width;
    place();
  }
  const scale = (factor, centre = (from + to) / 2) => zoom(centre - (centre - from) * factor, centre + (to - centre) * factor);
  const pan = (share) => zoom(from + (to - from) * share, to + (to - from) * share);
  const reset = () => zoom(0, whole);
  const show = (t) => {
    if (t < from || t > to) zoom(t - (to - from) / 2, t + (to - from) / 2);
    moveCursor(t);
  };
  const step = (by) => show(Math.min(Math.max((pointed ?? (from + to) / 2) + by * (to - from), 0), whole));

  // --- pointer ------------------------------------------------------------------------------------------------
  const timeOf = (event) => {
    const box = over.getBoundingClientRect();
    return from + ((event.clientX - box.left) / box.width) * (to - from);
  };
  let pointed = null;  // where the cursor is
  function moveCursor(t) {
    pointed = t;
    cursor.style.display = "block";
    cursor.style.left = at(t) + "%";
    cursor.classList.toggle("left", at(t) > 70);
    readout.textContent = `${t.toFixed(3)} s  ${clock(t)}`;
    const index = Math.round((t - data.x[0]) / data.bin_s);
    for (const { chart, values } of charts)
      chart.lines.forEach((line, n) => {
        const value = line.values[index];
        values[n].textContent = value === undefined || value === null ? line.name : `${Math.round(value * 10) / 10}  ${line.name}`;
      });
  }
  let began = null;
  root.addEventListener("pointermove", (event) => {
    const t = timeOf(event);
    if (t < from || t > to) return;
    moveCursor(t);
    if (began !== null) {
      const [a, b] = [Math.min(began, t), Math.max(began, t)];
      select.style.display = "block";
      select.style.left = at(a) + "%";
      select.style.width = at(b) - at(a) + "%";
    }
  });
  root.addEventListener("pointerdown", (event) => {
    const t = timeOf(event);
    if (event.button === 0 && event.pointerType !== "touch" && t >= from && t <= to && !event.target.closest(".group,button.mark,button.fault")) {
      began = t;
      event.preventDefault();
      root.focus({ preventScroll: true });
    }
  });
  window.addEventListener("pointerup", (event) => {
    if (began === null) return;
    const t = Math.min(Math.max(timeOf(event), from), to);
    select.style.display = "none";
    if (Math.abs(at(t) - at(began)) > 0.5) zoom(Math.min(began, t), Math.max(began, t));
    began = null;
  });
  root.addEventListener("dblclick", (event) => { if (!event.target.closest("button")) reset(); });
  root.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const turn = event.deltaY || event.deltaX;
    if (event.shiftKey && !event.ctrlKey) pan(Math.sign(turn) * 0.1);
    else scale(turn > 0 ? 1.25 : 0.8, timeOf(event));
  }, { passive: false });

  // --- keys ---------------------------------------------------------------------------------------------------
  stops.sort((a, b) => a[0] - b[0]);
  let stop = -1;
  const go = (by) => {
    if (!stops.length) return;
    stop = (stop + by + stops.length) % stops.length;
    const [t, element] = stops[stop];
    show(t);
    element.focus();
  };
  const keys = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => scale(0.6), "=": () => scale(0.6), "-": () => scale(1 / 0.6),
    0: reset, Home: () => zoom(0, to - from), End: () => zoom(whole - (to - from), whole), n: () => go(1), p: () => go(-1),
  };
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    if (event.shiftKey && event.key.startsWith("Arrow")) step(event.key === "ArrowLeft" ? -0.01 : 0.01);
    else keys[event.key]();
  });
  for (const button of document.querySelectorAll("[data-key]"))
    button.addEventListener("click", () => keys[button.dataset.key]());

  // --- the drawer ---------------------------------------------------------------------------------------------
  let opener = null;
  function open(title, ...parts) {
    if (!drawer.contains(document.activeElement)) opener = document.activeElement;
    const close = make("button", "close", "close");
    close.addEventListener("click", shut);
    drawer.replaceChildren(close, make("h2", "", title), ...parts);
    drawer.hidden = false;
    drawer.scrollTop = 0;
    close.focus({ preventScroll: true });
  }
  function shut() {
    drawer.hidden = true;
    if (opener) opener.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !drawer.hidden) shut(); });
  function table(head, rows) {
    const element = make("table"), top = make("tr"), body = make("tbody");
    for (const word of head) top.append(make("th", "", word));
    const thead = make("thead");
    thead.append(top);
    for (const cells of rows) {
      const line = make("tr");
      for (const cell of cells) line.append(make("td", "", String(cell ?? "")));
      body.append(line);
    }
    element.append(thead, body);
    return element;
  }
  function openFault([start, end, look, text, says, cost]) {
    const rows = [["in force", `${start.toFixed(2)} to ${end.toFixed(2)} s, ${(end - start).toFixed(2)} s`]];
    for (const [key, words] of Object.entries(data.costs)) if (typeof cost[key] === "number") rows.push([words, `${cost[key].toFixed(2)} s`]);
    for (const key of ["acked_before", "acked_during", "read_during"]) if (typeof cost[key] === "number") rows.push([key.replace("_", " ") + ", fewest in a partition", cost[key]]);
    show(start);
    open(text, make("p", "", says), table(["", ""], rows));
  }
  function openMark([t, who, look, says, detail]) {
    show(t);
    open(`${who} at ${t.toFixed(3)} s`, make("p", "dim", clock(t) + " UTC"), make("pre", "", detail || says));
  }
  function openAnomaly(by, kind, says, indices) {
    const stories = indices.map((index) => data.stories[index]), name = (story) => `${story.producer} #${story.seq}`;
    if (by !== "the judge") return open(kind, make("pre", "", says));
    if (!stories.length) return open(kind, make("p", "", says), make("p", "dim", "Its story is not stored. To see it, run:"), make("pre", "", document.body.dataset.explain));
    if (stories.length === 1) return open(name(stories[0]), ...storyParts(stories[0]));
    // The stories of several records of a transaction.
    open(`${kind}: ${says}`, ...stories.flatMap((story) => [make("h2", "", name(story)), ...storyParts(story)]));
  }
  function storyParts(story) {
    const parts = [make("p", "verdict invalid", (story.kinds || []).join(", ")), make("p", "", story.summary)];
    parts.push(make("h3", "", "What happened"), table(["at (UTC)", "who", "what"], (story.timeline || []).map((e) => [(e.at || "?").slice(11, 23), e.source, e.says])));
    if (story.replicas) {
      parts.push(make("h3", "", "Where it is now"));
      parts.push(table(["broker", "log dir", "state", "the record", "at its offset instead"], story.replicas.map((r) => [
        r.broker, `${r.log_dir}/${r.folder}`, r.state,
        r.copies.length ? r.copies.map((c) => `at ${c.offset}, epoch ${c.leader_epoch}${c.crc_fits ? "" : ", CRC does not fit"}`).join("; ") : "not there",
        r.instead.map(([offset, whose]) => `${offset}: ${whose}`).join(", ")])));
    }
    return parts;
  }

  // --- the list: everything as text ----------------------------------------------------------------------------
  const list = document.getElementById("happenings"), filter = document.getElementById("filter");
  const entries = [
    ...data.marks.map((m) => ({ at: m[0], who: m[1], look: m[2], says: m[3], open: () => openMark(m) })),
    ...data.groups.flatMap((group) => group.lanes.flatMap((lane) => lane.spans.map(([start, end, , , says]) => ({
      at: start, who: lane.name, look: "state", says: `${says}, until ${end.toFixed(3)} s`, open: () => show(start),
    })))),
    ...data.anomalies.map(([t, by, kind, says, stories]) => ({ at: t, who: by, look: "anomaly", says: `${kind}: ${says}`, open: () => openAnomaly(by, kind, says, stories) })),
  ].sort((a, b) => (a.at ?? Infinity) - (b.at ?? Infinity));
  for (const entry of entries) {
    const line = make("tr", entry.look);
    line.tabIndex = 0;
    line.append(make("td", "mono", entry.at === null ? "–" : entry.at.toFixed(3) + " s"), make("td", "", entry.who), make("td", "", entry.says));
    line.addEventListener("click", entry.open);
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") entry.open(); });
    list.append(line);
    entry.line = line;
  }
  const levels = document.getElementById("levels");
  const sieve = () => {
    const words = filter.value.toLowerCase(), level = levels.value;
    for (const { line, look } of entries)
      line.hidden = !(((level === "all" && look !== "state") || (level === "grave" ? ["error", "warn", "anomaly"].includes(look) : look === level)) && line.textContent.toLowerCase().includes(words));
  };
  sieve();
  filter.addEventListener("input", sieve);
  levels.addEventListener("change", sieve);

  // --- light and dark, width ----------------------------------------------------------------------------------
  const redraw = () => { draw(); place(); };
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  new ResizeObserver(() => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); }).observe(document.documentElement);
  redraw();
  document.documentElement.dataset.drawn = "yes";
})();
