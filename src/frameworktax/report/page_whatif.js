// The formulas of analysis/formulas.py, queued.py and bill.py again, for the sliders. A test holds
// them against Python's on random inputs. An estimate is [value, low, high]; times are ns.
(() => {
  "use strict";
  const MEASURED = "measured";
  const HOST = "tax / host speed + kernels";
  const WIDTH = "tax + width² × gemm + width × rest";
  const BATCH = "line over batch";
  const DEPTH = "line over depth";
  const UNIFORM = "two-queue replay, equal launches";
  const DEVICE_BATCH = "two-queue replay, line over batch";
  const DEVICE_WIDTH = "two-queue replay, width to width²";
  const REACH = 2;
  const POINTS = 3;
  const QUEUE = 1024;
  const AXES = { batch: "batches", depth: "depths", width: "widths" };
  const ZERO = "its interval reaches zero; measure it for longer";
  const refuse = (formula, reason) => ({ formula, reason });
  const short = (number) => String(Number(number.toPrecision(6)));

  function propagate(f, inputs) {
    const values = inputs.map((e) => e[0]);
    const value = f(...values);
    let down = 0;
    let up = 0;
    inputs.forEach((estimate, i) => {
      const moved = [estimate[1], estimate[2]].map((end) =>
        f(...values.slice(0, i), end, ...values.slice(i + 1)));
      down = Math.hypot(down, Math.max(0, value - Math.min(...moved)));
      up = Math.hypot(up, Math.max(0, Math.max(...moved) - value));
    });
    return [value, value - down, value + up];
  }

  function product(a, b) {
    const value = a[0] * b[0];
    return [value, value - Math.hypot(b[0] * (a[0] - a[1]), a[0] * (b[0] - b[1])),
      value + Math.hypot(b[0] * (a[2] - a[0]), a[0] * (b[2] - b[0]))];
  }

  function quotient(a, b) {
    const value = a[0] / b[0];
    return [value, value - Math.hypot((a[0] - a[1]) / b[0], value * (b[2] - b[0]) / b[0]),
      value + Math.hypot((a[2] - a[0]) / b[0], value * (b[0] - b[1]) / b[0])];
  }

  const inverse = (e) => [1 / e[0], 1 / e[2], 1 / e[1]];
  const fasterHost = (share, speed) => propagate((s) => s / speed + 1 - s, [share]);

  function wider(share, matrix, width) {
    const growth = width ** 2 * matrix + width * (1 - matrix);
    return propagate((s) => s + (1 - s) * growth, [share]);
  }

  function line(values, measured) {
    const weights = measured.map((m) => 1 / m ** 2);
    const sum = (f) => weights.reduce((all, w, i) => all + w * f(values[i], measured[i]), 0);
    const total = sum(() => 1);
    const centre = sum((x) => x) / total;
    const height = sum((x, y) => y) / total;
    const slope = sum((x, y) => (x - centre) * (y - height)) / sum((x) => (x - centre) ** 2);
    return [height - slope * centre, slope];
  }

  function alongLine(values, latency, at) {
    const found = propagate((...measured) => {
      const [base, slope] = line(values, measured);
      return base + slope * at;
    }, latency);
    if (values.length < 3) return found;
    const centres = latency.map((e) => e[0]);
    const [base, slope] = line(values, centres);
    const squares = values.map((n, i) => ((base + slope * n) / centres[i] - 1) ** 2);
    const mean = squares.reduce((a, b) => a + b, 0) / (values.length - 2);
    const left = 2 * Math.sqrt(mean) * found[0];
    return [found[0], found[0] - Math.hypot(found[0] - found[1], left),
      found[0] + Math.hypot(found[2] - found[0], left)];
  }

  // Two queues of equal launches, played forward; see analysis/replay.py.
  function run(q) {
    const ends = [];
    let now = 0;
    let done = 0;
    for (let i = 0; i < q.launches; i += 1) {
      now += i === 0 ? q.first : q.host;
      if (i >= q.depth) now = Math.max(now, ends[i - q.depth]);
      const ready = i === 0 ? now : Math.max(now, ends[i - 1] + q.gap);
      ends.push(ready + q.kernel);
      done = Math.max(done, ready + q.kernel);
    }
    return Math.max(done, now) + q.sync;
  }

  function uniform(launches, latency, host, kernel, span) {
    const each = host / launches;
    const gap = launches < 2 ? 0 : (span - kernel) / (launches - 1);
    const made = { launches, first: each, host: each, kernel: kernel / launches, gap, sync: 0,
      depth: QUEUE };
    return { ...made, sync: latency - run(made) };
  }

  function pointLatency(point, change) {
    const { deviceSpeed = 1, hostSpeed = 1, graphs = false, kernels = 1 } = change;
    const inputs = [point.latency, point.enqueue, point.kernel, point.span ?? point.kernel];
    return propagate((...values) => {
      const q = uniform(point.launches, ...values);
      return run({ ...q, first: q.first / hostSpeed, host: graphs ? 0 : q.host / hostSpeed,
        kernel: q.kernel / (deviceSpeed / kernels),
        depth: graphs ? Math.max(q.depth, q.launches) : q.depth });
    }, inputs);
  }

  function between(point, kernel, formula) {
    if (!point.kernel || kernel[1] <= 0) return refuse(formula, ZERO);
    const at = (end) => pointLatency(point, { kernels: end / point.kernel[0] });
    const found = at(kernel[0]);
    return { formula, latency: [found[0], Math.min(found[1], at(kernel[1])[0]),
      Math.max(found[2], at(kernel[2])[0])] };
  }

  function onLine(values, latency, at, formula, need) {
    if (new Set(values).size < 2) {
      return refuse(formula, `a line needs two measured points; give ${need}`);
    }
    const low = Math.min(...values);
    const high = Math.max(...values);
    if (at > REACH * high || at < low / REACH) {
      return refuse(formula, `${short(at)} is more than 2 times beyond what was measured ` +
        `(${short(low)} to ${short(high)}); measure nearer to it`);
    }
    const found = alongLine(values, latency, at);
    return found[1] <= 0 ? refuse(formula, ZERO) : { formula, latency: found };
  }

  function alike(row) {
    const known = row.map((o) => o.kind).filter(Boolean).pop() ?? null;
    const found = [];
    for (const o of [...row].reverse()) {
      if (o.kind !== known && o.kind !== null) break;
      found.unshift(o);
    }
    return found;
  }

  function batchOnCpu(point, batch) {
    const below = point.batches.filter((o) => o.at < batch);
    const row = below.length ? below : point.batches;
    const points = alike(row).slice(-POINTS);
    if (points.length < 2 && row.length >= 2) {
      const [before, last] = row.slice(-2);
      return refuse(BATCH, `other kernels took over between batch ${before.at} (${before.kind}) ` +
        `and ${last.at} (${last.kind}); measure nearer to it`);
    }
    return onLine(points.map((o) => o.at), points.map((o) => o.latency), batch, BATCH,
      "--batch 1,2,4");
  }

  function batchOnDevice(point, batch) {
    const row = point.batches.filter((o) => o.kernel);
    const values = row.map((o) => o.at);
    if (new Set(values).size < 2) {
      return refuse(DEVICE_BATCH, "a line needs two measured points; give --batch 1,2,4");
    }
    if (batch > REACH * Math.max(...values)) {
      return refuse(DEVICE_BATCH, `batch ${batch} is more than 2 times beyond what was measured; ` +
        "measure nearer to it");
    }
    return between(point, alongLine(values, row.map((o) => o.kernel), batch), DEVICE_BATCH);
  }

  function widthOnDevice(point, width) {
    const kernel = point.kernel[0];
    const ends = [kernel, kernel * width, kernel * width ** 2].sort((a, b) => a - b);
    return between(point, [kernel * width, ends[0], ends[2]], DEVICE_WIDTH);
  }

  function scaled(point, ratio, formula) {
    if (ratio[1] <= 0) return refuse(formula, ZERO);
    return { formula, latency: product(point.latency, ratio), factor: inverse(ratio) };
  }

  // One change from one point, as analysis/whatif.py answers it.
  function answer(point, change, shown = {}) {
    const found = known(point, change) ?? unknown(point, change);
    if (found.reason) return found;
    const errors = shown[found.formula];
    if (errors && errors.refused) return { ...refuse(found.formula, errors.refused), errors };
    return { ...found, errors, factor: found.factor ?? quotient(point.latency, found.latency) };
  }

  function known(point, change) {
    if ((change.hostSpeed ?? 1) !== 1 || (change.deviceSpeed ?? 1) !== 1) return null;
    if (change.graphs) {
      return point.captured ? { formula: MEASURED, latency: point.captured } : null;
    }
    const axis = ["batch", "depth", "width"].find((name) => change[name]);
    if (!axis) return null;
    const at = axis === "batch" ? change.batch : point[axis] * change[axis];
    const there = point[AXES[axis]].find((o) => o.at === at);
    return there ? { formula: MEASURED, latency: there.latency } : null;
  }

  function unknown(point, change) {
    if (!point.onCpu) {
      if (point.refusal) return refuse(UNIFORM, point.refusal);
      if (change.batch) return batchOnDevice(point, change.batch);
      if (change.width) return widthOnDevice(point, change.width);
      if (change.graphs && point.graphs) return refuse(UNIFORM, point.graphs);
      return { formula: UNIFORM, latency: pointLatency(point, change) };
    }
    if (change.batch) return batchOnCpu(point, change.batch);
    if (change.depth) {
      if (point.streams) return refuse(DEPTH, point.streams);
      return onLine(point.depths.map((o) => o.at), point.depths.map((o) => o.latency),
        point.depth * change.depth, DEPTH, "two values of --depth");
    }
    const formula = change.hostSpeed ? HOST : WIDTH;
    if (point.unshared) return refuse(formula, point.unshared);
    if (change.hostSpeed) return scaled(point, fasterHost(point.share, change.hostSpeed), HOST);
    if (point.streams) return refuse(WIDTH, point.streams);
    if (point.matrix === null) {
      return refuse(WIDTH, "how much of the kernels is matrix products is not known");
    }
    return scaled(point, wider(point.share, point.matrix, change.width), WIDTH);
  }

  window.frameworktax = { ...window.frameworktax, answer, formulas: { propagate, product, quotient,
    fasterHost, wider, line, alongLine, uniform, run, pointLatency } };
})();
