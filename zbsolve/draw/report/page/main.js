// Wires the page: pointer, wheel, touch, keyboard, theme, print.
const pointers = new Map();
let moved = 0;

const tableOf = (canvas) => DATA.tables[Number(canvas.dataset.table)];
const placeIn = (canvas, event) => {
  const area = canvas.getBoundingClientRect();
  return [((event.clientX - area.left) * state.width) / (area.width || 1), event.clientY - area.top];
};
const pinchOf = () => {
  const [a, b] = [...pointers.values()];
  return { middle: (a.x + b.x) / 2, apart: Math.max(8, Math.abs(a.x - b.x)) };
};

const wheel = (event, always) => {
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
  const lines = event.deltaMode === 1 ? 16 : 1;
  if (sideways && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    pan(((sideways * lines) / plotWidth()) * (state.view.to - state.view.from));
  } else if (always || event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const [px] = placeIn(event.currentTarget, event);
    zoom(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * lines)) * (event.ctrlKey && event.deltaMode === 0 && Math.abs(event.deltaY) < 40 ? 0.012 : 0.0028)), timeAt(px));
  }
};

const wirePointer = (canvas) => {
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button) return;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved = pointers.size > 1 ? 100 : 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === 'touch') return;
      const [px, py] = placeIn(canvas, event);
      const found = pick(tableOf(canvas), px, py);
      const same = found && state.pointed && found.op === state.pointed.op && found.piece === state.pointed.piece && found.table === state.pointed.table;
      if (same) return;
      state.pointed = found && { ...found, px: event.clientX };
      tell();
      draw();
      return;
    }
    const pinched = pointers.size === 2 ? pinchOf() : null;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved += Math.abs(event.clientX - before.x) + Math.abs(event.clientY - before.y);
    const perPx = (state.view.to - state.view.from) / plotWidth();
    if (pinched) {
      const now = pinchOf();
      const area = canvas.getBoundingClientRect();
      pan((pinched.middle - now.middle) * perPx);
      zoom(now.apart / pinched.apart, timeAt(now.middle - area.left));
    } else if (pointers.size === 1 && moved > 4) {
      canvas.classList.add('dragged');
      state.pointed = null;
      pan((before.x - event.clientX) * perPx);
      tell();
    }
  });
  const up = (event) => {
    const held = pointers.delete(event.pointerId);
    canvas.classList.remove('dragged');
    if (!held || event.type !== 'pointerup' || moved > 4 || pointers.size) return;
    const [px, py] = placeIn(canvas, event);
    state.selected = pick(tableOf(canvas), px, py);
    state.pointed = null;
    tell();
    draw();
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', () => { if (state.pointed) { state.pointed = null; tell(); draw(); } });
  canvas.addEventListener('dblclick', (event) => zoom(2.5, timeAt(placeIn(canvas, event)[0])));
  canvas.addEventListener('wheel', (event) => wheel(event, false), { passive: false });
};

// Dragging over the time axis moves the view, as a scroll bar would above it and as the axis does below.
const wireRuler = () => {
  let held = null;
  ruler.addEventListener('pointerdown', (event) => {
    ruler.setPointerCapture(event.pointerId);
    const [px, py] = placeIn(ruler, event);
    held = { x: event.clientX, overview: py < OVERVIEW + 4 };
    if (held.overview) {
      const all = whole();
      const at = all.from + ((px - GUTTER) / plotWidth()) * (all.to - all.from);
      if (at < state.view.from || at > state.view.to) pan(at - (state.view.from + state.view.to) / 2);
    }
  });
  ruler.addEventListener('pointermove', (event) => {
    if (!held) return;
    const all = whole();
    const span = held.overview ? all.to - all.from : state.view.from - state.view.to;
    pan(((event.clientX - held.x) / plotWidth()) * span);
    held.x = event.clientX;
  });
  for (const name of ['pointerup', 'pointercancel']) ruler.addEventListener(name, () => { held = null; });
  ruler.addEventListener('wheel', (event) => wheel(event, true), { passive: false });
};

