// Positions of values in a chart, and the moving average of a curve.

export const BOX = { width: 440, height: 190, left: 52, right: 430, top: 8, bottom: 168 };

// Exponential moving average. The weights of the values so far add up to 1, so the first values are not pulled to 0.
export function smoothed(values, weight) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

export function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9); at * size <= high + size * 1e-6; at += 1) found.push(at * size);
  return found;
}

// Powers of ten. If at most two are visible, 1, 2 and 5 of each. In a narrow range, the ticks of a linear axis.
function logTicks(low, high) {
  const powers = [];
  for (let at = Math.floor(Math.log10(low)); at <= Math.ceil(Math.log10(high)); at += 1) powers.push(at);
  const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  const whole = powers.map((at) => 10 ** at).filter(inside);
  if (whole.length > 2) return whole.filter((_, at) => at % Math.ceil(whole.length / 5) === 0);
  const parts = powers.flatMap((at) => [1, 2, 5].map((part) => part * 10 ** at)).filter(inside);
  return parts.length > 2 ? parts : ticks(low, high).filter((value) => value > 0);
}

function logScales(x, first, last, least, most) {
  const [low, high] = least === most ? [least / 2, most * 2] : [least, most];
  const y = (value) => BOX.bottom - ((BOX.bottom - BOX.top) * Math.log(value / low)) / Math.log(high / low);
  return { first, last, ticks: logTicks(low, high), x, y };
}

export function scales(curves, share, log) {
  const steps = curves.flatMap((curve) => curve.steps);
  const values = curves.flatMap((curve) => [...curve.values, ...(curve.raw ?? [])]).filter((value) => value !== null);
  const first = steps.reduce((a, b) => Math.min(a, b), Infinity), last = steps.reduce((a, b) => Math.max(a, b), -Infinity);
  const x = (step) => BOX.left + ((BOX.right - BOX.left) * (step - first)) / (last - first || 1);
  let low = share && !log ? 0 : values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!values.length) [low, high] = [0, 1];
  if (log) return logScales(x, first, last, values.length ? low : 1, values.length ? high : 10);
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const y = (value) => BOX.bottom - ((BOX.bottom - BOX.top) * (value - low)) / (high - low);
  return { first, last, ticks: ticks(low, high), x, y };
}
