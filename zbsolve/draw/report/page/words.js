// Amounts as people write them: four significant digits and a unit, as zbsolve's own tables do.
const amount = (value, steps, least) => {
  for (const [unit, size] of steps) {
    if (Math.abs(value) >= size) {
      const scaled = value / size;
      return (Math.abs(scaled) >= 1e4 ? scaled.toFixed(0) : String(Number(scaled.toPrecision(4)))) + ' ' + unit;
    }
  }
  return String(Number(value.toPrecision(4))) + ' ' + least;
};
const TIMES = [['s', 1e9], ['ms', 1e6], ['us', 1e3]];
const SIZES = [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]];
const formatNs = (ns) => amount(ns, TIMES, 'ns');
const formatBytes = (size) => amount(size, SIZES, 'B');
// A moment, in the unit that fits `near`, exact enough to tell steps of `stepNs` apart.
const formatMoment = (ns, stepNs, near = stepNs) => {
  const [unit, size] = TIMES.find(([, s]) => near >= s) || ['ns', 1];
  const digits = Math.max(0, Math.ceil(Math.log10(size / Math.max(stepNs, 1)) - 1e-9));
  return (ns / size).toFixed(Math.min(digits, 9)) + ' ' + unit;
};
const formatSpan = (start, end) => {
  const step = Math.max(1, (end - start) / 1000);
  return formatMoment(start, step, end) + ' to ' + formatMoment(end, step, end);
};
