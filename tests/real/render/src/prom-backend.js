// A replacement of the Grafana server's Prometheus query path (a Go program in the real thing).
// It answers what the front end POSTs to /api/ds/query, by asking a real Prometheus over HTTP.
// Only this file re-implements server behaviour: step/interval arithmetic, $__interval/$__range/$__rate_interval,
// legend text, and the shape of the returned data frames.
const SAFE = 11000;
const unit = { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5, y: 31536e6 };
export function parseDur(s) {
  if (s == null || s === '') return 0;
  if (/^\d+(\.\d+)?$/.test(s)) return Number(s) * 1000;
  let ms = 0,
    ok = false;
  String(s)
    .replace(/^[<>]/, '')
    .replace(/(\d+(?:\.\d+)?)(ms|[smhdwy])/g, (_, n, u) => ((ms += n * unit[u]), (ok = true), ''));
  if (!ok) throw new Error('bad duration ' + s);
  return ms;
}
// the server rounds a raw interval to "nice" steps
export function roundInterval(i) {
  const t = [
    [10, 1],
    [15, 10],
    [35, 20],
    [75, 50],
    [150, 100],
    [350, 200],
    [750, 500],
    [1500, 1e3],
    [3500, 2e3],
    [7500, 5e3],
    [12500, 1e4],
    [17500, 15e3],
    [25e3, 2e4],
    [45e3, 3e4],
    [9e4, 6e4],
    [21e4, 12e4],
    [45e4, 3e5],
    [75e4, 6e5],
    [105e4, 9e5],
    [15e5, 12e5],
    [27e5, 18e5],
    [54e5, 36e5],
    [9e6, 72e5],
    [162e5, 108e5],
    [324e5, 216e5],
    [864e5, 432e5],
    [6048e5, 864e5],
    [18144e5, 6048e5],
    [36288e5, 2592e6],
  ];
  for (const [lt, v] of t) if (i <= lt) return v;
  return 31536e6;
}
export const fmtDur = (ms) => (ms % 1000 === 0 ? ms / 1000 + 's' : ms + 'ms');
const isVar = (s) => /^\$(?:__(rate_)?interval(_ms)?|\{__(rate_)?interval(_ms)?\})$/.test(s || '');
const isRateVar = (s) => s === '$__rate_interval' || s === '${__rate_interval}';
const rateInterval = (qi, scrape) => {
  const s = parseDur(scrape || '15s');
  return Math.max(qi + s, 4 * s);
};

