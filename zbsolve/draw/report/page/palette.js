// Colours as the page's theme has them now.
// By microbatch: cividis, even in lightness and alike for all eyes, at nine places.
const RAMP = ['#00224e', '#1d3b6f', '#444f6b', '#61646f', '#7d7b78', '#9c9476', '#bcae6c', '#dec958', '#fee838'];
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mixed = (a, b, share) => {
  const to = channels(b);
  return 'rgb(' + channels(a).map((v, n) => Math.round(v + (to[n] - v) * share)).join(',') + ')';
};
const rampColour = (share) => {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return mixed(RAMP[low], RAMP[low + 1], at - low);
};

const makePalette = (dark) => {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue('--' + name).trim();
  const palette = { dark, kinds: [], inks: [], causes: DATA.causes.map((c) => c[dark ? 2 : 1]) };
  for (const name of ['panel', 'page', 'ink', 'muted', 'line', 'accent', 'critical', 'idle', 'hatch', 'memory', 'static', 'limit']) {
    palette[name] = of(name);
  }
  const tint = dark ? '#10161c' : '#ffffff';
  const chunks = Math.max(1, ...DATA.tables.map((table) => table.chunks));
  for (const kind of DATA.kinds) {
    const fill = kind[dark ? 4 : 2];
    // later chunks of a rank are a little paler, so that they tell apart
    palette.kinds.push(Array.from({ length: chunks }, (_, k) => mixed(fill, tint, Math.min(0.17 * k, 0.5))));
    palette.inks.push(kind[dark ? 5 : 3]);
  }
  if (state.printing) palette.page = '#ffffff';
  const darkest = dark ? 0.14 : 0; // the ramp's first colours would sink into a dark page
  const share = (j, of) => darkest + (1 - darkest) * (of > 1 ? j / (of - 1) : 0.5);
  const most = Math.max(1, ...DATA.tables.map((table) => table.microbatches));
  palette.microbatches = Array.from({ length: most }, (_, j) => rampColour(share(j, most)));
  palette.microbatchInks = Array.from({ length: most }, (_, j) => (share(j, most) < 0.5 ? '#ffffff' : '#111111'));
  palette.whole = palette.static;
  return palette;
};
