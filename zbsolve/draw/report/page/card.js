// What is picked, told: on a card beside it, and to those who listen instead of looking.
const card = document.getElementById('card');
const spoken = document.getElementById('spoken');

const heldAt = (table, rank, time) => {
  const { at, held } = table.memory[rank];
  let low = 0;
  let high = at.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at[middle] <= time) low = middle; else high = middle - 1;
  }
  return held[low];
};
const place = (table, op) => opName(table, op) + ' on rank ' + table.rank[op];
const signed = (bytes) => (bytes < 0 ? '\u2212' : '+') + formatBytes(Math.abs(bytes));

const inputLines = (table, op) => {
  const inputs = inputsOf(table, op);
  if (!inputs.length) return ['nothing'];
  return inputs.map(({ tail, lag, arrival }) => {
    const early = table.start[op] - arrival;
    const there = early > 0 ? 'there ' + formatNs(early) + ' before' : 'there just then';
    return place(table, tail) + ', ' + there + (lag ? ', ' + formatNs(lag) + ' on the link' : '');
  });
};

const slackLine = (table, op) => {
  const slack = table.slack[op];
  const value = table.by_period ? 'period' : 'makespan';
  if (slack <= 0) return 'none: any delay lengthens the ' + value;
  return formatNs(slack) + ' before the ' + value + ' grows';
};

const operationFacts = (table, op) => {
  const cls = table.classes[table.class[op]];
  const rank = table.rank[op];
  const ahead = op > table.starts[rank] ? opName(table, op - 1) : 'nothing, it begins the row';
  const facts = [
    ['what', DATA.kinds[cls[C_KIND]][1] + (table.stages[cls[C_STAGE]] ? ', ' + table.stages[cls[C_STAGE]] : '')],
    ['time', formatSpan(table.start[op], table.end[op])],
    ['takes', formatNs(cls[C_NS])],
    ['waited for', inputLines(table, op)],
    ['after, in its row', ahead],
    ['slack', slackLine(table, op) + (table.isCritical[op] ? ' (on the critical ' + (table.by_period ? 'cycle)' : 'path)') : '')],
  ];
  if (table.anyMemory) {
    const limit = table.limit[rank];
    const held = formatBytes(heldAt(table, rank, table.start[op])) + (limit === null ? '' : ' of ' + formatBytes(limit));
    const change = cls[C_START_BYTES] + cls[C_END_BYTES];
    facts.push(['memory', held + ' while it runs' + (change ? ', ' + signed(change) + ' in all' : '')]);
  }
  return { title: place(table, op), colour: fillOf(table, op, state), facts };
};

const SENTENCES = {
  data: (t, p) => 'waits for ' + place(t, p.waitsFor),
  queue: (t, p) => 'the link for what ' + place(t, p.waitsFor) + ' made is busy',
  link: (t, p) => 'what ' + place(t, p.waitsFor) + ' made is on its way',
  memory: (t, p) => opName(t, p.ready) + ' is ready, but does not fit in memory',
  order: (t, p) => opName(t, p.ready) + ' is ready and fits, but the row runs ' + opName(t, p.before) + ' first',
  late: () => 'the next operation could run, but is planned later',
  pace: () => 'ready for the next iteration, which the critical cycle paces',
  done: () => 'nothing is left to do',
};
const idleFacts = (table, piece) => {
  const cause = DATA.causes[piece.cause][0];
  const next = piece.before < 0 ? 'nothing' : opName(table, piece.before) + (piece.wraps ? ' of the next iteration' : '');
  return {
    title: 'Rank ' + piece.rank + ' idles ' + formatNs(piece.end - piece.start),
    colour: state.palette.causes[piece.cause],
    facts: [
      ['cause', cause + ': ' + SENTENCES[cause](table, piece)],
      ['time', formatSpan(piece.start, piece.end)],
      ['runs next', next],
    ],
  };
};

const element = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
};
const swatch = (colour, parent) => {
  const made = element('canvas', null, parent);
  made.width = made.height = 4;
  const pen = made.getContext('2d');
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 4, 4);
  return made;
};

const tell = () => {
  const told = state.pointed || state.selected;
  card.hidden = !told;
  card.replaceChildren();
  if (!told) { spoken.textContent = ''; return; }
  const { title, colour, facts } = told.op >= 0 ? operationFacts(told.table, told.op) : idleFacts(told.table, told.piece);
  const heading = element('h5', null, card);
  swatch(colour, heading);
  element('span', title, heading);
  const list = element('dl', null, card);
  for (const [name, value] of facts) {
    element('dt', name, list);
    const lines = Array.isArray(value) ? value : [value];
    const cell = element('dd', null, list);
    lines.forEach((line, n) => { if (n) element('br', null, cell); element('span', line, cell); });
  }
  card.classList.toggle('pinned', !state.pointed);
  if (!state.pointed) spoken.textContent = title + '. ' + facts.map(([name, value]) => name + ': ' + [].concat(value).join('; ')).join('. ');
  placeCard();
};

const placeCard = () => {
  const told = state.pointed || state.selected;
  if (!told || card.hidden) return;
  const canvas = canvases[told.table.number];
  const area = canvas.getBoundingClientRect();
  const layout = layoutOf(told.table, state);
  const rank = told.op >= 0 ? told.table.rank[told.op] : told.piece.rank;
  const time = told.op >= 0 ? told.table.start[told.op] : told.piece.start;
  const perNs = plotWidth() / (state.view.to - state.view.from);
  const left = told.px !== undefined ? told.px : area.left + GUTTER + (Math.max(time, state.view.from) - state.view.from) * perNs;
  const top = area.top + rank * layout.row + layout.bar + 14;
  const size = card.getBoundingClientRect();
  const above = area.top + rank * layout.row - size.height - 6;
  card.style.left = Math.max(8, Math.min(left + 8, document.documentElement.clientWidth - size.width - 10)) + 'px';
  card.style.top = Math.max(8, top + size.height > window.innerHeight && above > 4 ? above : top) + 'px';
};
window.addEventListener('scroll', () => placeCard(), { passive: true });