const walk = (table, key) => {
  const current = state.selected && state.selected.table === table && state.selected.op >= 0 ? state.selected.op : null;
  if (!table.class.length) return;
  if (current === null) {
    const rank = table.starts.findIndex((at, n) => n + 1 < table.starts.length && table.starts[n + 1] > at);
    const op = Math.min(firstAfter(table, rank, state.view.from), table.starts[rank + 1] - 1);
    select(table, op);
    return;
  }
  const rank = table.rank[current];
  const [first, last] = [table.starts[rank], table.starts[rank + 1] - 1];
  if (key === 'ArrowRight') select(table, Math.min(current + 1, last));
  else if (key === 'ArrowLeft') select(table, Math.max(current - 1, first));
  else if (key === 'Home') select(table, first);
  else if (key === 'End') select(table, last);
  else {
    const step = key === 'ArrowUp' ? -1 : 1;
    let to = rank + step;
    while (to >= 0 && to < table.ranks && table.starts[to] === table.starts[to + 1]) to += step;
    if (to < 0 || to >= table.ranks) return;
    const middle = (table.start[current] + table.end[current]) / 2;
    select(table, Math.min(firstAfter(table, to, middle), table.starts[to + 1] - 1));
  }
};

const follow = (table, key) => {
  const selected = state.selected && state.selected.table === table ? state.selected.op : -1;
  if (key === 'c') {
    const at = table.critical.indexOf(selected);
    if (table.critical.length) select(table, table.critical[(at + 1) % table.critical.length]);
    return;
  }
  if (selected < 0) return;
  const [input] = inputsOf(table, selected);
  if (input) select(table, input.tail);
};

const keys = (event, canvas) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const table = tableOf(canvas);
  const span = state.view.to - state.view.from;
  const picked = state.selected && state.selected.op >= 0 ? (state.selected.table.start[state.selected.op] + state.selected.table.end[state.selected.op]) / 2 : undefined;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.shiftKey && (key === 'ArrowLeft' || key === 'ArrowRight')) pan((key === 'ArrowLeft' ? -0.2 : 0.2) * span);
  else if (['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'].includes(key)) walk(table, key);
  else if (key === '+' || key === '=') zoom(1.6, picked);
  else if (key === '-' || key === '_') zoom(1 / 1.6, picked);
  else if (key === '0' || key === 'f') fit();
  else if (key === 'i' || key === 'c') follow(table, key);
  else if (key === 'Escape') letGo();
  else return;
  event.preventDefault();
};

// The theme: what the system prefers, unless the reader chooses.
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
let themeChoice = 'auto';
const applyTheme = () => {
  const dark = !state.printing && (themeChoice === 'dark' || (themeChoice === 'auto' && prefersDark.matches));
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  state.palette = makePalette(dark);
  paintLegend();
  for (const button of document.querySelectorAll('[data-theme-choice]')) {
    button.setAttribute('aria-pressed', String(button.dataset.themeChoice === themeChoice));
  }
};

const paintLegend = () => {
  const legend = document.getElementById('legend');
  legend.replaceChildren();
  const add = (colour, text) => { const item = element('span', null, legend); swatch(colour, item); element('span', text, item); };
  DATA.kinds.forEach(([letter, meaning], n) => add(state.palette.kinds[n][0], letter + ' ' + meaning));
  if (state.byMicrobatch) {
    const item = element('span', null, legend);
    const ramp = element('canvas', null, item);
    ramp.className = 'ramp';
    ramp.width = state.palette.microbatches.length;
    ramp.height = 1;
    const pen = ramp.getContext('2d');
    state.palette.microbatches.forEach((colour, j) => { pen.fillStyle = colour; pen.fillRect(j, 0, 1, 1); });
    element('span', 'first to last microbatch, the kind as a strip below', item);
  }
  const seen = new Set(DATA.tables.flatMap((table) => table.idle.flat().map((piece) => piece.cause)));
  if (state.causes) DATA.causes.forEach(([name], n) => { if (seen.has(n)) add(state.palette.causes[n], 'idle: ' + name); });
  if (state.memory && DATA.tables.some((table) => table.anyMemory)) {
    add(state.palette.memory, 'memory');
    if (DATA.tables.some((table) => table.limit.some((limit) => limit !== null && limit <= table.bandBytes))) add(state.palette.limit, 'limit');
  }
};

