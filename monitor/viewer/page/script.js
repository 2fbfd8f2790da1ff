// SPDX-License-Identifier: Apache-2.0
// The live page and the report: reads the lines of runs (monitor/README.md), from the server or from this file, and draws them.
// What runs say goes into the page as text alone.
'use strict';
(() => {
const $ = id => document.getElementById(id);
const COLOURS = ['#3f7cf0', '#e8590c', '#2f9e5b', '#c2449a', '#8a63d2', '#0c9aa8', '#b98a00', '#e5484d', '#6b7f99', '#7a9b1e'];
const SVG = 'http://www.w3.org/2000/svg';
const embedded = [...document.querySelectorAll('script[type="application/x-ndjson"]')];

// An element with properties, attributes (aria-, data-, role) and children; strings become text.
function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.includes('-') || key === 'role') element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}
function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

// --- numbers ----------------------------------------------------------------------------------------

function number(value) {
  if (typeof value === 'number') return value;
  return value === 'Infinity' ? Infinity : value === '-Infinity' ? -Infinity : NaN;
}
function figure(v) {
  if (v === undefined || v === null) return '–';
  if (!Number.isFinite(v)) return Number.isNaN(v) ? 'NaN' : v > 0 ? '∞' : '−∞';
  const size = Math.abs(v);
  if (Number.isInteger(v) && size < 1e7) return String(v);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? v.toExponential(3) : String(+v.toPrecision(5));
}
function bytes(v) {
  if (!Number.isFinite(v)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let k = 0;
  for (; Math.abs(v) >= 1024 && k < 4; k++) v /= 1024;
  return `${k ? v.toFixed(v < 10 ? 2 : v < 100 ? 1 : 0) : v} ${units[k]}`;
}
function duration(s) {
  if (!Number.isFinite(s) || s < 0) return '–';
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const m = Math.floor(s / 60);
  return m < 60 ? `${m} m ${Math.floor(s % 60)} s` : m < 1440 ? `${Math.floor(m / 60)} h ${m % 60} m` : `${Math.floor(m / 1440)} d ${Math.floor(m / 60) % 24} h`;
}
// On axes: whole numbers of the unit that a tick has.
function shortTime(s) {
  if (Math.abs(s) < 60) return `${+s.toPrecision(3)} s`;
  const units = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]], k = units.findIndex(([, size]) => Math.abs(s) >= size);
  const whole = Math.floor(s / units[k][1]), rest = Math.round((s - whole * units[k][1]) / (units[k + 1] || units[k])[1]);
  return `${whole} ${units[k][0]}${rest ? ` ${rest} ${units[k + 1][0]}` : ''}`;
}
function clock(time) { return Number.isFinite(time) && Math.abs(time) < 8e12 ? new Date(time * 1000).toLocaleTimeString() : '–'; }
function list(value) { return Array.isArray(value) ? value : []; }
function text(value) { return typeof value === 'string' ? value : value === undefined || value === null ? '' : String(value); }

// --- what a run says ---------------------------------------------------------------------------------

class Series {
  constructor(name, process, label) {
    Object.assign(this, { name, process, label, step: [], time: [], epoch: [], value: [], version: 0, views: new Map() });
  }
  add(step, time, epoch, value) {
    this.step.push(step); this.time.push(time); this.epoch.push(epoch); this.value.push(value);
    this.version++;
  }
  // x and y in ascending x, and y smoothed: kept until a point or a setting changes
  view(axis, smoothing) {
    const key = `${axis} ${smoothing}`, kept = this.views.get(key);
    if (kept && kept.version === this.version) return kept;
    let x = this[axis], y = this.value, sorted = true;
    if (axis === 'time') { const from = this.begin(); x = x.map(t => t - from); }
    for (let k = 1; k < x.length && sorted; k++) sorted = !(x[k] < x[k - 1]);
    if (!sorted) {
      const order = x.map((_, k) => k).sort((a, b) => x[a] - x[b] || a - b);
      [x, y] = [order.map(k => x[k]), order.map(k => y[k])];
    }
    if (this.views.size > 3) this.views.clear();
    const view = { version: this.version, x, y, smooth: smoothing > 0 ? smooth(y, smoothing) : y };
    this.views.set(key, view);
    return view;
  }
}
// As TensorBoard: an exponential mean that is not drawn to its beginning at 0.
function smooth(y, weight) {
  const out = new Array(y.length);
  let last = 0, seen = 0;
  for (let k = 0; k < y.length; k++) {
    if (!Number.isFinite(y[k])) { out[k] = y[k]; continue; }
    last = last * weight + (1 - weight) * y[k];
    out[k] = last / (1 - Math.pow(weight, ++seen));
  }
  return out;
}

class Run {
  constructor(name, colour) {
    Object.assign(this, { name, colour, on: false, version: 0, processes: new Map(), series: new Map(), ranks: new Map(), lines: [], histograms: new Map(),
      graph: null, media: new Map(), about: {}, progress: null, whole: {}, latest: new Map(), started: NaN, heard: 0, modified: 0, badLines: 0, dead: new Set() });
  }
  process(k) {
    if (!this.processes.has(k)) this.processes.set(k, { number: k, next: 0, bytes: 0, gone: false, modified: 0, end: null, about: {}, system: null, heard: 0 });
    return this.processes.get(k);
  }
  reset() {
    const { on, modified } = this;
    Object.assign(this, new Run(this.name, this.colour), { on, modified });
  }
  lineOf(name, process, label) {
    const key = JSON.stringify([name, process, label]);
    let series = this.series.get(key);
    if (!series) {
      series = new Series(name, process, label);
      series.begin = () => this.started;
      this.series.set(key, series);
    }
    return series;
  }
  feed(k, lines) {
    const process = this.process(k);
    for (const line of lines.split('\n')) {
      if (!line) continue;
      try {
        const record = JSON.parse(line);
        if (!record || typeof record !== 'object') throw 0;
        this.take(process, record);
      } catch { this.badLines++; }
    }
    this.version++;
  }
  take(process, r) {
    const time = number(r.time);
    if (Number.isFinite(time)) {
      process.heard = Math.max(process.heard, time);
      this.heard = Math.max(this.heard, time);
      if (!(time >= this.started)) this.started = time;
    }
    const take = this['take_' + text(r.kind)];
    if (take) take.call(this, process, r, time);
  }
  take_run(process, r) {
    process.about = r;
    if (process.number === Math.min(...this.processes.keys())) this.about = r;
    if (number(r.started) <= this.started) this.started = r.started;
    for (const told of list(r.ranks)) if (told) Object.assign(this.rank(number(told.rank), process.number), { device: text(told.device), name: text(told.name) });
  }
  rank(k, process) {
    if (!this.ranks.has(k)) this.ranks.set(k, { rank: k, process, time: [], interval: [], computing: [], waiting: [], reducing: [], state: '' });
    return this.ranks.get(k);
  }
  epochOf(r) {
    const epoch = number(r.epoch), p = this.progress;
    if (r.at === 'epoch') return epoch + 1;
    if (!p || !(p.batches > 0) || p.epoch !== epoch) return epoch;
    return epoch + Math.min(Math.max((number(r.step) - (p.step - p.batch)) / p.batches, 0), 1);
  }
  take_scalars(process, r, time) {
    for (const [name, told] of Object.entries(r.values || {})) {
      const value = number(told), shown = r.at === 'epoch' ? `epoch/${name}` : name;
      this.lineOf(shown, process.number, '').add(number(r.step), time, this.epochOf(r), value);
      this.latest.set(shown, value);
    }
  }
  take_progress(process, r) {
    if (this.progress && process.number !== this.progress.process) return;
    this.progress = { process: process.number };
    for (const key of ['epoch', 'epochs', 'batch', 'batches', 'step', 'eta_s', 'seconds']) this.progress[key] = number(r[key]);
  }
  take_ranks(process, r, time) {
    this.whole = { anchor: r.anchor, windows: r.windows, window: r.window, drift: r.drift };
    for (const told of list(r.ranks)) {
      if (!told) continue;
      const rank = this.rank(number(told.rank), process.number);
      rank.process = process.number;
      rank.state = text(told.state);
      for (const key of ['share', 'samples_per_s', 'samples', 'steps']) rank[key] = number(told[key]);
      const parts = ['computing', 'waiting', 'reducing'].map(key => Math.max(0, number(told[key + '_s']) || 0));
      rank.time.push(time);
      rank.interval.push(number(told.interval_s) || parts[0] + parts[1] + parts[2] || 1);
      ['computing', 'waiting', 'reducing'].forEach((key, k) => rank[key].push(parts[k]));
      const step = this.progress ? this.progress.step : rank.steps;
      for (const key of ['share', 'samples_per_s'])
        if (Number.isFinite(rank[key])) this.lineOf(`ranks/${key}`, process.number, `rank ${rank.rank}`).add(step, time, this.progress ? this.progress.epoch : NaN, rank[key]);
    }
  }
  take_system(process, r, time) {
    process.system = r;
    const step = this.progress ? this.progress.step : NaN, epoch = this.progress ? this.progress.epoch : NaN;
    const add = (name, value, label) => { if (Number.isFinite(number(value))) this.lineOf(`system/${name}`, process.number, label).add(step, time, epoch, number(value)); };
    for (const key of ['memory_bytes', 'cpu_percent', 'temperature_c', 'power_w']) add(key, r[key], `process ${process.number}`);
    for (const [device, value] of Object.entries(r.trek_bytes || {})) add('trek_bytes', value, `process ${process.number} ${device}`);
    for (const d of list(r.devices))
      for (const key of ['memory_bytes', 'temperature_c', 'power_w', 'utilization_percent']) if (d) add(`device_${key}`, d[key], `process ${process.number} ${text(d.device)}`);
  }
  take_histogram(process, r) {
    const key = JSON.stringify([text(r.of), text(r.name), process.number]);
    const edges = list(r.edges).map(number), counts = list(r.counts).map(number);
    if (edges.length !== counts.length + 1 || !counts.length) return;
    if (!this.histograms.has(key)) this.histograms.set(key, { of: text(r.of), name: text(r.name), process: process.number, records: [] });
    const records = this.histograms.get(key).records;
    records.push({ step: number(r.step), edges, counts, min: number(r.min), max: number(r.max), mean: number(r.mean), std: number(r.std), nonfinite: number(r.nonfinite) });
    if (records.length > 200) records.shift();
  }
  take_graph(process, r) {
    if (process.number !== 0 && this.graph) return;
    this.graph = { svg: text(r.svg), step: number(r.step), steps: number(r.steps), nodes: list(r.nodes).filter(Boolean), links: list(r.links).filter(Boolean) };
  }
  // Of each name what was told at each step; of many the oldest go.
  medium(kind, r, what) {
    const key = JSON.stringify([kind, text(r.name)]);
    if (!this.media.has(key)) this.media.set(key, { name: text(r.name), all: [], at: null });
    const all = this.media.get(key).all;
    all.push({ step: number(r.step), ...what });
    if (all.length > 500) all.shift();
  }
  take_text(process, r) { this.medium('text', r, { text: text(r.text) }); }
  take_image(process, r) {
    if (/^[A-Za-z0-9+/]+=*$/.test(text(r.png))) this.medium('image', r, { png: r.png, width: number(r.width), height: number(r.height) });
  }
  line(time, process, level, what, who) {
    this.lines.push({ time, process: process.number, level, text: what, who });
    if (this.lines.length > 5000) this.lines.splice(0, 1000);
    this.linesVersion = (this.linesVersion || 0) + 1;
  }
  take_log(process, r, time) {
    const level = ['debug', 'info', 'warning', 'error'].includes(r.level) ? r.level : 'info';
    this.line(time, process, level, text(r.text), r.rank === undefined ? `process ${process.number}` : `rank ${text(r.rank)}`);
  }
  take_event(process, r, time) { this.line(time, process, 'event', [text(r.name), text(r.text)].filter(Boolean).join(': '), `process ${process.number}`); }
  take_end(process, r, time) {
    process.end = { status: ['done', 'failed', 'stopped'].includes(r.status) ? r.status : 'done', error: text(r.error) };
    this.line(time, process, process.end.error ? 'error' : 'event', process.end.error || `ended: ${process.end.status}`, `process ${process.number}`);
  }
  // A file without an end whose process is gone has died; one that is silent for 30 s may have.
  stateOf(process) {
    if (process.end) return process.end.status;
    if (process.gone) return 'died';
    return source.live && source.now - process.modified > 30 ? 'silent' : 'running';
  }
  state() {
    const states = [...this.processes.values()].map(p => this.stateOf(p));
    const first = this.processes.get(0);
    if (first && first.end) return first.end.status;
    return ['failed', 'died', 'silent', 'running', 'stopped', 'done'].find(s => states.includes(s)) || 'waiting';
  }
  command() {
    const quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
    return [text(this.about.program), ...list(this.about.arguments).map(text)].filter((word, k) => k || word).map(quoted).join(' ');
  }
  // What its arguments say: --name value, --name=value, --flag; what stands alone is numbered.
  configuration() {
    const words = list(this.about.arguments).map(text), told = new Map();
    for (let k = 0, alone = 0; k < words.length; k++) {
      const named = /^--?([A-Za-z][\w.-]*)(?:=(.*))?$/s.exec(words[k]);
      if (!named) told.set(`argument ${++alone}`, words[k]);
      else if (named[2] !== undefined) told.set(named[1], named[2]);
      else told.set(named[1], k + 1 < words.length && !/^--?[A-Za-z]/.test(words[k + 1]) ? words[++k] : 'yes');
    }
    if (this.ranks.size) told.set('ranks of the job', String(this.ranks.size));
    return told;
  }
  error() { return [...this.processes.values()].map(p => p.end && p.end.error).find(Boolean) || ''; }
  stateOfRank(rank) {
    const process = this.processes.get(rank.process), of = process ? this.stateOf(process) : '';
    if (rank.state === 'lost' || of === 'died') return 'lost';
    return ['done', 'failed', 'stopped', 'silent'].includes(of) ? of : ['computing', 'waiting', 'reducing', 'idle'].includes(rank.state) ? rank.state : 'running';
  }
}

