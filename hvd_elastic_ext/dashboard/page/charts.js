"use strict";
/* The charts, drawn by BokehJS, which is loaded when the first one is wanted. A text of a job becomes a node of text. */

const charts = (() => {
  const views = [];
  const dark = matchMedia("(prefers-color-scheme: dark)"), touched = matchMedia("(pointer: coarse)");
  /* Another chart: its curve in content/ (model.py gives it to the page), a row here with its columns, and the colour
     --NAME in page.css. */
  const PANELS = [
    { name: "world", title: "World size", unit: () => "ranks", columns: sizes, none: "no world yet", area: true },
    { name: "rate", title: "Throughput", unit: (content) => content.unit, columns: rates, none: "no steps in the journal", area: true },
    { name: "loss", title: "Loss", unit: () => "", columns: losses, none: "no loss in the journal", area: false },
  ];
  const MOST_PATCHED = 8, APART_S = 0.02; // times are rounded to 0.01 s
  const TIMES = { milliseconds: "%H:%M:%S.%3N", seconds: "%H:%M:%S", minsec: "%H:%M:%S", minutes: "%H:%M", hourmin: "%H:%M", hours: "%H:%M", days: "%b %d", months: "%b %Y", years: "%Y" };
  let loading = null;

  /* --- the library */

  function library() {
    const parts = [...document.querySelectorAll("script.library")];
    loading ??= parts.reduce((before, each) => before.then(() => run(each)), Promise.resolve()).catch((error) => {
      loading = null;
      throw error;
    });
    return loading;
  }

  function run(part) {
    const script = document.createElement("script");
    if (!part.dataset.src && !part.textContent) throw new Error("this file was written where Bokeh was not installed: pip install bokeh, and write it again");
    if (!part.dataset.src) {
      script.textContent = part.textContent;
      document.head.append(script);
      return null;
    }
    return new Promise((done, failed) => {
      script.onload = done;
      script.onerror = () => failed(new Error("the server did not send them"));
      script.src = part.dataset.src;
      document.head.append(script);
    });
  }

  /* What `build` makes of a holder once the library is there, made anew for other colours. The newest update counts. */
  function drawn(holder, build) {
    let made = null, newest = null, begun = false, gone = false;
    const draw = async () => {
      begun = true;
      try {
        await library();
        if (gone) return;
        holder.replaceChildren();
        made = await build(holder, newest[0]);
        if (gone) made.remove();
        else made.update(...newest);
      } catch (error) {
        begun = false;
        holder.replaceChildren(el("p", { class: "note", text: `The charts cannot be drawn: ${error.message}` }));
      }
    };
    const again = () => {
      if (!made) return;
      made.remove();
      made = null;
      draw();
    };
    dark.addEventListener("change", again);
    return {
      update(...args) {
        newest = args;
        if (made) made.update(...args);
        else if (!begun) draw();
      },
      remove() {
        gone = true;
        dark.removeEventListener("change", again);
        if (made) made.remove();
      },
    };
  }

  async function show(figures, holder) {
    const made = (await Bokeh.Plotting.show(figures, holder)).filter((view) => figures.includes(view.model)); // and none of Bokeh's own
    views.push(...made);
    for (const view of made) {
      view.el.setAttribute("role", "img");
      view.canvas_view.events_el.tabIndex = -1; // the list beside it has all that can be clicked
    }
    return {
      says: (name, text) => made.find((view) => view.model.name === name).el.setAttribute("aria-label", text),
      remove() {
        for (const view of made) views.splice(views.indexOf(view), 1);
        made[0].model.document.clear();
        holder.replaceChildren();
      },
    };
  }

  /* --- times */

  /* Where a time of the run lies on the axis. Bokeh's axes tell UTC, so that times are shifted to those on the wall here. */
  function clock(content) {
    const known = content.wall.length ? content.wall : [[0, 0]];
    const shift = -60 * new Date(1000 * known[0][1]).getTimezoneOffset(), parts = [];
    let end = -Infinity;
    known.forEach(([from, t], at) => {
      const begin = Math.max(t, end); // a clock that was set back goes on where the one before has ended
      parts.push([from, begin]);
      end = begin + (at + 1 < known.length ? known[at + 1][0] - from : 0);
    });
    const x = (at) => {
      let found = parts[0];
      for (const part of parts) if (part[0] <= at) found = part;
      return 1000 * (found[1] + shift + at - found[0]);
    };
    return { x, t: (place) => place / 1000 - shift, whole: [x(0), x(Math.max(content.duration_s, 1))] };
  }

  /* --- what lines are made of: a place without a value is a gap */

  function sizes(content, x) {
    const points = content.world.flatMap(([at, size], place) => [[at, size], [place + 1 < content.world.length ? content.world[place + 1][0] : content.duration_s, size]]);
    return columns(points, x);
  }
  function rates(content, x) {
    const points = [];
    let end = null;
    for (const [at, width, value] of content.rate) {
      if (end !== null && at > end + APART_S) points.push([end, NaN], [at, NaN]);
      points.push([at, value], [at + width, value]);
      end = at + width;
    }
    return columns(points, x);
  }
  function losses(content, x) { return columns(content.loss.map(([at, value]) => [at, value === null ? NaN : value]), x); }
  function columns(points, x) { return { x: points.map(([at]) => x(at)), y: points.map(([, value]) => value), top: points.map(([, value]) => value || 0), low: points.map(() => 0) }; }

  function marks(content, x, chosen) {
    const rows = content.rows.filter((row) => row.event !== "sealed");
    return {
      x: rows.map((row) => x(row.at)), id: rows.map((row) => row.id),
      color: rows.map((row) => colour(row.kind)),
      width: rows.map((row) => (row.id === chosen ? 3 : 1.2)), alpha: rows.map((row) => (row.id === chosen ? 1 : 0.7)),
      dash: rows.map((row) => (row.id === chosen ? "solid" : "dashed")),
    };
  }
  /* Checkpoints in a row are one row of the list: each mark leads to the row that tells of it. */
  function seals(content, x, chosen) {
    const rows = content.rows.filter((row) => row.event === "sealed");
    const found = content.sealed.map(([at, step]) => ({ at, step, row: rows.find((row) => row.at >= at) })).filter((each) => each.row);
    return {
      x: found.map((each) => x(each.at)), y: found.map(() => 0.08), step: found.map((each) => each.step), id: found.map((each) => each.row.id),
      size: found.map((each) => (each.row.id === chosen ? 13 : 8)),
    };
  }

  /* Brings a source to new columns: what has come is added, a changed end is patched, anything else is put in its place. */
  function put(source, columns) {
    const old = source.data, names = Object.keys(columns), before = old.x ? old.x.length : 0, after = columns.x.length;
    let same = 0;
    while (same < before && same < after && names.every((name) => Object.is(old[name][same], columns[name][same]))) same += 1;
    if (same === before && same === after) return;
    if (!before || after < before || before - same > MOST_PATCHED) {
      source.data = columns;
      return;
    }
    if (same < before) source.patch(new Map(names.map((name) => [name, columns[name].slice(same, before).map((value, at) => [same + at, value])])));
    if (before < after) source.stream(Object.fromEntries(names.map((name) => [name, columns[name].slice(before)])));
  }

  /* --- figures */

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

  function figure(attributes) {
    const made = Bokeh.Plotting.figure({
      tools: [], toolbar_location: null, sizing_mode: "stretch_width", min_border_left: 58, min_border_right: 10, min_border_top: 0,
      background_fill_color: colour("ground"), border_fill_color: colour("ground"), outline_line_color: colour("line"), ...attributes,
    });
    for (const axis of made.axes) {
      axis.setv({
        major_label_text_color: colour("soft"), axis_label_text_color: colour("soft"), axis_line_color: colour("soft"),
        major_tick_line_color: colour("soft"), minor_tick_line_color: null, major_label_text_font_size: "11px", axis_label_text_font_size: "12px", axis_label_text_font_style: "normal",
      });
    }
    for (const grid of made.grids) grid.grid_line_color = colour("line");
    made.title.setv({ text_color: colour("soft"), text_font_size: "13px", text_font_style: "normal" });
    return made;
  }

  /* Ranks come in whole numbers. */
  function inWholes(axis, grid) { axis.ticker = grid.ticker = new Bokeh.Models.BasicTicker({ min_interval: 1 }); }

  function add(made, glyph, attributes, source, name, more) {
    return made.add_glyph(new Bokeh.Models[glyph](attributes), source, { name, ...more });
  }

  /* A tooltip whose texts are never read as markup. `lines` gets the row's index and Bokeh's variables. */
  function hover(renderers, lines, more) {
    const tooltips = (source, vars) => {
      const box = el("div");
      box.style.maxWidth = "18rem";
      box.style.overflowWrap = "anywhere";
      for (const text of lines(source.data, vars)) box.append(el("div", { text }));
      return box;
    };
    return new Bokeh.Models.HoverTool({ renderers, tooltips, ...more });
  }

  function ranged(made) {
    const { BoxZoomTool, PanTool, WheelZoomTool } = Bokeh.Models;
    const box = new BoxZoomTool({ dimensions: "width" }), pan = new PanTool({ dimensions: "width" }), wheel = new WheelZoomTool({ dimensions: "width", modifiers: { ctrl: true } });
    made.add_tools(box, pan, wheel);
    made.toolbar.active_scroll = wheel;
    // A finger that moves up or down scrolls the page: two fingers zoom.
    const drag = (moves) => { made.toolbar.active_drag = touched.matches ? null : moves ? pan : box; };
    drag(false);
    return drag;
  }

  /* --- the timeline */

  /* `choose` gets the number of a row whose mark was clicked, `zoomed` the part that the user has zoomed to. */
  function timeline(holder, { choose, zoomed }) {
    return drawn(holder, async (inside, content) => {
      const { ColumnDataSource, Range1d } = Bokeh.Models;
      const [start, end] = clock(content).whole;
      const range = new Range1d({ start, end, min_interval: 1000 }), events = new ColumnDataSource(), sealed = new ColumnDataSource();
      const now = { content, clock: clock(content) };
      const panels = PANELS.map((panel) => chart(panel, range, { events, sealed, now, choose }));
      const page = await show(panels.map((panel) => panel.figure), inside);
      let own = false;
      range.on_change([range.properties.start, range.properties.end], () => { if (!own) zoomed([range.start, range.end]); });
      return {
        remove: page.remove,
        update(content, chosen, zoom, moves) {
          Object.assign(now, { content, clock: clock(content) });
          const { x, whole } = now.clock, [from, to] = zoom || whole;
          for (const panel of panels) page.says(panel.figure.name, panel.update(content, x, moves));
          put(events, marks(content, x, chosen));
          put(sealed, seals(content, x, chosen));
          own = true;
          range.setv({ bounds: whole, reset_start: whole[0], reset_end: whole[1] });
          if (range.start !== from || range.end !== to) range.setv({ start: from, end: to });
          own = false;
        },
      };
    });
  }

  function chart(panel, x_range, { events, sealed, now, choose }) {
    const { ColumnDataSource, DataRange1d, TapTool } = Bokeh.Models;
    const source = new ColumnDataSource({ data: { x: [], y: [], top: [], low: [] } }), y_range = new DataRange1d({ start: 0 });
    const last = panel.name === "loss", extra_y_ranges = { share: new Bokeh.Models.Range1d({ start: 0, end: 1 }) };
    const made = figure({ name: panel.name, title: panel.title, x_range, y_range, extra_y_ranges, x_axis_type: "datetime", height: last ? 180 : 160, window_axis: "x" });
    made.xaxes[0].formatter = new Bokeh.Models.DatetimeTickFormatter(TIMES);
    if (!last) made.xaxes[0].major_label_text_font_size = "0px";
    if (panel.name === "world") inWholes(made.yaxes[0], made.ygrids[0]);
    if (panel.area) add(made, "VArea", { x: { field: "x" }, y1: { field: "low" }, y2: { field: "top" }, fill_color: colour(panel.name), fill_alpha: 0.15 }, source, "area");
    const line = add(made, "Line", { x: { field: "x" }, y: { field: "y" }, line_color: colour(panel.name), line_width: 1.8 }, source, "line");
    const mark = { x: { field: "x" }, line_color: { field: "color" }, line_width: { field: "width" }, line_alpha: { field: "alpha" }, line_dash: { field: "dash" } };
    add(made, "VSpan", mark, events, "events");
    const near = add(made, "VSpan", { x: { field: "x" }, line_alpha: 0, line_width: touched.matches ? 16 : 5 }, events, "near");
    const checkpoints = add(made, "Scatter", { x: { field: "x" }, y: { field: "y" }, size: { field: "size" }, marker: "triangle", fill_color: colour("accent"), line_color: colour("ground") }, sealed, "sealed", { y_range_name: "share" });
    y_range.renderers = [line];
    const drag = ranged(made);
    const when = (place) => time(now.clock.t(place));
    const row = (id) => now.content.rows.find((each) => each.id === id);
    made.add_tools(
      hover([line], (_, vars) => [`${panel.title}: ${num(vars.snap_y)} ${panel.unit(now.content)}`, when(vars.snap_x)], { mode: "vline", attachment: "horizontal" }),
      hover([near], (data, { index }) => eventLines(row(data.id[index]), when(data.x[index])), { attachment: "vertical", limit: 3 }),
      hover([checkpoints], (data, { index }) => [`checkpoint${data.step[index] === null ? "" : ` of step ${whole(data.step[index])}`}`, when(data.x[index])], { attachment: "vertical", limit: 3 }),
      new TapTool({ behavior: "inspect", renderers: [near, checkpoints], callback: (_, { geometries, source: hit }) => chosenBy(hit, geometries.x, choose) }));
    const update = (content, x, moves) => {
      drag(moves);
      const columns = panel.columns(content, x), values = columns.y.filter((value) => !Number.isNaN(value)), unit = panel.unit(content);
      const least = Math.min(0, ...values);
      if (y_range.start !== (least < 0 ? null : 0)) y_range.start = least < 0 ? null : 0;
      put(source, columns);
      const text = values.length ? `from ${num(Math.min(...values))} to ${num(Math.max(...values))}, last ${num(values[values.length - 1])} ${unit}` : panel.none;
      made.title.text = values.length ? `${panel.title}${unit ? ` (${unit})` : ""}` : `${panel.title}: ${panel.none}`;
      return `${panel.title} over time: ${text.trim()}; ${plural(content.rows.length, "event")}, which the list below has`;
    };
    return { figure: made, update };
  }

  function eventLines(row, when) {
    return row ? [`${row.event} ${row.hosts.join(" ")}${row.more ? ` and ${row.more} more` : ""}`, row.text, when, "click: cause, cost and output"].filter(Boolean) : [];
  }

  function chosenBy(source, x, choose) {
    const { indices } = source.inspected, far = (index) => Math.abs(source.data.x[index] - x);
    const nearest = [...indices].sort((one, other) => far(one) - far(other))[0];
    if (nearest !== undefined) choose(source.data.id[nearest]);
  }

  /* --- autoscaling */

  function curve(holder) {
    return drawn(holder, async (inside, content) => {
      const { ColumnDataSource, DataRange1d } = Bokeh.Models, source = new ColumnDataSource({ data: { x: [], y: [] } }), best = new ColumnDataSource({ data: { x: [], y: [] } });
      const made = figure({ name: "curve", x_axis_label: "hosts (dashed: each adds as much as at best)", y_axis_label: content.unit, height: 250, x_range: new DataRange1d({ start: 0 }), y_range: new DataRange1d({ start: 0 }) });
      made.title.visible = false;
      inWholes(made.xaxes[0], made.xgrids[0]);
      add(made, "Line", { x: { field: "x" }, y: { field: "y" }, line_color: colour("soft"), line_dash: "dashed" }, best, "best");
      add(made, "Line", { x: { field: "x" }, y: { field: "y" }, line_color: colour("rate"), line_width: 1.8 }, source, "line");
      const points = add(made, "Scatter", { x: { field: "x" }, y: { field: "y" }, size: 9, fill_color: colour("rate"), line_color: colour("rate") }, source, "sizes");
      let unit = content.unit;
      made.add_tools(hover([points], (data, { index }) => [plural(data.x[index], "host"), `${num(data.y[index])} ${unit}`, `${num(data.y[index] / data.x[index], 3)} a host`]));
      const page = await show([made], inside);
      return {
        remove: page.remove,
        update(content) {
          ({ unit } = content);
          made.yaxes[0].axis_label = unit;
          const sizes = content.curve.map(([size]) => size), speeds = content.curve.map(([, speed]) => speed);
          const most = Math.max(...sizes), high = Math.max(...speeds), share = Math.max(...content.curve.map(([size, speed]) => speed / size));
          const reach = Math.min(most, high / share);
          put(source, { x: sizes, y: speeds });
          put(best, { x: [0, reach], y: [0, reach * share] });
          page.says("curve", `Throughput by number of hosts, from ${num(Math.min(...speeds))} to ${num(high)} ${unit}; the table below has the numbers`);
        },
      };
    });
  }

  return { clock, curve, timeline, views };
})();