export function planQuery(q, from, to, dsInterval) {
  const orig = q.interval || '';
  const qInt = isVar(orig) ? '' : orig;
  // min interval: query min step, else the interval the front end computed, else the data source's scrape interval, else 15s
  const min =
    qInt && qInt !== '0s'
      ? parseDur(qInt)
      : q.intervalMs
        ? q.intervalMs
        : dsInterval
          ? parseDur(dsInterval)
          : 15000;
  const raw = (to - from) / (q.maxDataPoints || 100);
  const calc = raw < min ? min : roundInterval(raw);
  const safe = roundInterval((to - from) / SAFE);
  const adj = Math.max(calc, safe);
  const step = isRateVar(orig) ? rateInterval(adj, dsInterval) : adj * (q.intervalFactor || 1);
  const rate = isRateVar(orig)
    ? step
    : rateInterval(q.intervalMs || step, isVar(orig) ? fmtDur(step) : orig || dsInterval);
  const rangeMs = to - from,
    rangeS = Math.round(rangeMs / 1000);
  const sub = {
    __interval_ms: step,
    __interval: fmtDur(step),
    __range_ms: rangeMs,
    __range_s: rangeS,
    __range: rangeS + 's',
    __rate_interval_ms: rate,
    __rate_interval: fmtDur(rate),
  };
  const expr = q.expr.replace(
    /\$(?:\{(__\w+)\}|(__(?:rate_interval_ms|rate_interval|interval_ms|interval|range_ms|range_s|range)))/g,
    (m, a, b) => sub[a || b] ?? m,
  );
  return { step, rate, expr };
}
function metricName(l) {
  const rest = Object.keys(l)
    .filter((k) => k !== '__name__')
    .sort();
  if (!rest.length) return l.__name__ || '{}';
  return `${l.__name__ || ''}{${rest.map((k) => `${k}=${JSON.stringify(l[k])}`).join(', ')}}`;
}
function legend(fmt, labels, expr) {
  let s = metricName(labels);
  if (fmt === '__auto') {
    if (Object.keys(labels).length) s = '';
  } else if (fmt) s = fmt.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, n) => labels[n.trim()] ?? '');
  return s === '{}' ? expr : s;
}
const num = (s) => (s === 'NaN' ? NaN : s === '+Inf' ? Infinity : s === '-Inf' ? -Infinity : Number(s));
// JSON cannot hold NaN/Inf; the wire format carries them as "entities"
function packValues(vals) {
  const e = { NaN: [], Inf: [], NegInf: [] };
  const out = vals.map((v, i) => {
    if (Number.isNaN(v)) return (e.NaN.push(i), null);
    if (v === Infinity) return (e.Inf.push(i), null);
    if (v === -Infinity) return (e.NegInf.push(i), null);
    return v;
  });
  return [
    out,
    e.NaN.length || e.Inf.length || e.NegInf.length
      ? Object.fromEntries(Object.entries(e).filter(([, a]) => a.length))
      : null,
  ];
}
export const executed = [];
export async function answerDsQuery(body, promUrl, dsInterval) {
  const results = {};
  for (const q of body.queries) {
    if (q.hide) continue;
    const from = Number(body.from),
      to = Number(body.to);
    const frames = [];
    let error,
      status = 200;
    try {
      const { step, expr } = planQuery(q, from, to, dsInterval);
      const kinds = [];
      if (q.instant) kinds.push('instant');
      if (q.range || !q.instant) kinds.push('range');
      for (const kind of kinds) {
        const p = new URLSearchParams({ query: expr });
        if (kind === 'instant') p.set('time', to / 1000);
        else {
          p.set('start', (Math.floor(from / step) * step) / 1000);
          p.set('end', (Math.floor(to / step) * step) / 1000);
          p.set('step', step / 1000);
        }
        const res = await fetch(`${promUrl}/api/v1/query${kind === 'range' ? '_range' : ''}`, {
          method: 'POST',
          body: p,
        });
        const j = await res.json();
        executed.push({
          refId: q.refId,
          kind,
          expr,
          stepMs: step,
          status: j.status,
          error: j.error,
          series: j.data?.result?.length,
          warnings: j.warnings,
        });
        if (j.status !== 'success') {
          status = res.status;
          throw new Error(`${j.errorType}: ${j.error}`);
        }
        const rt = j.data.resultType;
        const list = rt === 'scalar' ? [{ metric: {}, value: j.data.result }] : j.data.result;
        list.forEach((s, i) => {
          const pts = s.values || [s.value];
          const name = legend(q.legendFormat, s.metric, expr);
          const [vals, ent] = packValues(pts.map((x) => num(x[1])));
          frames.push({
            schema: {
              refId: q.refId,
              meta: {
                type: rt === 'matrix' ? 'timeseries-multi' : 'numeric-multi',
                custom: { resultType: rt },
                ...(i === 0 ? { executedQueryString: `Expr: ${expr}\nStep: ${fmtDur(step)}` } : {}),
              },
              fields: [
                { name: 'Time', type: 'time', typeInfo: { frame: 'time.Time' }, config: { interval: step } },
                {
                  name: s.metric.__name__ || 'Value',
                  type: 'number',
                  typeInfo: { frame: 'float64' },
                  labels: s.metric,
                  config: name ? { displayNameFromDS: name } : {},
                },
              ],
            },
            data: {
              values: [pts.map((x) => Math.round(x[0] * 1000)), vals],
              ...(ent ? { entities: [null, ent] } : {}),
            },
          });
        });
        if (!list.length)
          frames.push({
            schema: {
              refId: q.refId,
              meta: {
                custom: { resultType: rt },
                executedQueryString: `Expr: ${expr}\nStep: ${fmtDur(step)}`,
              },
              fields: [],
            },
            data: { values: [] },
          });
      }
    } catch (e) {
      error = e.message;
      if (status === 200) status = 500;
    }
    results[q.refId] = { status, frames, ...(error ? { error } : {}) };
  }
  return { results };
}