const runs = new Map();
let colours = 0;
function runOf(name) {
  if (!runs.has(name)) runs.set(name, new Run(name, COLOURS[colours++ % COLOURS.length]));
  return runs.get(name);
}
const shown = () => [...runs.values()].filter(run => run.on);

// --- where lines come from ---------------------------------------------------------------------------

const source = { live: !embedded.length, now: Date.now() / 1000, chosen: false, ready: false, polls: 0, lost: false };

function readEmbedded() {
  for (const element of embedded) {
    const run = runOf(element.dataset.run), k = Number(element.dataset.process);
    Object.assign(run.process(k), { gone: element.dataset.gone === '1', modified: Number(element.dataset.modified) });
    run.on = true;
    run.feed(k, element.textContent);
    element.textContent = '';
  }
}
async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
async function pollRun(run) {
  const told = await json(`api/runs/${run.name}/processes`);
  source.now = told.now;
  for (const p of told.processes) {
    if (p.bytes < run.process(p.process).next) run.reset(); // another run under its name
    const process = run.process(p.process);
    Object.assign(process, { gone: p.gone, modified: p.modified });
    while (process.next < p.bytes) {
      const answer = await fetch(`api/runs/${run.name}/process-${p.process}.jsonl?from=${process.next}`);
      const next = Number(answer.headers.get('X-Trek-Next'));
      if (!answer.ok || !(next > process.next)) break;
      process.next = next;
      run.feed(p.process, await answer.text());
    }
  }
}
async function poll() {
  try {
    const told = await json('api/runs');
    source.now = told.now;
    for (const r of told.runs) runOf(r.name).modified = r.modified;
    if (!source.chosen && told.runs.length) {
      source.chosen = true;
      const named = decodeURIComponent(location.hash.slice(1)).split(',').filter(name => runs.has(name));
      for (const name of named.length ? named : [told.runs.reduce((a, b) => b.modified > a.modified ? b : a).name]) runs.get(name).on = true;
    }
    await Promise.all(shown().map(pollRun));
    source.lost = false;
  } catch { source.lost = true; }
  source.ready = true;
  source.polls++;
  changed();
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

// --- charts ------------------------------------------------------------------------------------------

const settings = { axis: 'step', smoothing: 0, log: false, tab: 'charts', heat: 'time' };
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function canvasOf(canvas) {
  const w = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
  const [pw, ph] = [Math.round(w * scale), Math.round(height * scale)];
  if (canvas.width !== pw || canvas.height !== ph) { canvas.width = pw; canvas.height = ph; }
  const ctx = canvas.getContext('2d');
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, w, height);
  return { ctx, w, h: height };
}
function lower(xs, x) { // first index with xs[k] >= x
  let a = 0, b = xs.length;
  while (a < b) { const m = (a + b) >> 1; if (xs[m] < x) a = m + 1; else b = m; }
  return a;
}
function ticks(from, to, most) {
  const raw = (to - from) / Math.max(most, 1), base = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(k => k * base).find(s => s >= raw) || base;
  const out = [];
  for (let k = Math.ceil(from / step); k * step <= to + step * 1e-9 && out.length < 30; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

// Of bytes: round numbers of KiB, MiB, ...
function byteTicks(from, to, most) {
  let unit = 1;
  while (unit < 2 ** 40 && Math.max(Math.abs(from), Math.abs(to)) >= unit * 1024) unit *= 1024;
  return ticks(from / unit, to / unit, most).map(v => v * unit);
}
// Of seconds: round numbers of seconds, minutes, hours and days.
function timeTicks(from, to, most) {
  const raw = (to - from) / Math.max(most, 1), step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].find(s => s >= raw);
  if (raw <= 1) return ticks(from, to, most);
  if (!step) return ticks(from / 86400, to / 86400, most).map(v => v * 86400);
  const out = [];
  for (let k = Math.ceil(from / step); k * step <= to && out.length < 30; k++) out.push(k * step);
  return out;
}

class Chart {
  constructor(name) {
    this.name = name;
    this.lines = [];
    this.range = null; // of x, when zoomed
    this.cursor = null; // x
    this.canvas = h('canvas', { 'aria-hidden': 'true' });
    this.tip = h('div', { className: 'tip', hidden: true, 'aria-hidden': 'true' });
    this.band = h('div', { className: 'drag', hidden: true });
    this.plot = h('div', { className: 'plot', tabIndex: 0, role: 'slider', 'aria-label': name, 'aria-valuemin': 0, 'aria-valuemax': 0, 'aria-valuenow': 0,
      'aria-valuetext': '' }, this.canvas, this.band, this.tip);
    this.last = h('b', { textContent: '–' });
    this.wide = h('button', { type: 'button', textContent: '⤢', 'aria-label': `Enlarge ${name}`, 'aria-pressed': 'false' });
    this.legend = h('div', { className: 'legend' });
    this.title = name.includes('/') ? name.slice(name.indexOf('/') + 1) : name;
    this.element = h('figure', { className: 'chart', 'data-name': name }, h('figcaption', {}, h('h4', { textContent: this.title, title: name }), this.last, this.wide), this.plot, this.legend);
    this.listen();
  }
  listen() {
    let from = null;
    const at = event => event.clientX - this.canvas.getBoundingClientRect().left;
    this.plot.addEventListener('pointerdown', event => { if (event.button === 0) { from = at(event); if (event.pointerType !== 'touch') this.plot.setPointerCapture(event.pointerId); } });
    this.plot.addEventListener('pointermove', event => {
      const x = at(event);
      this.point(this.toX(x));
      this.band.hidden = from === null || Math.abs(x - from) < 4;
      if (!this.band.hidden) Object.assign(this.band.style, { left: `${Math.min(x, from)}px`, width: `${Math.abs(x - from)}px` });
    });
    this.plot.addEventListener('pointerup', event => {
      const x = at(event);
      if (from !== null && Math.abs(x - from) >= 4) this.zoom(this.toX(Math.min(x, from)), this.toX(Math.max(x, from)));
      from = null;
      this.band.hidden = true;
    });
    this.plot.addEventListener('pointercancel', () => { from = null; this.band.hidden = true; });
    this.plot.addEventListener('pointerleave', () => { if (document.activeElement !== this.plot) this.point(null); });
    this.plot.addEventListener('blur', () => this.point(null));
    this.plot.addEventListener('dblclick', () => this.zoom());
    this.plot.addEventListener('keydown', event => this.key(event));
    this.wide.addEventListener('click', () => {
      this.wide.setAttribute('aria-pressed', String(this.element.classList.toggle('wide')));
      this.draw();
    });
  }
  key(event) {
    const first = this.views && this.views.find(v => v.x.length), [a, b] = this.domain || [0, 1];
    if (!first || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.cursor === null ? Math.min(first.x.length - 1, lower(first.x, b)) : Math.min(first.x.length - 1, lower(first.x, this.cursor));
    const stride = Math.max(1, Math.round((lower(first.x, b) - lower(first.x, a)) / 200)) * (event.shiftKey ? 10 : 1);
    const move = { ArrowLeft: here - stride, ArrowDown: here - stride, ArrowRight: here + stride, ArrowUp: here + stride, Home: lower(first.x, a), End: lower(first.x, b) }[event.key];
    const middle = this.cursor === null ? (a + b) / 2 : this.cursor;
    if (move !== undefined) this.point(first.x[Math.max(0, Math.min(first.x.length - 1, move))]);
    else if (event.key === '+' || event.key === '=') this.zoom(middle - (middle - a) / 2, middle + (b - middle) / 2);
    else if (event.key === '-') this.zoom(middle - (middle - a) * 2, middle + (b - middle) * 2);
    else if (event.key === 'Escape' || event.key === '0') this.zoom();
    else return;
    event.preventDefault();
  }
  zoom(from, to) { this.range = to > from ? [from, to] : null; this.draw(); }
  toX(px) { const [a, b] = this.domain || [0, 1]; return a + (px - this.box.l) / (this.box.r - this.box.l || 1) * (b - a); }
  set(lines) {
    const key = lines.map(l => [l.label, l.colour, l.series.name].join()).join(';');
    this.lines = lines;
    const last = lines.length ? lines[0].series.value[lines[0].series.value.length - 1] : undefined;
    setText(this.last, lines.length === 1 ? figure(last) : '');
    if (key !== this.key_) {
      this.key_ = key;
      this.legend.replaceChildren(...(lines.length > 1 ? lines : []).slice(0, 24).map(line => {
        const dot = h('i', { className: line.dashed ? 'dot dashed' : 'dot' });
        dot.style.background = line.dashed ? '' : line.colour;
        dot.style.borderColor = line.colour;
        return h('span', {}, dot, line.label);
      }));
    }
    const version = `${key} ${lines.map(l => l.series.version).join()}`;
    if (version !== this.version) { this.version = version; this.draw(); }
  }
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }
  // Where x and y are from and to.
  extent() {
    this.views = this.lines.map(l => l.series.view(settings.axis, settings.smoothing));
    let a = Infinity, b = -Infinity, low = Infinity, high = -Infinity;
    for (const v of this.views)
      for (const x of [v.x[0], v.x[v.x.length - 1], v.x.find(Number.isFinite)]) if (Number.isFinite(x)) { a = Math.min(a, x); b = Math.max(b, x); }
    if (!(a <= b)) [a, b] = [0, 1];
    if (a === b) [a, b] = [a - 0.5, b + 0.5];
    if (this.range) [a, b] = this.range;
    this.domain = [a, b];
    for (const v of this.views)
      for (let k = lower(v.x, a), end = Math.min(v.x.length, lower(v.x, b) + 1); k < end; k++) {
        const y = v.y[k];
        if (Number.isFinite(y) && (!settings.log || y > 0)) { if (y < low) low = y; if (y > high) high = y; }
      }
    if (!(low <= high)) [low, high] = settings.log ? [0.1, 1] : [0, 1];
    if (settings.log) {
      [low, high] = [Math.log10(low), Math.log10(high)];
    }
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.1 || 0.5;
    return [a, b, low - margin, high + margin];
  }
  paint() {
    if (!this.canvas.isConnected || !this.canvas.clientWidth) return;
    const { ctx, w, h: height } = canvasOf(this.canvas), [a, b, low, high] = this.extent();
    const box = this.box = { l: 52, r: w - 8, t: 6, b: height - 24 };
    const X = x => box.l + (x - a) / (b - a) * (box.r - box.l);
    const Y = y => box.b - ((settings.log ? Math.log10(y) : y) - low) / (high - low) * (box.b - box.t);
    this.axes(ctx, box, X, [a, b, low, high]);
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.l, 0, box.r - box.l, box.b + 1);
    ctx.clip();
    this.views.forEach((v, k) => {
      const line = this.lines[k];
      ctx.strokeStyle = ctx.fillStyle = line.colour;
      ctx.setLineDash(line.dashed ? [5, 3] : []);
      if (v.smooth !== v.y) { ctx.globalAlpha = 0.25; ctx.lineWidth = 1; trace(ctx, v.x, v.y, a, b, X, Y); ctx.globalAlpha = 1; }
      ctx.lineWidth = 1.7;
      trace(ctx, v.x, v.smooth, a, b, X, Y);
    });
    ctx.restore();
    this.pointed(ctx, box, X, Y);
    this.say();
  }
  axes(ctx, box, X, [a, b, low, high]) {
    ctx.font = '11px system-ui, sans-serif';
    ctx.strokeStyle = css('--grid');
    ctx.fillStyle = css('--soft');
    ctx.lineWidth = 1;
    ctx.textAlign = 'right';
    ctx.textBaseline = 'middle';
    const byteAxis = this.name.endsWith('_bytes') || this.name.endsWith('trek_bytes');
    let values = (byteAxis && !settings.log ? byteTicks : ticks)(low, high, (box.b - box.t) / 38);
    if (settings.log && high - low >= 2) values = ticks(low, high, 6).filter(Number.isInteger);
    for (const v of values) {
      const y = box.b - (v - low) / (high - low) * (box.b - box.t), told = settings.log ? Math.pow(10, v) : v;
      ctx.beginPath(); ctx.moveTo(box.l, Math.round(y) + .5); ctx.lineTo(box.r, Math.round(y) + .5); ctx.stroke();
      ctx.fillText(byteAxis ? bytes(told).replace('iB', '') : short(told), box.l - 6, y);
    }
    ctx.textAlign = 'center';
    ctx.textBaseline = 'top';
    const across = (settings.axis === 'time' ? timeTicks : ticks)(a, b, (box.r - box.l) / 80).filter(x => settings.axis !== 'step' || Number.isInteger(x));
    for (const x of across) ctx.fillText(settings.axis === 'time' ? shortTime(x) : short(x), Math.max(box.l, Math.min(box.r - 12, X(x))), box.b + 7);
  }
  point(x) {
    if (x === this.cursor) return;
    this.cursor = x;
    this.draw();
  }
  // The nearest point of each line to the cursor.
  values() {
    if (this.cursor === null || !this.views) return [];
    return this.views.map((v, k) => {
      if (!v.x.length) return null;
      let i = Math.min(v.x.length - 1, lower(v.x, this.cursor));
      if (i > 0 && this.cursor - v.x[i - 1] < v.x[i] - this.cursor) i--;
      return { line: this.lines[k], x: v.x[i], y: v.y[i], smooth: v.smooth[i] };
    }).filter(Boolean);
  }
  pointed(ctx, box, X, Y) {
    const values = this.values();
    this.tip.hidden = !values.length;
    if (!values.length) return;
    const x = X(values[0].x);
    ctx.strokeStyle = css('--soft');
    ctx.setLineDash([3, 3]);
    ctx.beginPath(); ctx.moveTo(x, box.t); ctx.lineTo(x, box.b); ctx.stroke();
    ctx.setLineDash([]);
    for (const v of values) {
      if (!Number.isFinite(v.smooth)) continue;
      ctx.fillStyle = v.line.colour;
      ctx.beginPath(); ctx.arc(X(v.x), Y(v.smooth), 3.5, 0, 7); ctx.fill();
    }
    this.tip.replaceChildren(h('div', { className: 'soft', textContent: this.xText(values[0].x) }), ...values.slice(0, 12).map(v => {
      const dot = h('i', { className: 'dot' });
      dot.style.background = v.line.colour;
      return h('div', {}, dot, h('span', { className: 'what', textContent: v.line.label }), h('b', { textContent: figure(v.y) + (v.smooth !== v.y && Number.isFinite(v.y) ? ` (${figure(v.smooth)})` : '') }));
    }));
    const left = x + 12 + this.tip.offsetWidth > box.r ? x - 12 - this.tip.offsetWidth : x + 12;
    Object.assign(this.tip.style, { left: `${Math.max(0, left)}px`, top: '10px' });
  }
  xText(x) { return settings.axis === 'time' ? duration(x) : `${settings.axis} ${figure(x)}`; }
  say() {
    const values = this.values(), line = this.lines[0], [a, b] = this.domain;
    const v = line && line.series.value, end = line && this.views[0].x[this.views[0].x.length - 1];
    const said = values.length ? `${this.xText(values[0].x)}: ` + values.slice(0, 8).map(p => `${p.line.label} ${figure(p.y)}`).join(', ')
      : v && v.length ? `${this.lines.length > 1 ? `${this.lines.length} lines, ` : ''}last ${figure(v[v.length - 1])} at ${this.xText(end)}` : 'no points';
    this.plot.setAttribute('aria-valuemin', a);
    this.plot.setAttribute('aria-valuemax', b);
    this.plot.setAttribute('aria-valuenow', Math.max(a, Math.min(b, this.cursor === null ? b : this.cursor)));
    this.plot.setAttribute('aria-valuetext', said);
  }
}
function short(v) {
  const size = Math.abs(v);
  return size >= 1e6 || (size && size < 1e-3) ? v.toExponential(1).replace('e+', 'e') : size >= 1e4 ? `${+(v / 1e3).toPrecision(4)}k` : String(+v.toPrecision(4));
}
// A line through finite points, with gaps at the others; where several fall on a pixel, from the least to the greatest.
function trace(ctx, xs, ys, from, to, X, Y) {
  const i0 = Math.max(0, lower(xs, from) - 1), i1 = Math.min(xs.length, lower(xs, to) + 1);
  const fine = y => Number.isFinite(y) && (!settings.log || y > 0);
  const dense = i1 - i0 > 2 * (X(to) - X(from));
  let pen = false, column = NaN, low, high, last, start = NaN;
  const flush = () => {
    if (Number.isNaN(column) || last === undefined) return;
    if (low !== high || pen) { ctx.lineTo(column, Y(low)); ctx.lineTo(column, Y(high)); ctx.lineTo(column, Y(last)); }
  };
  ctx.beginPath();
  for (let k = i0; k < i1; k++) {
    const y = ys[k], x = X(xs[k]);
    if (!fine(y) || Number.isNaN(x)) { if (dense) flush(); column = NaN; pen = false; continue; }
    if (!dense) {
      if (pen) ctx.lineTo(x, Y(y));
      else { ctx.moveTo(x, Y(y)); if (!fine(ys[k + 1])) ctx.fillRect(x - 1.5, Y(y) - 1.5, 3, 3); }
      pen = true;
      continue;
    }
    const c = Math.floor(x);
    if (c !== column) {
      flush();
      if (!pen) { ctx.moveTo(c, Y(y)); pen = true; }
      column = c; low = high = y;
    }
    if (y < low) low = y;
    if (y > high) high = y;
    last = y;
  }
  if (dense) flush();
  ctx.stroke();
}

