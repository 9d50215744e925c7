// The data of the page, unpacked: for each timetable its operations as typed columns.
const DATA = JSON.parse(document.getElementById('data').textContent);
const [C_KIND, C_STAGE, C_CHUNK, C_NS, C_START_BYTES, C_END_BYTES, C_COMPUTE] = [0, 1, 2, 3, 4, 5, 6];

const unpackIdle = (table) => {
  const pieces = Array.from({ length: table.ranks }, () => []);
  for (let at = 0; at < table.idle.length; at += 8) {
    const [rank, start, length, cause, before, waitsFor, ready, wraps] = table.idle.slice(at, at + 8);
    pieces[rank].push({ rank, start, end: start + length, cause, before, waitsFor, ready, wraps });
  }
  table.idle = pieces;
};

const unpackInputs = (table) => {
  const count = table.class.length;
  table.inputsAt = new Int32Array(count + 1);
  const packed = table.inputs;
  table.tails = [];
  table.tailLags = [];
  for (let op = 0, at = 0; op < count; op += 1) {
    const inputs = packed[at];
    at += 1;
    for (let n = 0; n < inputs; n += 1, at += 2) {
      table.tails.push(op - packed[at]);
      table.tailLags.push(table.lags[packed[at + 1]]);
    }
    table.inputsAt[op + 1] = table.tails.length;
  }
};

// The memory of each rank as steps: what it holds from a moment on.
const unpackMemory = (table) => {
  table.memory = table.base.map((base, rank) => {
    const events = [];
    for (let op = table.starts[rank]; op < table.starts[rank + 1]; op += 1) {
      const cls = table.classes[table.class[op]];
      if (cls[C_START_BYTES]) events.push([table.start[op], cls[C_START_BYTES]]);
      if (cls[C_END_BYTES]) events.push([table.end[op], cls[C_END_BYTES]]);
    }
    // at one moment what ends gives back before what starts takes
    events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const at = new Float64Array(events.length + 1);
    const held = new Float64Array(events.length + 1);
    at[0] = -Infinity;
    held[0] = base;
    events.forEach(([time, change], n) => { at[n + 1] = time; held[n + 1] = held[n] + change; });
    return { at, held };
  });
  const peak = Math.max(1, ...table.peak);
  table.bandBytes = Math.max(peak, ...table.limit.filter((limit) => limit !== null && limit <= 2 * peak));
  table.anyMemory = table.peak.some((bytes) => bytes > 0);
};

const unpack = (table, number) => {
  const count = table.class.length;
  table.number = number;
  table.ranks = table.starts.length - 1;
  table.start = new Float64Array(count);
  table.end = new Float64Array(count);
  table.rank = new Int32Array(count);
  for (let rank = 0; rank < table.ranks; rank += 1) {
    let free = 0;
    for (let op = table.starts[rank]; op < table.starts[rank + 1]; op += 1) {
      table.rank[op] = rank;
      table.start[op] = free + table.gap[op];
      free = table.end[op] = table.start[op] + table.classes[table.class[op]][C_NS];
    }
  }
  table.isCritical = new Uint8Array(count);
  for (const op of table.critical) table.isCritical[op] = 1;
  table.last = Math.max(0, ...table.windows.map((w) => w[1]));
  for (const end of table.end) if (end > table.last) table.last = end;
  unpackIdle(table);
  unpackInputs(table);
  unpackMemory(table);
};
DATA.tables.forEach(unpack);
const LAST = Math.max(1, ...DATA.tables.map((table) => table.last));

// The first operation of a rank whose end is after a moment, by halving: rows are in the order of time.
const firstAfter = (table, rank, time) => {
  let low = table.starts[rank];
  let high = table.starts[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (table.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
};

const opName = (table, op, withStage = true) => {
  const cls = table.classes[table.class[op]];
  const microbatch = table.microbatch[op] < 0 ? '' : table.microbatch[op];
  const beside = table.beside[op];
  const letter = DATA.kinds[cls[C_KIND]][0].split('+')[0];
  const own = letter + microbatch + (withStage ? ' of stage ' + cls[C_STAGE] : '');
  if (!beside) return own;
  return own + (withStage ? ' with ' + beside : '+' + beside.split(' ')[0]);
};

// What an operation waited for, the last to arrive first.
const inputsOf = (table, op) => {
  const found = [];
  for (let at = table.inputsAt[op]; at < table.inputsAt[op + 1]; at += 1) {
    const tail = table.tails[at];
    found.push({ tail, lag: table.tailLags[at], arrival: table.end[tail] + table.tailLags[at] });
  }
  return found.sort((a, b) => b.arrival - a.arrival);
};
