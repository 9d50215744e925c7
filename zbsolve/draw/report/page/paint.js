// Drawing one timetable on its canvas. All functions take the state of the page and return nothing but marks.
const GUTTER = 62;
const MARGIN = 12;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

// How high rows are: roomy for few ranks, thin for many.
const layoutOf = (table, state) => {
  const roomy = table.ranks <= 16 && !state.printing;
  const bar = roomy ? 26 : table.ranks <= 40 ? 18 : 11;
  const band = state.memory && table.anyMemory ? Math.round(bar * 0.62) : 0;
  const row = bar + (band ? band + 3 : 0) + (roomy ? 9 : 4);
  return { bar, band, row, height: table.ranks * row + 4 };
};

const fillOf = (table, op, state) => {
  const cls = table.classes[table.class[op]];
  if (state.byMicrobatch) {
    const j = table.microbatch[op];
    return j < 0 ? state.palette.whole : state.palette.microbatches[j];
  }
  return state.palette.kinds[cls[C_KIND]][cls[C_CHUNK]];
};
const inkOf = (table, op, state) => {
  if (state.byMicrobatch) return table.microbatch[op] < 0 ? '#ffffff' : state.palette.microbatchInks[table.microbatch[op]];
  return state.palette.inks[table.classes[table.class[op]][C_KIND]];
};

const hatchOf = (context, palette) => {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const pen = tile.getContext('2d');
  pen.strokeStyle = palette.hatch;
  pen.lineWidth = 1.1;
  pen.beginPath();
  for (const at of [-8, 0, 8]) { pen.moveTo(at, 8); pen.lineTo(at + 8, 0); }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
};

const paintTable = (canvas, table, state) => {
  const { view, palette } = state;
  const layout = layoutOf(table, state);
  const width = state.width;
  const scale = state.scale;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(layout.height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(layout.height * scale);
  }
  canvas.style.height = state.printing ? 'auto' : layout.height + 'px';
  const context = canvas.getContext('2d', { alpha: false });
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = palette.panel;
  context.fillRect(0, 0, width, layout.height);
  const plot = { left: GUTTER, right: width - MARGIN };
  const perNs = (plot.right - plot.left) / (view.to - view.from);
  const frame = { context, table, state, layout, plot, x: (time) => plot.left + (time - view.from) * perNs, perNs, marks: { rects: 0, scanned: 0, labels: 0 } };
  context.save();
  context.beginPath();
  context.rect(plot.left, 0, plot.right - plot.left, layout.height);
  context.clip();
  paintGrid(frame);
  const hatch = hatchOf(context, palette);
  for (let rank = 0; rank < table.ranks; rank += 1) {
    paintIdle(frame, rank, hatch);
    paintBars(frame, rank);
    if (layout.band) paintMemory(frame, rank);
    paintEnds(frame, rank);
  }
  if (state.critical) paintCritical(frame);
  if (state.selected && state.selected.table === table) paintSelected(frame, state.selected);
  if (state.pointed && state.pointed.table === table) paintOutline(frame, state.pointed.op, 1.5);
  context.restore();
  paintRankNames(frame);
  return frame.marks;
};

const paintGrid = ({ context, state, layout, x, plot }) => {
  context.fillStyle = state.palette.line;
  for (const time of state.ticks.times) {
    const at = Math.round(x(time));
    if (at >= plot.left && at <= plot.right) context.fillRect(at, 0, 1, layout.height);
  }
};

// Idle time: the hatched window of the rank, and a strip in the colour of its cause.
const paintIdle = ({ context, table, state, layout, x, plot, marks }, rank, hatch) => {
  const top = rank * layout.row + 4;
  const [from, to] = table.windows[rank].map(x);
  const left = Math.max(from, plot.left - 1);
  const right = Math.min(to, plot.right + 1);
  if (right <= left) return;
  context.fillStyle = state.palette.idle;
  context.fillRect(left, top, right - left, layout.bar);
  context.fillStyle = hatch;
  context.fillRect(left, top, right - left, layout.bar);
  if (!state.causes) return;
  const strip = Math.max(3, Math.round(layout.bar * 0.17));
  let painted = -Infinity;
  for (const piece of table.idle[rank]) {
    const a = x(piece.start);
    const b = x(piece.end);
    if (b < plot.left || a > plot.right || b < painted + 1) continue;
    context.fillStyle = state.palette.causes[piece.cause];
    context.fillRect(Math.max(a, left), top + layout.bar - strip, Math.max(b - Math.max(a, left), 0.7), strip);
    marks.rects += 1;
    painted = b;
  }
};