const charts = new Map(), groups = new Map();
function groupOf(name) { const at = name.indexOf('/'); return at > 0 ? name.slice(0, at) : 'training'; }
const ORDER = ['training', 'epoch'], LAST = ['ranks', 'system'];
function groupRank(name) { return ORDER.includes(name) ? ORDER.indexOf(name) : LAST.includes(name) ? 1000 + LAST.indexOf(name) : 100; }

// "epoch/evaluation_loss" is the evaluation's side of "epoch/loss": [chart, side]; a name without a side is training's.
function sideOf(name) {
  const at = name.indexOf('/') + 1, found = /^(train|training|val|valid|validation|test|eval|evaluation)[_. -](?=.)/i.exec(name.slice(at));
  return found ? [name.slice(0, at) + name.slice(at + found[0].length), found[1].toLowerCase()] : [name, ''];
}
// Which names are sides of one chart: those of which there are two.
function pairs(names) {
  const sides = new Map(), chart = new Map();
  for (const name of names) {
    const [base, side] = sideOf(name);
    sides.set(base, (sides.get(base) || new Set()).add(side));
  }
  for (const name of names) chart.set(name, sides.get(sideOf(name)[0]).size > 1 ? [...sideOf(name), true] : [name, '', false]);
  return chart;
}

function renderCharts() {
  const by = new Map(), wanted = $('find-chart').value.toLowerCase(), many = shown().length > 1;
  const chartOf = pairs(new Set(shown().flatMap(run => [...run.series.values()].map(s => s.name))));
  for (const run of shown()) {
    const own = new Map();
    for (const s of run.series.values()) own.set(s.name, (own.get(s.name) || 0) + 1);
    const seen = new Map();
    for (const s of run.series.values()) {
      const [name, side, paired] = chartOf.get(s.name);
      if (!by.has(name)) by.set(name, []);
      const k = seen.get(s.name) || 0;
      seen.set(s.name, k + 1);
      const dashed = !['', 'train', 'training'].includes(side);
      const label = [many ? run.name : '', s.label || (own.get(s.name) > 1 ? `process ${s.process}` : ''), paired ? side || 'training' : ''].filter(Boolean).join(' · ') || s.name;
      by.get(name).push({ series: s, label, dashed, colour: k === 0 ? run.colour : COLOURS[(COLOURS.indexOf(run.colour) + k * (many ? 3 : 1)) % COLOURS.length] });
    }
  }
  for (const [name, lines] of by) {
    lines.sort((x, y) => x.dashed - y.dashed);
    if (!charts.has(name)) charts.set(name, new Chart(name));
    const chart = charts.get(name), group = groupOf(name);
    if (!groups.has(group)) {
      const element = h('section', { className: 'group', 'data-group': group }, h('h3', { textContent: group }), h('div', { className: 'grid' }));
      groups.set(group, element);
      const after = [...$('charts').children].find(e => groupRank(e.dataset.group) > groupRank(group) || (groupRank(e.dataset.group) === groupRank(group) && e.dataset.group > group));
      $('charts').insertBefore(element, after || null);
    }
    if (!chart.element.isConnected) groups.get(group).lastChild.append(chart.element);
    chart.set(lines);
  }
  for (const [name, chart] of charts) chart.element.hidden = !by.has(name) || !name.toLowerCase().includes(wanted);
  for (const element of groups.values()) element.hidden = ![...element.lastChild.children].some(e => !e.hidden);
}
function redraw() { for (const chart of charts.values()) if (!chart.element.hidden) chart.draw(); }

