// What part of time is seen, and what is picked; every change asks for one frame.
const state = {
  view: { from: 0, to: 1 },
  byMicrobatch: false,
  critical: false,
  causes: true,
  memory: true,
  selected: null, // { table, op } or { table, op: -1, piece }
  pointed: null,
  palette: null,
  ticks: { step: 1, times: [] },
  width: 800,
  scale: 1,
  printing: false,
};
const record = { frames: 0, marks: { rects: 0, scanned: 0, labels: 0 } };
const canvases = [...document.querySelectorAll('.timeline canvas')];
const ruler = document.getElementById('ruler');
const nearby = new Set(canvases);

const ROOM = LAST * 0.015;
const SHORTEST = 10;
const whole = () => ({ from: -ROOM, to: LAST + ROOM });
state.view = whole();

const setView = (from, to) => {
  const all = whole();
  const span = Math.min(Math.max(to - from, SHORTEST), all.to - all.from);
  const middle = (from + to) / 2;
  const start = Math.min(Math.max(middle - span / 2, all.from), all.to - span);
  state.view = { from: start, to: start + span };
  draw();
};
const zoom = (factor, around) => {
  const { from, to } = state.view;
  const at = around === undefined ? (from + to) / 2 : around;
  setView(at - (at - from) / factor, at + (to - at) / factor);
};
const pan = (ns) => setView(state.view.from + ns, state.view.to + ns);
const fit = () => { const all = whole(); setView(all.from, all.to); };
const show = (from, to) => {
  const span = Math.max(to - from, SHORTEST);
  setView(from - span * 0.8, to + span * 0.8);
};
const plotWidth = () => Math.max(1, state.width - GUTTER - MARGIN);
const timeAt = (px) => state.view.from + ((px - GUTTER) / plotWidth()) * (state.view.to - state.view.from);

const chooseTicks = () => {
  const { from, to } = state.view;
  const wanted = ((to - from) / plotWidth()) * 96;
  let step = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
  for (const factor of [1, 2, 5, 10]) { if (step * factor >= wanted) { step *= factor; break; } }
  step = Math.max(1, Math.round(step));
  const times = [];
  for (let n = Math.max(0, Math.ceil(from / step)); n * step <= to; n += 1) times.push(n * step);
  state.ticks = { step, times };
};

// The time axis, and above it where the view lies in the whole.
const OVERVIEW = 12;
const paintRuler = () => {
  const { palette, scale, width } = state;
  const height = 44;
  ruler.width = Math.round(width * scale);
  ruler.height = Math.round(height * scale);
  ruler.style.height = state.printing ? 'auto' : '';
  const context = ruler.getContext('2d', { alpha: false });
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = palette.page;
  context.fillRect(0, 0, width, height);
  const px = plotWidth();
  const all = whole();
  const of = (time) => GUTTER + ((time - all.from) / (all.to - all.from)) * px;
  context.fillStyle = palette.line;
  context.fillRect(GUTTER, 6, px, OVERVIEW - 6);
  context.fillStyle = palette.accent;
  const left = of(state.view.from);
  context.fillRect(left, 6, Math.max(of(state.view.to) - left, 3), OVERVIEW - 6);
  context.font = '12px ' + FONT;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  const perNs = px / (state.view.to - state.view.from);
  for (const time of state.ticks.times) {
    const x = GUTTER + (time - state.view.from) * perNs;
    if (x < GUTTER - 1 || x > width - MARGIN + 1) continue;
    context.fillStyle = palette.muted;
    context.fillRect(Math.round(x), height - 6, 1, 6);
    const text = formatMoment(time, state.ticks.step);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(x, GUTTER - 40 + half), width - half - 2), height - 17);
  }
};

const paintAll = () => {
  chooseTicks();
  paintRuler();
  const marks = { rects: 0, scanned: 0, labels: 0 };
  for (const canvas of canvases) {
    if (!state.printing && !nearby.has(canvas)) continue;
    const drawn = paintTable(canvas, DATA.tables[Number(canvas.dataset.table)], state);
    for (const name of Object.keys(marks)) marks[name] += drawn[name];
  }
  record.marks = marks;
  record.frames += 1;
};
let asked = false;
const draw = () => {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; paintAll(); placeCard(); });
};

const measure = () => {
  const shown = canvases[0] || ruler;
  state.width = Math.max(220, shown.clientWidth || shown.parentElement.clientWidth);
  state.scale = Math.min(window.devicePixelRatio || 1, 2);
  for (const canvas of canvases) {
    canvas.style.height = layoutOf(DATA.tables[Number(canvas.dataset.table)], state).height + 'px';
  }
};

// What lies at a place of a timetable's canvas: an operation, or idle time.
const pick = (table, px, py) => {
  const layout = layoutOf(table, state);
  const rank = Math.floor((py - 2) / layout.row);
  if (rank < 0 || rank >= table.ranks || px < GUTTER) return null;
  const time = timeAt(px);
  const slop = ((state.view.to - state.view.from) / plotWidth()) * 1.5;
  const op = firstAfter(table, rank, time - slop);
  if (op < table.starts[rank + 1] && table.start[op] <= time + slop) {
    // of what is too narrow to hit, the longest under the pointer
    let best = op;
    for (let next = op; next < table.starts[rank + 1] && table.start[next] <= time + slop; next += 1) {
      const inside = (n) => table.start[n] <= time && time < table.end[n];
      if (inside(next) && !inside(best)) best = next;
      else if (inside(next) === inside(best) && table.end[next] - table.start[next] > table.end[best] - table.start[best]) best = next;
    }
    return { table, op: best };
  }
  const piece = table.idle[rank].find((p) => p.start <= time && time < p.end);
  return piece ? { table, op: -1, piece } : null;
};

const reveal = (table, op) => {
  const { from, to } = state.view;
  const [start, end] = [table.start[op], table.end[op]];
  const edge = (to - from) * 0.08;
  if (end - start > (to - from) * 0.9) show(start, end);
  else if (start < from + edge) pan(start - from - edge);
  else if (end > to - edge) pan(end - to + edge);
  const canvas = canvases[table.number];
  const layout = layoutOf(table, state);
  const top = canvas.getBoundingClientRect().top + table.rank[op] * layout.row;
  if (top < 50) window.scrollBy({ top: top - 60 });
  else if (top + layout.row > window.innerHeight) window.scrollBy({ top: top + layout.row - window.innerHeight + 20 });
};

const select = (table, op) => {
  state.selected = { table, op };
  state.pointed = null;
  reveal(table, op);
  tell();
  draw();
};
const letGo = () => { state.selected = state.pointed = null; tell(); draw(); };