// Bars of operations: what is wider than a pixel by itself, what is not as one pixel of the longest there.
const paintBars = (frame, rank) => {
  const { context, table, state, layout, x, plot, perNs, marks } = frame;
  const top = rank * layout.row + 4;
  const stop = table.starts[rank + 1];
  const dim = state.critical ? 0.38 : 1;
  for (let op = firstAfter(table, rank, state.view.from); op < stop; op += 1) {
    const a = x(table.start[op]);
    if (a > plot.right) break;
    marks.scanned += 1;
    const b = x(table.end[op]);
    if (b - a >= 1) {
      paintBar(frame, op, a, b, top, dim);
      continue;
    }
    const column = Math.floor(a);
    let longest = op;
    let critical = table.isCritical[op];
    while (op + 1 < stop && x(table.end[op + 1]) < column + 1) {
      op += 1;
      marks.scanned += 1;
      critical |= table.isCritical[op];
      if (table.end[op] - table.start[op] > table.end[longest] - table.start[longest]) longest = op;
    }
    const covered = Math.min(1, Math.max(0.35, (table.end[op] - table.start[longest]) * perNs));
    context.globalAlpha = covered * (critical ? 1 : dim);
    context.fillStyle = fillOf(table, longest, state);
    context.fillRect(column, top, 1, layout.bar);
    marks.rects += 1;
  }
  context.globalAlpha = 1;
};

const paintBar = ({ context, table, state, layout, plot, marks }, op, a, b, top, dim) => {
  const cls = table.classes[table.class[op]];
  const compute = cls[C_COMPUTE];
  // what runs beside the compute of its rank is a thin bar over it
  const height = compute ? layout.bar : Math.max(3, layout.bar * 0.2);
  const left = Math.max(a, plot.left - 2);
  const right = Math.min(b, plot.right + 2);
  const seam = right - left > 5 ? 1 : right - left > 2.5 ? 0.5 : 0;
  context.globalAlpha = table.isCritical[op] ? 1 : dim;
  context.fillStyle = fillOf(table, op, state);
  context.fillRect(left, top, right - left - seam, height);
  marks.rects += 1;
  if (state.byMicrobatch && layout.bar >= 11 && right - left > 3) {
    context.fillStyle = state.palette.kinds[cls[C_KIND]][cls[C_CHUNK]];
    context.fillRect(left, top + layout.bar - 4, right - left - seam, 4);
    marks.rects += 1;
  }
  if (!compute || layout.bar < 15) { context.globalAlpha = 1; return; }
  const full = opName(table, op, false);
  const short = table.microbatch[op] < 0 ? full : String(table.microbatch[op]);
  const room = right - left - seam;
  const sizes = layout.bar >= 24 ? [12, 10] : [10, 9];
  // digits are about 0.58 of their height wide
  const label = [[full, sizes[0], 6], [short, sizes[0], 3], [short, sizes[1], 1]]
    .find(([text, size, margin]) => room >= text.length * size * 0.6 + margin);
  if (label) {
    const [text, size] = label;
    context.fillStyle = inkOf(table, op, state);
    context.font = '500 ' + size + 'px ' + FONT;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.fillText(text, (left + right - seam) / 2, top + layout.bar / 2 + 0.5 - (state.byMicrobatch ? 1.5 : 0));
    marks.labels += 1;
  }
  context.globalAlpha = 1;
};

// Memory against the limit: an area whose scale is one for the whole timetable.
const paintMemory = ({ context, table, state, layout, x, plot, marks }, rank) => {
  const floor = rank * layout.row + 4 + layout.bar + 3 + layout.band;
  const y = (bytes) => floor - (bytes / table.bandBytes) * (layout.band - 1);
  const { at, held } = table.memory[rank];
  const [from, to] = table.windows[rank];
  const left = Math.max(x(from), plot.left);
  const right = Math.min(x(to), plot.right);
  if (right <= left) return;
  context.fillStyle = state.palette.memory;
  context.globalAlpha = 0.55;
  context.beginPath();
  context.moveTo(left, floor);
  let low = 0;
  let high = at.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (x(at[middle]) <= left) low = middle; else high = middle - 1;
  }
  let level = held[low];
  context.lineTo(left, y(level));
  for (let n = low + 1; n < at.length; n += 1) {
    const px = x(at[n]);
    if (px > right) break;
    marks.scanned += 1;
    // within one pixel only the most counts
    let most = held[n];
    const column = px + 0.8;
    while (n + 1 < at.length && x(at[n + 1]) < column) { n += 1; most = Math.max(most, held[n]); marks.scanned += 1; }
    context.lineTo(px, y(level));
    context.lineTo(px, y(most));
    level = held[n];
    if (most > level) { context.lineTo(Math.min(column, right), y(most)); context.lineTo(Math.min(column, right), y(level)); }
    marks.rects += 1;
  }
  context.lineTo(right, y(level));
  context.lineTo(right, floor);
  context.fill();
  if (table.base[rank]) {
    context.fillStyle = state.palette.static;
    context.fillRect(left, y(table.base[rank]), right - left, floor - y(table.base[rank]));
  }
  context.globalAlpha = 1;
  context.fillStyle = state.palette.line;
  context.fillRect(left, floor, right - left, 0.7);
  const limit = table.limit[rank];
  if (limit !== null && limit <= table.bandBytes) {
    context.strokeStyle = state.palette.limit;
    context.lineWidth = 1.1;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(left, y(limit));
    context.lineTo(right, y(limit));
    context.stroke();
    context.setLineDash([]);
  }
};