// --- where runs stand --------------------------------------------------------------------------------

function badge(state) { return h('span', { className: `badge ${state}`, textContent: state }); }
function setBadge(element, state) {
  if (element.textContent === state) return;
  element.className = `badge ${state}`;
  element.textContent = state;
}
function facts(element, pairs) {
  pairs = pairs.filter(([, value]) => value !== undefined && value !== null && value !== '' && value !== '–');
  if (element.children.length !== pairs.length) element.replaceChildren(...pairs.map(() => h('div', {}, h('dt'), h('dd'))));
  pairs.forEach(([name, value], k) => { setText(element.children[k].firstChild, name); setText(element.children[k].lastChild, String(value)); });
}
// The elements of a list by key, made when they are new, taken away when they have gone.
function keep(parent, keys, make, update) {
  const have = new Map([...parent.children].map(e => [e.dataset.key, e]));
  keys.forEach(([key, item], k) => {
    let element = have.get(key);
    if (!element) { element = make(item); element.dataset.key = key; }
    have.delete(key);
    if (parent.children[k] !== element) parent.insertBefore(element, parent.children[k] || null);
    update(element, item);
  });
  for (const element of have.values()) element.remove();
}
function makeCard(run) {
  const bar = h('div');
  const dot = h('i', { className: 'dot' });
  dot.style.background = run.colour;
  return h('article', { className: 'card' }, h('header', {}, dot, h('h3', { textContent: run.name }), badge('waiting')),
    h('div', { className: 'progress', role: 'progressbar', 'aria-label': `Progress of ${run.name}`, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': 0 }, bar),
    h('dl', { className: 'facts' }), h('p', { className: 'error', hidden: true }),
    h('details', { className: 'called', hidden: true }, h('summary', { textContent: 'Command line and configuration' }), h('pre', { tabIndex: 0, 'aria-label': `Command line of ${run.name}` }), h('dl', { className: 'facts' })));
}
function updateCard(card, run) {
  const p = run.progress, state = run.state(), epochs = p && p.epochs > 0 ? p.epochs : number(run.about.epochs);
  let done = p && epochs > 0 ? (p.epoch + (p.batches > 0 ? p.batch / p.batches : 0)) / epochs : NaN;
  if (state === 'done') done = 1;
  const percent = Number.isFinite(done) ? Math.round(Math.min(Math.max(done, 0), 1) * 1000) / 10 : 0;
  setBadge(card.querySelector('.badge'), state);
  const bar = card.querySelector('.progress');
  bar.setAttribute('aria-valuenow', percent);
  bar.firstChild.style.width = `${percent}%`;
  const latest = name => run.latest.has(name) ? figure(run.latest.get(name)) : '';
  const lost = [...run.ranks.values()].filter(r => run.stateOfRank(r) === 'lost').length;
  facts(card.querySelector('.facts'), [
    ['Progress', Number.isFinite(done) ? `${percent} %` : ''],
    ['Epoch', p ? `${Math.min(p.epoch + 1, epochs > 0 ? epochs : Infinity)}${epochs > 0 ? ` of ${epochs}` : ''}` : ''],
    ['Step', p && Number.isFinite(p.step) ? figure(p.step) : ''],
    ['ETA', state === 'running' && p ? duration(p.eta_s) : ''],
    ['Time', duration(p && Number.isFinite(p.seconds) ? p.seconds : run.heard - run.started)],
    ['Loss', latest('loss')], ['Learning rate', latest('lr')], ['Gradient norm', latest('gradient_norm')], ['Samples/s', latest('samples_per_s')],
    ['Ranks', run.ranks.size ? `${run.ranks.size}${lost ? `, ${lost} lost` : ''}` : ''],
    ...(shown().length > 2 ? [] : [['Parameters', Number.isFinite(number(run.about.parameters)) ? figure(number(run.about.parameters)) : ''],
      ['Program', text(run.about.program).split('/').pop()], ['Host', text(run.about.host)]]),
  ]);
  const called = card.querySelector('.called');
  called.hidden = !run.command();
  setText(called.querySelector('pre'), run.command());
  facts(called.querySelector('.facts'), [...run.configuration()]);
  const error = card.querySelector('.error');
  setText(error, run.error());
  error.hidden = !run.error();
  if (run.told && run.told !== state) announce(`${run.name}: ${state}`);
  run.told = state;
  for (const r of run.ranks.values())
    if (run.stateOfRank(r) === 'lost' && !run.dead.has(r.rank)) { run.dead.add(r.rank); announce(`${run.name}: rank ${r.rank} is lost`); }
}
function announce(what) { $('live').textContent = what; }

function renderSide() {
  const wanted = $('find-run').value.toLowerCase();
  const order = [...runs.values()].filter(r => r.name.toLowerCase().includes(wanted)).sort((a, b) => b.modified - a.modified || (a.name < b.name ? -1 : 1));
  keep($('runs'), order.map(run => [run.name, run]), run => {
    const box = h('input', { type: 'checkbox' }), dot = h('i', { className: 'dot' });
    dot.style.background = run.colour;
    box.addEventListener('change', () => {
      const now = runs.get(run.name);
      now.on = box.checked;
      source.chosen = true;
      if (source.live) history.replaceState(null, '', '#' + shown().map(r => r.name).join());
      if (now.on && source.live) pollRun(now).then(changed, changed);
      changed();
    });
    return h('li', {}, h('label', {}, box, dot, h('span', { className: 'name', textContent: run.name })));
  }, (element, run) => { element.querySelector('input').checked = run.on; });
}

// --- the table of runs -------------------------------------------------------------------------------

const table = { sort: 'run', down: false, columns: '' };
const LARGE = /acc|f1|auc|auroc|score|return|reward|precision|recall|r2|iou|psnr|bleu/i; // of these the largest is the best
const noteOf = name => { try { return localStorage.getItem(`trek-note:${name}`) || ''; } catch { return ''; } };
function setNote(name, note) { try { if (note) localStorage.setItem(`trek-note:${name}`, note); else localStorage.removeItem(`trek-note:${name}`); } catch { /* not kept */ } }
const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const deviation = values => values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - mean(values)) ** 2, 0) / (values.length - 1)) : NaN;

