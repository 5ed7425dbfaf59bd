// Readable numbers.

export const MISSING = "–";

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

export function percent(value) {
  return value === null || value === undefined ? MISSING : `${(100 * value).toFixed(1)} %`;
}

export function count(value, one, many) {
  return `${value} ${value === 1 ? one : many}`;
}

// A column of an answer, {values} or {n, runs: [[first, value], …]}, as an array with NaN for missing values.
export function unpack(column) {
  if (column === null) return null;
  if (column.values) return Float64Array.from(column.values, (value) => (value === null ? NaN : value));
  const values = new Float64Array(column.n).fill(NaN);
  for (const [first, value] of column.runs) values.fill(value === null ? NaN : value, first);
  return values;
}