const paintEnds = ({ context, table, state, layout, x }, rank) => {
  const [first, stop] = [table.starts[rank], table.starts[rank + 1]];
  if (stop === first || !table.by_period) return;
  context.fillStyle = state.palette.ink;
  const top = rank * layout.row + 2;
  for (const time of table.windows[rank]) context.fillRect(Math.round(x(time)) - 0.5, top, 1, layout.bar + 4);
};

const boxOf = ({ table, layout, x }, op) => {
  const top = table.rank[op] * layout.row + 4;
  const left = x(table.start[op]);
  return { left, right: Math.max(x(table.end[op]), left + 1.5), top, bottom: top + layout.bar, middle: top + layout.bar / 2 };
};

const paintOutline = (frame, op, width, colour) => {
  const { context, state } = frame;
  const box = boxOf(frame, op);
  context.strokeStyle = state.palette.panel;
  context.lineWidth = width + 2;
  context.strokeRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  context.strokeStyle = colour || state.palette.ink;
  context.lineWidth = width;
  context.strokeRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  frame.marks.rects += 1;
};

// The critical path: its bars under one line that runs through them from rank to rank.
const paintCritical = (frame) => {
  const { context, table, state, plot, marks, layout } = frame;
  context.strokeStyle = state.palette.critical;
  context.lineWidth = layout.bar > 15 ? 2.5 : 1.6;
  context.lineJoin = 'round';
  context.beginPath();
  let before = null;
  for (const op of table.critical) {
    const box = boxOf(frame, op);
    const along = before !== null && table.start[op] >= table.end[before];
    if (box.right < plot.left - 40 || box.left > plot.right + 40) { before = null; continue; }
    if (along) context.lineTo(box.left, box.top + 2); else context.moveTo(box.left, box.top + 2);
    context.lineTo(box.right, box.top + 2);
    marks.rects += 1;
    before = op;
  }
  context.stroke();
};

// The selected operation, and a line from each thing that it waited for.
const paintSelected = (frame, { op }) => {
  const { context, table, state } = frame;
  if (op < 0) return;
  const box = boxOf(frame, op);
  for (const input of inputsOf(table, op)) {
    if (table.rank[input.tail] === table.rank[op]) { // along the row there is no room for a line
      paintOutline(frame, input.tail, 1.2);
      continue;
    }
    const from = boxOf(frame, input.tail);
    context.strokeStyle = state.palette.ink;
    context.lineWidth = 1.4;
    context.setLineDash(input.lag ? [4, 3] : []);
    context.beginPath();
    context.moveTo(from.right, from.middle);
    const bend = Math.max(12, (box.left - from.right) / 2);
    context.bezierCurveTo(from.right + bend, from.middle, box.left - bend, box.middle, box.left, box.middle);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = state.palette.ink;
    context.beginPath();
    context.arc(from.right, from.middle, 2.6, 0, 7);
    context.arc(box.left, box.middle, 2.6, 0, 7);
    context.fill();
    paintOutline(frame, input.tail, 1.2);
  }
  paintOutline(frame, op, 2.4, state.palette.accent);
};

const paintRankNames = ({ context, table, state, layout }) => {
  const every = Math.max(1, Math.ceil(13 / layout.row));
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (let rank = 0; rank < table.ranks; rank += every) {
    const top = rank * layout.row + 4;
    context.fillStyle = state.palette.muted;
    context.font = (layout.bar >= 18 ? '12.5px ' : '10.5px ') + FONT;
    context.fillText('rank ' + rank, GUTTER - 9, top + layout.bar / 2 + 0.5);
    if (layout.band >= 11 && table.peak[rank] > 0) {
      context.font = '9.5px ' + FONT;
      context.fillText(formatBytes(table.peak[rank]), GUTTER - 9, top + layout.bar + 3 + layout.band / 2 + 1);
    }
  }
};