// Of a run: its figures by column, and what its configuration says.
function rowOf(run, metric) {
  const series = [...run.series.values()].find(s => s.name === metric), values = series ? series.value.filter(Number.isFinite) : [], p = run.progress;
  const min = values.length ? values.reduce((a, b) => Math.min(a, b)) : NaN, max = values.length ? values.reduce((a, b) => Math.max(a, b)) : NaN;
  return { names: [run.name], run, state: run.state(), config: run.configuration(),
    figures: { last: values.length ? values[values.length - 1] : NaN, best: LARGE.test(metric) ? max : min, min, max, step: p ? p.step : NaN, time: p && Number.isFinite(p.seconds) ? p.seconds : run.heard - run.started } };
}
// Runs that differ in nothing but a seed: means, and their deviations.
function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const config = new Map([...row.config].filter(([key]) => !/seed/i.test(key))), key = JSON.stringify([text(row.run.about.program), [...config].sort()]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push({ ...row, config });
  }
  return [...groups.values()].map(all => {
    const figures = {}, spread = {};
    for (const key of Object.keys(all[0].figures)) {
      const known = all.map(r => r.figures[key]).filter(Number.isFinite);
      figures[key] = known.length ? mean(known) : NaN;
      spread[key] = deviation(known);
    }
    const states = new Set(all.map(r => r.state));
    return { ...all[0], names: all.map(r => r.names[0]).sort(), state: states.size === 1 ? all[0].state : '', figures, spread };
  });
}
const FIGURES = [['last', 'Last'], ['best', 'Best'], ['min', 'Min'], ['max', 'Max'], ['step', 'Step'], ['time', 'Time']];
function cellOf(row, key) {
  if (key === 'run') return row.names.join(', ');
  if (key === 'state') return row.state;
  if (key === 'note') return noteOf(row.run.name);
  return key.startsWith('config:') ? row.config.get(key.slice(7)) || '' : row.figures[key];
}
// Numbers by size, words by letters; what is not known comes last.
function compare(a, b) {
  const [x, y] = [a, b].map(v => typeof v === 'number' ? v : v.trim() !== '' && Number.isFinite(Number(v)) ? Number(v) : v);
  if (typeof x === 'number' && typeof y === 'number') return (Number.isNaN(x) - Number.isNaN(y)) || x - y;
  return (x === '') - (y === '') || String(x).localeCompare(String(y), undefined, { numeric: true });
}
function renderTable() {
  const all = shown(), names = [...new Set(all.flatMap(run => [...run.series.values()].map(s => s.name)))].filter(n => !LAST.includes(groupOf(n))).sort();
  const select = $('table-metric'), usual = ['epoch/evaluation_loss', 'epoch/loss', 'loss'].find(n => names.includes(n)) || names[0] || '';
  const chosen = names.includes(select.value) && select.dataset.chosen ? select.value : usual;
  keep(select, names.map(n => [n, n]), n => h('option', { value: n, textContent: n }), () => {});
  if (select.value !== chosen) select.value = chosen;
  const group = $('table-group').checked, wanted = $('find-row').value.toLowerCase();
  let rows = all.map(run => rowOf(run, chosen));
  const keys = [...new Set(rows.flatMap(r => [...r.config.keys()]))].filter(key => !group || !/seed/i.test(key));
  const differing = keys.filter(key => new Set(rows.map(r => r.config.get(key))).size > 1);
  if (group) rows = grouped(rows);
  rows = rows.filter(r => [...r.names, r.state, noteOf(r.run.name), ...[...r.config].flat()].join(' ').toLowerCase().includes(wanted));
  const columns = [['run', 'Run'], ['state', 'State'], ...FIGURES, ...($('table-differ').checked ? differing : keys).map(key => [`config:${key}`, key]), ...(group ? [] : [['note', 'Note']])];
  if (!columns.some(([key]) => key === table.sort)) Object.assign(table, { sort: 'run', down: false });
  // What is not known comes last, whichever way the others are sorted.
  const unknown = row => [NaN, ''].some(v => Object.is(cellOf(row, table.sort), v));
  rows.sort((a, b) => (unknown(a) - unknown(b)) || (table.down ? -1 : 1) * compare(cellOf(a, table.sort), cellOf(b, table.sort)) || compare(a.names[0], b.names[0]));
  const signature = JSON.stringify(columns);
  if (signature !== table.columns) {
    table.columns = signature;
    $('table-head').replaceChildren(...columns.map(([key, name]) => {
      const button = h('button', { type: 'button', textContent: name, 'data-column': key });
      button.addEventListener('click', () => {
        Object.assign(table, table.sort === key ? { down: !table.down } : { sort: key, down: false });
        renderTable();
      });
      return h('th', { scope: 'col' }, button);
    }));
  }
  columns.forEach(([key], k) => $('table-head').children[k].setAttribute('aria-sort', key !== table.sort ? 'none' : table.down ? 'descending' : 'ascending'));
  keep($('table-body'), rows.map(row => [`${row.names.join()} ${signature}`, row]), row => makeRow(row, columns), (element, row) => updateRow(element, row, columns));
  setText($('table-said'), rows.length < (group ? 1 : all.length) ? `${rows.length} of ${all.length}` : `${rows.length} ${group ? 'groups of runs that differ in nothing but a seed' : rows.length === 1 ? 'run' : 'runs'}`);
}
function makeRow(row, columns) {
  return h('tr', {}, ...columns.map(([key]) => {
    if (key === 'run') {
      const dot = h('i', { className: 'dot' });
      dot.style.background = row.run.colour;
      return h('th', { scope: 'row' }, dot, h('span'));
    }
    if (key !== 'note') return h('td', { className: key in row.figures ? 'number' : '' });
    const note = h('input', { type: 'text', value: noteOf(row.run.name), 'aria-label': `Note on ${row.run.name}` });
    note.addEventListener('input', () => setNote(row.run.name, note.value));
    return h('td', {}, note);
  }));
}
function updateRow(element, row, columns) {
  columns.forEach(([key], k) => {
    const cell = element.children[k], value = cellOf(row, key), spread = row.spread && row.spread[key];
    const told = v => key === 'time' ? duration(v) : figure(Number.isNaN(v) ? undefined : v);
    if (key === 'run') setText(cell.lastChild, row.names.length > 1 ? `${row.names.length} runs: ${value}` : value);
    else if (key !== 'note') setText(cell, typeof value !== 'number' ? value : `${told(value)}${Number.isFinite(spread) ? ` ± ${key === 'time' ? duration(spread) : figure(spread)}` : ''}`);
  });
}

