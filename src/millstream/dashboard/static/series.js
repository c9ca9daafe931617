// Time series: merged as they arrive, cut to a time range, thinned to what a chart can show.

const RETAINED = 3700;

/** A history with newer points added; both as the API answers them. */
export function extended(history, newer) {
  if (newer.times.length === 0) return history;
  const surplus = Math.max(0, history.times.length + newer.times.length - RETAINED);
  const series = {};
  for (const name of Object.keys(newer.series)) {
    const before = history.series[name] ?? history.times.map(() => null);
    series[name] = [...before, ...newer.series[name]].slice(surplus);
  }
  return { times: [...history.times, ...newer.times].slice(surplus), series };
}

/** The points `[time, value]` of a series within the range, at most about `most` of them. */
export function points({ times, series }, name, from, to, most = 140) {
  const values = series[name] ?? [];
  const step = (to - from) / most;
  const found = [];
  for (let at = 0; at < times.length; at += 1) {
    const value = values[at];
    if (times[at] < from - step || value === null || value === undefined) continue;
    const last = found.at(-1);
    // Of points that share a pixel the larger one is shown: a peak must not vanish.
    if (last !== undefined && Math.floor(times[at] / step) === Math.floor(last[0] / step)) {
      if (value > last[1]) found[found.length - 1] = [last[0], value];
    } else found.push([times[at], value]);
  }
  return found;
}

/** The value of a series at a time: that of the nearest point, null if none is near. */
export function at({ times, series }, name, time) {
  let best = null;
  let distance = 15;
  times.forEach((each, index) => {
    const apart = Math.abs(each - time);
    if (apart <= distance) [best, distance] = [index, apart];
  });
  return best === null ? null : (series[name]?.[best] ?? null);
}