const wireTools = () => {
  const changed = (change) => (event) => { change(event.target); measure(); paintLegend(); tell(); draw(); };
  document.getElementById('colour-by').addEventListener('change', changed((input) => { state.byMicrobatch = input.value === 'microbatch'; }));
  for (const name of ['critical', 'causes', 'memory']) {
    const box = document.getElementById('show-' + name);
    state[name] = box.checked; // as the browser restored it
    box.addEventListener('change', changed((input) => { state[name] = input.checked; }));
  }
  state.byMicrobatch = document.getElementById('colour-by').value === 'microbatch';
  document.getElementById('zoom-in').addEventListener('click', () => zoom(1.6));
  document.getElementById('zoom-out').addEventListener('click', () => zoom(1 / 1.6));
  document.getElementById('zoom-fit').addEventListener('click', fit);
  for (const button of document.querySelectorAll('[data-theme-choice]')) {
    button.addEventListener('click', () => { themeChoice = button.dataset.themeChoice; applyTheme(); tell(); draw(); });
  }
  for (const button of document.querySelectorAll('[data-bubble]')) {
    button.addEventListener('click', () => {
      const table = DATA.tables[Number(button.dataset.table)];
      const [rank, start, length] = table.bubbles[Number(button.dataset.bubble)];
      show(start, start + length);
      const piece = table.idle[rank].find((p) => p.start >= start);
      state.selected = piece ? { table, op: -1, piece } : null;
      canvases[table.number].closest('section').scrollIntoView();
      canvases[table.number].focus({ preventScroll: true });
      tell();
      draw();
    });
  }
};

// On paper: light, everything, sharp, and wide enough for its page.
let before = null;
const beforePrint = () => {
  if (before) return;
  before = { view: state.view, selected: state.selected };
  Object.assign(state, { printing: true, selected: null, pointed: null });
  applyTheme();
  tell();
  state.view = whole();
  state.width = 1060;
  state.scale = 2.5;
  paintAll();
};
const afterPrint = () => {
  if (!before) return;
  Object.assign(state, { printing: false, view: before.view, selected: before.selected });
  before = null;
  applyTheme();
  measure();
  tell();
  draw();
};

const begin = () => {
  wireTools();
  canvases.forEach((canvas) => {
    wirePointer(canvas);
    canvas.addEventListener('keydown', (event) => keys(event, canvas));
  });
  wireRuler();
  applyTheme();
  measure();
  prefersDark.addEventListener('change', () => { applyTheme(); tell(); draw(); });
  window.addEventListener('resize', () => { if (!state.printing) { measure(); draw(); } });
  window.addEventListener('beforeprint', beforePrint);
  window.addEventListener('afterprint', afterPrint);
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) { if (entry.isIntersecting) nearby.add(entry.target); else nearby.delete(entry.target); }
    draw();
  }, { rootMargin: '300px' });
  canvases.forEach((canvas) => watcher.observe(canvas));
  paintAll();
};
begin();

// For those who look at the page from outside: what is seen, picked, and drawn.
window.zbsolve = Object.freeze({
  view: () => ({ ...state.view }),
  selected: () => (state.selected ? { table: state.selected.table.number, op: state.selected.op } : null),
  marks: () => ({ ...record.marks }),
  frames: () => record.frames,
  width: () => state.width,
  operation: (number, op) => {
    const table = DATA.tables[number];
    const inputs = inputsOf(table, op).map(({ tail, arrival }) => [tail, arrival]);
    return { name: opName(table, op), rank: table.rank[op], start: table.start[op], end: table.end[op], slack: table.slack[op], inputs };
  },
  place: (table, op) => {
    const area = canvases[table].getBoundingClientRect();
    const layout = layoutOf(DATA.tables[table], state);
    const t = DATA.tables[table];
    const perNs = plotWidth() / (state.view.to - state.view.from);
    return { x: area.left + GUTTER + ((t.start[op] + t.end[op]) / 2 - state.view.from) * perNs, y: area.top + t.rank[op] * layout.row + 4 + layout.bar / 2 };
  },
});