// --- ranks -------------------------------------------------------------------------------------------

function makeLane(run, rank) {
  return h('li', { className: 'lane', 'data-rank': rank.rank }, h('div', { className: 'who' }, h('h4', { textContent: `Rank ${rank.rank}` }), badge('running'), h('span', { className: 'soft device' })),
    h('canvas', { role: 'img' }), h('dl', { className: 'facts' }));
}
function updateLane(lane, run, rank) {
  const state = run.stateOfRank(rank), process = run.processes.get(rank.process), system = (process && process.system) || {};
  // What the process's own machine tells is that of ranks on its processor alone.
  const of = { ...(/^cpu/.test(rank.device) ? system : {}), ...list(system.devices).find(d => d && d.device === rank.device) };
  const unit = (value, name) => Number.isFinite(number(value)) ? `${figure(number(value))} ${name}` : '';
  lane.classList.toggle('lost', state === 'lost');
  setBadge(lane.querySelector('.badge'), state);
  setText(lane.querySelector('.device'), [rank.device, rank.name, `process ${rank.process}`].filter(Boolean).join(' · '));
  const sum = key => rank[key].reduce((a, b) => a + b, 0), all = sum('interval') || 1;
  const told = key => `${Math.round(sum(key) / all * 100)} %`;
  facts(lane.querySelector('.facts'), [
    ['Share', Number.isFinite(rank.share) ? `${+(rank.share * 100).toPrecision(4)} %` : ''], ['Samples/s', Number.isFinite(rank.samples_per_s) ? figure(rank.samples_per_s) : ''],
    ['Samples', Number.isFinite(rank.samples) ? figure(rank.samples) : ''], ['Steps', Number.isFinite(rank.steps) ? figure(rank.steps) : ''],
    ['Computing', told('computing')], ['Waiting', told('waiting')], ['Reducing', told('reducing')],
    ['Memory', [of.memory_bytes, of.memory_total_bytes].map(number).filter(Number.isFinite).map(bytes).join(' of ')],
    ['Utilization', unit(of.utilization_percent, '%')], ['Temperature', unit(of.temperature_c, '°C')], ['Power', unit(of.power_w, 'W')],
    ['Slowed down', { power: 'power', heat: 'heat', hardware: 'hardware' }[of.throttled] || ''],
  ]);
  const canvas = lane.querySelector('canvas');
  canvas.setAttribute('aria-label', `Rank ${rank.rank}, ${state}: ${told('computing')} computing, ${told('waiting')} waiting, ${told('reducing')} reducing`);
  paintLane(canvas, run, rank, state);
}
const LANE_AXIS = 15;
function paintLane(canvas, run, rank, state) {
  if (!canvas.clientWidth) return;
  const { ctx, w, h: whole } = canvasOf(canvas), height = whole - LANE_AXIS, from = run.started, to = Math.max(run.heard, from + 1), n = rank.time.length;
  const columns = Math.max(1, Math.min(Math.floor(w / 3), 400)), sums = Array.from({ length: columns }, () => [0, 0, 0, 0]);
  for (let k = 0; k < n; k++) { // an interval is spread over the columns that it covers
    const t1 = Math.min((rank.time[k] - from) / (to - from), 1) * columns, t0 = Math.max(t1 - rank.interval[k] / (to - from) * columns, 0);
    for (let c = Math.floor(t0); c <= Math.min(columns - 1, Math.floor(t1)); c++) {
      const part = Math.max(0, Math.min(c + 1, t1) - Math.max(c, t0)) / (t1 - t0 || 1);
      ['computing', 'waiting', 'reducing', 'interval'].forEach((key, i) => { sums[c][i] += rank[key][k] * part; });
    }
  }
  const colours_ = ['--computing', '--waiting', '--reducing'].map(css), width = w / columns;
  sums.forEach((s, c) => {
    let y = height;
    const all = Math.max(s[3], s[0] + s[1] + s[2]);
    for (let i = 0; i < 3 && all > 0; i++) {
      const part = s[i] / all * height;
      ctx.fillStyle = colours_[i];
      ctx.fillRect(c * width, y - part, width + .5, part);
      y -= part;
    }
  });
  // Since the run began; the last one does not go beyond the end.
  ctx.font = '10.5px system-ui, sans-serif';
  ctx.fillStyle = ctx.strokeStyle = css('--soft');
  ctx.textBaseline = 'alphabetic';
  for (const t of timeTicks(0, to - from, w / 90)) {
    const x = t / (to - from) * w, label = shortTime(t);
    ctx.fillRect(Math.min(x, w - 1), height, 1, 4);
    ctx.textAlign = 'left';
    ctx.fillText(label, Math.max(0, Math.min(x + 3, w - ctx.measureText(label).width)), whole - 3);
  }
  if (state !== 'lost') return;
  const x0 = n ? (rank.time[n - 1] - from) / (to - from) * w : 0;
  const x = Math.min(x0, w - 24);
  ctx.save();
  ctx.beginPath(); ctx.rect(x, 0, w - x, height); ctx.clip();
  ctx.strokeStyle = css('--bad');
  ctx.lineWidth = 2;
  ctx.clearRect(x, 0, w - x, height);
  for (let k = x - height; k < w; k += 8) { ctx.beginPath(); ctx.moveTo(k, height); ctx.lineTo(k + height, 0); ctx.stroke(); }
  ctx.restore();
}
function ofRun(key) { return run => h('section', { className: 'of-run' }, h('h3', { textContent: run.name }), h('p', { className: 'whole' }), h(key === 'lanes' ? 'ul' : 'div', { className: key })); }
function renderRanks() {
  keep($('lanes'), shown().filter(r => r.ranks.size).map(r => [r.name, r]), ofRun('lanes'), (element, run) => {
    const w = run.whole;
    setText(element.querySelector('.whole'), [w.anchor !== undefined ? `anchor ${figure(number(w.anchor))}` : '',
      w.windows !== undefined ? (w.windows ? `windows of batches${w.window !== undefined ? ` (${figure(number(w.window))})` : ''}` : 'every batch is reduced') : '',
      w.drift !== undefined ? `drift ${figure(number(w.drift))}` : ''].filter(Boolean).join('   ·   '));
    keep(element.lastChild, [...run.ranks.values()].sort((a, b) => a.rank - b.rank).map(r => [String(r.rank), r]), r => makeLane(run, r), (lane, r) => updateLane(lane, run, r));
  });
}

// --- histograms --------------------------------------------------------------------------------------

function renderHistograms() {
  const of = $('of').value;
  $('want').disabled = !source.live || !shown().some(r => r.state() === 'running');
  keep($('histograms'), shown().map(r => [r.name, r]), ofRun('grid'), (element, run) => {
    const some = [...run.histograms.values()].filter(g => g.of === of);
    setText(element.querySelector('.whole'), some.length ? '' : `No histograms of ${of}s have been recorded.`);
    keep(element.lastChild, some.map(g => [`${g.of} ${g.process} ${g.name}`, g]), g => h('figure', { className: 'chart histogram' }, h('figcaption', {}, h('h4', { textContent: g.name, title: g.name })), h('canvas', { role: 'img' }), h('p')), updateHistogram);
  });
}
function updateHistogram(element, g) {
  const r = g.records[g.records.length - 1], canvas = element.querySelector('canvas');
  const said = `step ${figure(r.step)}: mean ${figure(r.mean)}, std ${figure(r.std)}, ${figure(r.min)} to ${figure(r.max)}${r.nonfinite > 0 ? `, ${r.nonfinite} not finite` : ''}`;
  setText(element.querySelector('p'), said);
  canvas.setAttribute('aria-label', `${g.name}, ${g.records.length} histograms; ${said}`);
  if (!canvas.clientWidth) return;
  const { ctx, w, h: height } = canvasOf(canvas), records = g.records.slice(-80), left = 46, bottom = 16, rows = 48;
  let low = Math.min(...records.map(x => x.edges[0])), high = Math.max(...records.map(x => x.edges[x.edges.length - 1]));
  if (!(high > low)) [low, high] = [low - 1, low + 1];
  const width = (w - left) / records.length, tall = height - bottom;
  records.forEach((x, column) => {
    const cells = new Array(rows).fill(0);
    x.counts.forEach((count, k) => {
      const a = (x.edges[k] - low) / (high - low) * rows, b = (x.edges[k + 1] - low) / (high - low) * rows;
      for (let c = Math.max(0, Math.floor(a)); c < rows && c <= b; c++) cells[c] += count * (b > a ? Math.max(0, Math.min(c + 1, b) - Math.max(c, a)) / (b - a) : c === Math.floor(a) ? 1 : 0);
    });
    const most = Math.max(...cells) || 1;
    cells.forEach((v, c) => {
      ctx.fillStyle = `rgba(${css('--heat')}, ${Math.sqrt(v / most)})`;
      if (v > 0) ctx.fillRect(left + column * width, tall - (c + 1) * tall / rows, width + .5, tall / rows + .5);
    });
  });
  ctx.fillStyle = css('--soft');
  ctx.font = '11px system-ui, sans-serif';
  ctx.textAlign = 'right';
  ctx.fillText(short(high), left - 5, 10);
  ctx.fillText(short(low), left - 5, tall);
  ctx.textAlign = 'left';
  ctx.fillText(`step ${short(records[0].step)}`, left, height - 3);
  ctx.textAlign = 'right';
  if (records.length > 1) ctx.fillText(short(r.step), w, height - 3);
}
async function wantHistograms() {
  setText($('want-said'), 'Asked for: they come with the next step.');
  for (const run of shown().filter(r => r.state() === 'running')) {
    const answer = await fetch(`api/runs/${run.name}/want-histograms`, { method: 'POST', headers: { 'X-Trek': '1' } }).catch(() => null);
    if (!answer || !answer.ok) setText($('want-said'), `${run.name} could not be asked.`);
  }
}

// --- the graph ---------------------------------------------------------------------------------------

const SHAPES = new Set(['svg', 'g', 'rect', 'path', 'text', 'tspan', 'title', 'desc', 'defs', 'marker', 'line', 'circle', 'ellipse', 'polygon', 'polyline']);
const DRAWN = new Set(['x', 'y', 'x1', 'x2', 'y1', 'y2', 'cx', 'cy', 'r', 'rx', 'ry', 'dx', 'dy', 'd', 'points', 'width', 'height', 'viewBox', 'class', 'text-anchor',
  'fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'transform', 'font-size', 'font-weight', 'refX', 'refY', 'markerWidth', 'markerHeight',
  'markerUnits', 'orient', 'dominant-baseline']);
// A drawing made anew of known shapes and what draws them: no script, style, link or image comes through. It is read in a namespace
// of no meaning, in which nothing acts.
function cleanSvg(source_, prefix) {
  const plain = source_.replace(/(xmlns(?::[\w.-]+)?\s*=\s*)(?:"[^"]*"|'[^']*')/g, '$1"urn:drawing"');
  const parsed = new DOMParser().parseFromString(plain, 'application/xml').documentElement;
  const copy = node => {
    if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
    if (node.nodeType !== Node.ELEMENT_NODE || node.namespaceURI !== 'urn:drawing' || !SHAPES.has(node.localName)) return null;
    const out = document.createElementNS(SVG, node.localName);
    for (const { name, value } of node.attributes) {
      const marker = /^marker-(start|mid|end)$/.test(name) && /^url\(#([A-Za-z0-9_-]+)\)$/.exec(value);
      if (marker) out.setAttribute(name, `url(#${prefix}${marker[1]})`);
      else if (name === 'id' && /^[A-Za-z0-9_-]+$/.test(value)) out.setAttribute('id', prefix + value);
      else if (DRAWN.has(name) && !/url|javascript|expression/i.test(value)) out.setAttribute(name, value);
    }
    for (const child of node.childNodes) { const c = copy(child); if (c) out.append(c); }
    return out;
  };
  const clean = parsed.localName === 'svg' ? copy(parsed) : null;
  if (clean) { clean.setAttribute('role', 'img'); clean.setAttribute('aria-label', "The model's graph"); }
  return clean;
}
// What a node is said to be: its measures, and what leads to it and from it.
const milliseconds = v => `${figure(+v.toPrecision(4))} ms`;
function many(v) {
  const units = ['', 'K', 'M', 'G', 'T', 'P'];
  let k = 0;
  for (; v >= 1000 && k < 5; k++) v /= 1000;
  return `${+v.toPrecision(4)}${k ? ` ${units[k]}` : ''}`;
}
class GraphNode {
  constructor(n) {
    this.name = text(n.name);
    for (const key of ['kind', 'op', 'details', 'shape']) this[key] = text(n[key]);
    for (const key of ['parameters', 'calls', 'time_ms', 'forward_ms', 'backward_ms', 'mult_adds', 'bytes', 'output_bytes']) this[key] = n[key] === undefined ? NaN : number(n[key]);
    this.from = [];
    this.to = [];
  }
  measure() { return settings.heat === 'memory' ? this.bytes : this.time_ms; }
  // Of each node the same ones, so that nothing moves while one points at others.
  facts() {
    const known = (value, say) => Number.isFinite(value) ? say(value) : '';
    return [['Node', this.name], ['Kind', this.op ? `${this.op}${this.details ? ` (${this.details})` : ''}` : this.kind], ['Gives', this.shape], ['Parameters', known(this.parameters, figure)],
      ['Time a step', known(this.time_ms, milliseconds)], ['Forward', known(this.forward_ms, milliseconds)], ['Backward', known(this.backward_ms, milliseconds)],
      ['Activations', known(this.bytes, bytes)], ['Result', known(this.output_bytes, bytes)], ['Multiply-adds', known(this.mult_adds, many)],
      ['Runs a step', known(this.calls, figure)], ['From', this.from.join(', ')], ['To', this.to.join(', ')]];
  }
  said() { return this.facts().filter(([, value]) => value).map(([name, value]) => name === 'Node' ? value : `${name}: ${value}`).join('; '); }
}
function graphNodes(graph) {
  const nodes = new Map(graph.nodes.map(n => [text(n.name), new GraphNode(n)]));
  for (const link of graph.links) {
    const from = nodes.get(text(link.from)), to = nodes.get(text(link.to)), label = text(link.label) ? ` (${text(link.label)})` : '';
    if (from) from.to.push(text(link.to) + label);
    if (to) to.from.push(text(link.from) + label);
  }
  return nodes;
}
// The drawing's boxes by the names that they have as titles. One of them is in the order of Tab, arrows lead to the others.
class GraphView {
  constructor(run, element) {
    this.nodes = graphNodes(run.graph);
    this.boxes = new Map();
    this.svg = cleanSvg(run.graph.svg, `g${++pictures}-`);
    this.told = h('dl', { className: 'facts figures' });
    this.body = h('tbody');
    if (this.svg) this.prepare(run);
    const heads = [['Node'], ['Gives'], ['Parameters', 1], ['ms a step', 1], ['', 0], ['Activations', 1]];
    element.replaceChildren(this.told, this.svg ? h('div', { className: 'picture', tabIndex: 0, role: 'group', 'aria-label': `Drawing of ${run.name}` }, this.svg) : h('p', { className: 'soft', textContent: 'Its drawing cannot be read.' }),
      h('p', { className: 'soft hint', textContent: run.graph.steps > 0 ? `Means of ${figure(run.graph.steps)} measured steps of the first rank, up to step ${figure(run.graph.step)}.` : 'No step has been measured yet.' }),
      ...(this.nodes.size ? [h('div', { className: 'scroll', tabIndex: 0, role: 'group', 'aria-label': `Nodes of ${run.name}` }, h('table', {}, h('thead', {}, h('tr', {}, ...heads.map(([name, numeric]) =>
        name ? h('th', { textContent: name, className: numeric ? 'number' : '', scope: 'col' }) : h('td')))), this.body))] : []));
    this.show([...this.nodes.values()].find(n => n.kind === 'module') || [...this.nodes.values()][0]);
    this.paint();
  }
  prepare(run) {
    this.svg.setAttribute('role', 'group');
    this.svg.setAttribute('aria-label', `The graph of ${run.name}`);
    for (const title of this.svg.querySelectorAll('g > title')) {
      const box = title.parentNode, node = this.nodes.get(title.textContent), rect = box.querySelector('rect');
      if (!node || !rect) continue;
      this.boxes.set(node.name, box);
      box.setAttribute('role', 'img');
      box.setAttribute('aria-label', node.said());
      box.dataset.node = node.name;
      box.tabIndex = this.boxes.size === 1 ? 0 : -1;
      title.remove();
      if (!box.querySelector('.f')) {
        const heat = rect.cloneNode();
        heat.setAttribute('class', 'f');
        heat.setAttribute('fill-opacity', '0');
        rect.after(heat);
      }
      box.addEventListener('pointerenter', () => this.show(node));
      box.addEventListener('focus', () => this.focused(box, node));
      box.addEventListener('keydown', event => this.key(event, box));
    }
  }
  focused(box, node) {
    for (const other of this.boxes.values()) other.tabIndex = other === box ? 0 : -1;
    this.show(node);
  }
  key(event, box) {
    const boxes = [...this.boxes.values()], here = boxes.indexOf(box);
    const to = { ArrowUp: here - 1, ArrowLeft: here - 1, ArrowDown: here + 1, ArrowRight: here + 1, Home: 0, End: boxes.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    boxes[Math.max(0, Math.min(boxes.length - 1, to))].focus();
  }
  show(node) {
    if (!node) return;
    this.shown = node;
    facts(this.told, node.facts().map(([name, value]) => [name, value || '—']));
    for (const fact of this.told.children) fact.title = fact.lastChild.textContent;
    for (const [name, box] of this.boxes) box.classList.toggle('on', name === node.name);
    for (const row of this.body.children) row.classList.toggle('on', row.dataset.node === node.name);
  }
  // A box that holds others is not coloured: it has what they have.
  paint() {
    const whole = Math.max(...[...this.nodes.values()].filter(n => n.kind !== 'group').map(n => n.measure()).filter(Number.isFinite), 0);
    const part = n => whole > 0 && Number.isFinite(n.measure()) ? Math.min(1, n.measure() / whole) : 0;
    for (const [name, box] of this.boxes) {
      const node = this.nodes.get(name);
      box.querySelector('.f').setAttribute('fill-opacity', (part(node) * .6 * (box.querySelector('.c') ? 0 : 1)).toFixed(3));
    }
    const order = [...this.nodes.values()].filter(n => !['input', 'output', 'merge'].includes(n.kind)).sort((a, b) => (b.measure() || 0) - (a.measure() || 0));
    this.body.replaceChildren(...order.map(n => {
      const bar = h('div', { className: 'bar' });
      bar.style.width = `${part(n) * 100}%`;
      const row = h('tr', {}, h('td', {}, n.name, h('span', { className: 'soft', textContent: n.op ? ` ${n.op}` : '' })), h('td', { textContent: n.shape }),
        h('td', { className: 'number', textContent: n.parameters > 0 ? figure(n.parameters) : '–' }), h('td', { className: 'number', textContent: Number.isFinite(n.time_ms) ? figure(n.time_ms) : '–' }),
        h('td', { className: 'share' }, bar), h('td', { className: 'number', textContent: bytes(n.bytes) }));
      row.dataset.node = n.name;
      row.addEventListener('pointerenter', () => this.show(n));
      return row;
    }));
    if (this.shown) this.show(this.shown);
  }
}
let pictures = 0;
function renderGraph() {
  const some = shown().filter(r => r.graph);
  keep($('graphs'), some.length ? some.map(r => [r.name, r]) : [['', null]], run => run ? ofRun('drawn')(run) : h('p', { className: 'soft', textContent: 'No run has told of its graph.' }), (element, run) => {
    if (!run) return;
    if (element.graph !== run.graph) {
      const before = element.view;
      element.graph = run.graph;
      element.view = run.view = new GraphView(run, element.lastChild);
      if (before && before.shown) element.view.show(element.view.nodes.get(before.shown.name));
    } else if (element.heat !== settings.heat) element.view.paint();
    element.heat = settings.heat;
  });
}

// --- texts, images, lines ----------------------------------------------------------------------------

// A slider goes over the steps; at its end it stays with the last one that comes.
function makeMedium(item) {
  if (!item) return h('p', { className: 'soft', textContent: 'No texts or images have been recorded.' });
  const slider = h('input', { type: 'range', min: 0, max: 0, value: 0, 'aria-label': `Step of ${item.m.name}, ${item.run.name}` });
  slider.addEventListener('input', () => {
    item.m.at = Number(slider.value) < item.m.all.length - 1 ? item.m.all[Number(slider.value)] : null;
    changed();
  });
  return h('article', { className: 'card' }, h('h3'), h('label', { className: 'steps', hidden: true }, slider), h('div'));
}
function updateMedium(element, item) {
  if (!item) return;
  const { m, run } = item, last = m.all.length - 1, at = m.at ? m.all.indexOf(m.at) : last, told = m.all[Math.max(at, 0)], slider = element.querySelector('input');
  slider.max = last;
  slider.value = Math.max(at, 0);
  slider.setAttribute('aria-valuetext', `step ${figure(told.step)}`);
  slider.parentNode.hidden = last < 1;
  setText(element.firstChild, `${m.name} · ${run.name} · step ${figure(told.step)}`);
  if (element.told === told) return;
  element.told = told;
  const inner = told.png ? h('img', { src: `data:image/png;base64,${told.png}`, alt: `${m.name} at step ${figure(told.step)}` }) : h('pre', { textContent: told.text });
  if (told.png && told.width > 0 && told.height > 0) Object.assign(inner, { width: told.width, height: told.height });
  element.lastChild.replaceChildren(inner);
}
function renderMedia() {
  const some = shown().flatMap(run => [...run.media].map(([key, m]) => [`${run.name} ${key}`, { run, m }]));
  keep($('media'), some.length ? some : [['', null]], makeMedium, updateMedium);
}
let linesKey = '';
function renderLog() {
  const level = Number($('level').value), many = shown().length > 1;
  const key = [level, ...shown().map(r => `${r.name} ${r.linesVersion || 0}`)].join();
  if (key === linesKey) return;
  linesKey = key;
  const rank = { debug: 0, info: 1, event: 2, warning: 2, error: 3 };
  const some = shown().flatMap(run => run.lines.filter(l => rank[l.level] >= level).map(l => ({ run, l }))).sort((a, b) => a.l.time - b.l.time).slice(-1000);
  const box = $('lines'), down = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
  box.replaceChildren(...some.map(({ run, l }) => h('li', { className: l.level === 'error' ? '' : l.level }, h('time', { textContent: clock(l.time) }),
    h('span', { className: 'who', textContent: many ? `${run.name} ${l.who}` : l.who }), h('span', { className: l.level === 'error' ? 'error' : '', textContent: l.level === 'error' ? `error: ${l.text}` : l.text }))));
  if (down) box.scrollTop = box.scrollHeight;
}

// --- the page ----------------------------------------------------------------------------------------

const TABS = { charts: ['Charts', renderCharts], table: ['Runs', renderTable], ranks: ['Ranks', renderRanks], histograms: ['Histograms', renderHistograms], graph: ['Graph', renderGraph], media: ['Texts and images', renderMedia], log: ['Log', renderLog] };
function choose(tab, focus) {
  settings.tab = tab;
  for (const name of Object.keys(TABS)) {
    const button = $(`tab-${name}`);
    button.setAttribute('aria-selected', String(name === tab));
    button.tabIndex = name === tab ? 0 : -1;
    $(`panel-${name}`).hidden = name !== tab;
    if (focus && name === tab) button.focus();
  }
  render();
}
function makeTabs() {
  const names = Object.keys(TABS);
  for (const name of names) {
    const button = h('button', { type: 'button', id: `tab-${name}`, role: 'tab', textContent: TABS[name][0], 'aria-controls': `panel-${name}`, 'aria-selected': 'false' });
    button.addEventListener('click', () => choose(name));
    button.addEventListener('keydown', event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], to = event.key === 'Home' ? 0 : event.key === 'End' ? names.length - 1 : move ? (names.indexOf(name) + move + names.length) % names.length : -1;
      if (to >= 0) { event.preventDefault(); choose(names[to], true); }
    });
    $('tabs').append(button);
  }
}
let due = 0;
function changed() { if (!due) due = setTimeout(render, 60); }
function render() {
  clearTimeout(due);
  due = 0;
  renderSide();
  keep($('cards'), shown().map(r => [r.name, r]), makeCard, updateCard);
  $('empty').hidden = shown().length > 0 || !source.ready;
  setText($('source'), source.live ? (source.lost ? 'The server does not answer: this is what was told last.' : `${runs.size} ${runs.size === 1 ? 'run' : 'runs'}`) : 'A report: nothing is loaded.');
  document.title = shown().length === 1 ? `${shown()[0].name} · trek` : 'trek';
  TABS[settings.tab][1]();
}
function themes() {
  let theme = null;
  try { theme = localStorage.getItem('trek-theme'); } catch { /* a file may have none */ }
  const apply = () => { if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme; };
  apply();
  $('theme').addEventListener('click', () => {
    const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    theme = dark ? 'light' : 'dark';
    apply();
    try { localStorage.setItem('trek-theme', theme); } catch { /* nor remember */ }
    redraw();
    render();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { redraw(); render(); });
}
function listen() {
  $('smoothing').addEventListener('input', () => { settings.smoothing = Number($('smoothing').value); setText($('smoothing-value'), settings.smoothing.toFixed(2)); redraw(); });
  $('axis').addEventListener('change', () => { settings.axis = $('axis').value; for (const chart of charts.values()) { chart.range = null; chart.cursor = null; } redraw(); });
  $('log').addEventListener('change', () => { settings.log = $('log').checked; redraw(); });
  $('table-metric').addEventListener('change', () => { $('table-metric').dataset.chosen = '1'; render(); });
  for (const id of ['find-chart', 'find-run', 'of', 'level', 'find-row', 'table-differ', 'table-group']) $(id).addEventListener('input', render);
  $('table-all').addEventListener('click', () => {
    for (const run of runs.values()) run.on = true;
    source.chosen = true;
    if (source.live) Promise.all(shown().map(pollRun)).then(changed, changed);
    changed();
  });
  $('want').addEventListener('click', wantHistograms);
  $('heat').addEventListener('change', () => { settings.heat = $('heat').value === 'memory' ? 'memory' : 'time'; render(); });
  $('menu').addEventListener('click', () => $('menu').setAttribute('aria-expanded', String($('side').classList.toggle('open'))));
  new ResizeObserver(() => { redraw(); changed(); }).observe($('main'));
  document.addEventListener('visibilitychange', () => { if (!document.hidden) changed(); });
}

// What the page knows, for those who look from a console or a test.
window.trek = {
  get ready() { return source.ready; },
  get polls() { return source.polls; },
  runs, charts, settings, smooth, cleanSvg, byteTicks, timeTicks, shortTime,
  names: run => [...new Set([...runs.get(run).series.values()].map(s => s.name))],
  series(run, name, process = 0, label = '') {
    const s = runs.get(run) && runs.get(run).series.get(JSON.stringify([name, process, label]));
    return s ? { step: s.step, time: s.time, epoch: s.epoch, value: s.value.map(v => Number.isFinite(v) ? v : String(v)) } : null;
  },
};

makeTabs();
themes();
listen();
if (!source.live) {
  readEmbedded();
  source.ready = true;
}
choose('charts');
if (source.live) poll();
})();
