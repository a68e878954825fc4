// What is shown: the last samples and how they become pictures and text. Everything here has a fixed
// size: an hour of events takes no more memory than two minutes of them.

const LONGEST_SPAN_MS = 120000;
const SHORTEST_SPAN_MS = 20000;
const KEPT = 600;  // samples: two minutes of five a second

const view = {
  model: null,
  sample: null,
  layers: [],    // numbers of those that have experts
  use: new Uint8Array(0),     // [layers that have experts, experts]
  places: new Uint8Array(0),
  most: 0,       // of `use`, following slowly
  cursor: null,
  history: [],   // {time, found: [hit, late, miss], waiting, prefill, decode}, oldest first
  rates: new Map(),  // of requests: id -> {tokens, time, rate}
};

function showModel(model) {
  view.model = model;
  view.layers = model.layers_with_experts;
  view.sample = null;
  view.history.length = 0;
  view.rates.clear();
  view.cursor = null;
  setText($('model-name'), model.name);
  document.title = `${model.name} · Moesaic`;
  const facts = [
    ['family', model.family],
    ['layers', model.layers === view.layers.length ? `${model.layers}` : `${model.layers}, ${view.layers.length} with experts`],
    ['experts', `${model.experts} a layer, ${model.experts_per_token} per token`],
    ['context', `${countText(model.max_context_tokens)} tokens`],
    ['fit in memory', '–'],
    ['KV cache in use', '–'],
  ];
  $('facts').replaceChildren(...facts.map(([name, value]) => {
    const pair = make('div');
    make('dt', '', pair).textContent = name;
    const dd = make('dd', '', pair);
    dd.textContent = value;
    dd.dataset.fact = name;
    return pair;
  }));
  showMemory(model.memory);
}

function barRow(parent, name, text) {
  const row = make('div', 'bar-row', parent);
  row.name = make('span', '', row);
  row.text = make('span', '', row);
  row.name.textContent = name;
  row.text.textContent = text;
  row.bar = make('span', 'bar', row);
  return row;
}

function setBar(row, parts) {
  while (row.bar.children.length < parts.length) make('i', '', row.bar);
  parts.forEach(([share, className], i) => {
    const part = row.bar.children[i];
    part.className = className || '';
    part.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  });
}

function showMemory(ledgers) {
  $('ledgers').replaceChildren();
  let total = 0;
  for (const ledger of ledgers) {
    const sum = ledger.items.reduce((all, item) => all + item.bytes, 0);
    const whole = ledger.limit_bytes || sum;
    total += sum;
    for (const item of [...ledger.items].sort((a, b) => b.bytes - a.bytes)) {
      if (item.bytes === 0) continue;
      const name = ledgers.length > 1 ? `${ledger.memory}: ${item.name}` : item.name;
      const row = barRow($('ledgers'), name, bytesText(item.bytes));
      row.dataset.bytes = item.bytes;
      setBar(row, [[item.bytes / sum]]);
    }
    if (ledgers.length === 1) setText($('memory-note'), `${bytesText(sum)} of ${bytesText(whole)}`);
  }
  if (ledgers.length > 1) setText($('memory-note'), bytesText(total));
}

// The rows of layers that have experts, out of a plane of all layers.
function sparseRows(plane) {
  const {experts, layers} = view.model;
  if (view.layers.length === layers || plane.length === 0) return plane;
  const rows = new Uint8Array(view.layers.length * experts);
  view.layers.forEach((layer, row) => rows.set(plane.subarray(layer * experts, (layer + 1) * experts), row * experts));
  return rows;
}

function addHistory(before, sample) {
  const a = before.totals;
  const b = sample.totals;
  const time = sample.arrived;
  const seconds = (sample.time_us - before.time_us) / 1e6;
  const wanted = ['hits', 'late', 'misses'].map((name) => b[name] - a[name]);
  const all = wanted.reduce((x, y) => x + y, 0);
  const worked = b.total_us - a.total_us;
  const entry = {
    time,
    found: all > 0 ? wanted.map((n) => n / all) : [null, null, null],
    wanted,
    waiting: worked > 0 ? Math.min(1, (b.blocked_us - a.blocked_us) / worked) : null,
    prefill: (b.prefill_tokens - a.prefill_tokens) / seconds,
    decode: (b.decode_tokens - a.decode_tokens) / seconds,
    worked,
    blocked: b.blocked_us - a.blocked_us,
    bytes: b.bytes_read - a.bytes_read,
    seconds,
    links: sample.links.map((link, i) => {
      const old = before.links[i] || link;
      return Object.fromEntries(Object.keys(link).map((key) => [key, link[key] - old[key]]));
    }),
  };
  view.history.push(entry);
  if (view.history.length > KEPT) view.history.shift();
}

function showSample(sample) {
  if (!view.model) return;
  sample.arrived = performance.now();
  view.use = sparseRows(bytesOf(sample.use));
  view.places = sparseRows(bytesOf(sample.places));
  sample.use = sample.places = '';
  const before = view.sample;
  if (before && sample.time_us > before.time_us) addHistory(before, sample);
  view.sample = sample;
  let most = 0;
  for (const byte of view.use) most = Math.max(most, byte);
  view.most = most > view.most ? most : Math.max(most, view.most * 0.97);
  followRates(sample);
}

function followRates(sample) {
  const seen = new Set();
  for (const request of sample.requests) {
    seen.add(request.id);
    const old = view.rates.get(request.id);
    if (!old) {
      view.rates.set(request.id, {tokens: request.output_tokens, time: sample.time_us, rate: null});
    } else if (request.phase !== 'ended' && request.output_tokens > old.tokens && sample.time_us > old.time) {
      const rate = ((request.output_tokens - old.tokens) * 1e6) / (sample.time_us - old.time);
      view.rates.set(request.id, {tokens: request.output_tokens, time: sample.time_us, rate: old.rate === null ? rate : 0.6 * old.rate + 0.4 * rate});
    }
  }
  for (const id of view.rates.keys()) if (!seen.has(id)) view.rates.delete(id);
}

// Sums over the entries of the last so many milliseconds.
function recent(ms) {
  const now = performance.now();
  return view.history.filter((entry) => now - entry.time < ms);
}

const sumOf = (entries, of) => entries.reduce((sum, entry) => sum + of(entry), 0);

function render() {
  if (!view.model || !view.sample) return;
  renderMap();
  renderCharts();
  renderFigures();
  renderLinks();
  renderRecall();
  renderRequests();
  const {sample} = view;
  const fact = (name) => document.querySelector(`[data-fact="${name}"]`);
  const total = view.layers.length * view.model.experts;
  setText(fact('fit in memory'), `${countText(sample.expert_slots)} of ${countText(total)} experts`);
  setText(fact('KV cache in use'), percent(sample.kv_usage));
}

function mapLayout() {
  return layOutMap(view.layers.length, view.model.experts, $('map-scroll').clientWidth);
}

function renderMap() {
  const map = $('map');
  const {sample, model} = view;
  drawMap(map, mapLayout(), view.layers, view.use, view.places, view.most, document.activeElement === map || view.pointed ? view.cursor : null);
  Object.assign(map.dataset, {layers: view.layers.length, experts: model.experts, sample: sample.number, resident: sample.experts_resident});
  drawScale($('scale'));
  setText($('scale-max'), percent((view.most / 255) ** 2));
  let best = -1;
  view.use.forEach((byte, i) => { if (byte > 0 && (best < 0 || byte > view.use[best])) best = i; });
  const busiest = best < 0 ? 'No token since this page has been open.'
    : `Busiest: expert ${best % model.experts} of layer ${view.layers[Math.floor(best / model.experts)]}, used by ${percent((view.use[best] / 255) ** 2)} of the last tokens.`;
  const places = view.places.length ? `${countText(sample.experts_resident)} of ${countText(view.use.length)} experts are in memory. ` : '';
  setText($('map-summary'), places + busiest);
  renderCell();
}

function renderCell() {
  if (!view.cursor) return;
  const {row, column} = view.cursor;
  const i = row * view.model.experts + column;
  const place = view.places.length ? `; ${PLACES[view.places[i]]}` : '';
  setText($('map-cell'), `Layer ${view.layers[row]}, expert ${column}: used by ${percent((view.use[i] / 255) ** 2)} of the last tokens${place}`);
  Object.assign($('map').dataset, {layer: view.layers[row], expert: column});
}

// From the first entry until now, within bounds.
function chartSpan() {
  const now = performance.now();
  const age = view.history.length > 0 ? now - view.history[0].time : 0;
  return {now, span: Math.max(SHORTEST_SPAN_MS, Math.min(LONGEST_SPAN_MS, age))};
}

function renderCharts() {
  const {history} = view;
  const times = history.map((entry) => entry.time);
  const options = chartSpan();
  const share = (value) => percent(value);
  drawStacked($('chart-found'), times, ['hit', 'late', 'miss'].map((name, i) => ({
    values: history.map((entry) => entry.found[i]), colour: colours[name],
  })), {...options, most: 1, label: share});
  drawStacked($('chart-waiting'), times, [{values: history.map((entry) => entry.waiting), colour: colours.miss}], {...options, most: 1, label: share});
  const most = roundUp(Math.max(1, ...history.map((entry) => entry.prefill + entry.decode)));
  drawStacked($('chart-tokens'), times, [
    {values: history.map((entry) => entry.decode), colour: colours.hit},
    {values: history.map((entry) => entry.prefill), colour: colours.late},
  ], {...options, most, label: (value) => (value >= 1000 ? `${value / 1000}k` : `${value}`)});
  $('chart-found').dataset.points = history.length;
}

function renderFigures() {
  const entries = recent(3000);
  const seconds = sumOf(entries, (e) => e.seconds);
  const busy = entries.length > 0 && view.sample.running > 0;
  setText($('now-rate'), seconds > 0 ? tokensPerSecond(sumOf(entries, (e) => e.prefill * e.seconds + e.decode * e.seconds) / seconds) : busy ? '–' : '0');
  const wanted = sumOf(entries, (e) => e.wanted[0] + e.wanted[1] + e.wanted[2]);
  setText($('now-hits'), wanted > 0 ? percent(sumOf(entries, (e) => e.wanted[0]) / wanted) : '–');
  const worked = sumOf(entries, (e) => e.worked);
  setText($('now-waiting'), worked > 0 ? percent(Math.min(1, sumOf(entries, (e) => e.blocked) / worked)) : '–');
  setText($('now-read'), seconds > 0 ? rateText(sumOf(entries, (e) => e.bytes) / seconds) : '–');
}

function renderLinks() {
  const lanes = $('lanes');
  const links = view.sample.links;
  while (lanes.children.length > links.length) lanes.lastChild.remove();
  while (lanes.children.length < links.length) {
    const i = lanes.children.length;
    const row = barRow(lanes, links.length > 1 ? `to device ${i}` : 'experts', '');
    row.figures = make('span', 'lane-figures', row);
  }
  const entries = recent(3000);
  const seconds = sumOf(entries, (e) => e.seconds);
  links.forEach((_, i) => {
    const row = lanes.children[i];
    const of = (key) => sumOf(entries, (e) => (e.links[i] ? e.links[i][key] : 0));
    const demand = seconds > 0 ? of('on_demand_us') / 1e6 / seconds : 0;
    const prefetch = seconds > 0 ? of('prefetch_us') / 1e6 / seconds : 0;
    setBar(row, [[demand, 'demand'], [prefetch, 'prefetch']]);
    setText(row.text, links.length === 1 && seconds > 0 ? rateText(sumOf(entries, (e) => e.bytes) / seconds) : '');
    setText(row.figures, `${percent(demand)} on demand, ${percent(prefetch)} prefetch, ${percent(Math.max(0, 1 - demand - prefetch))} idle`);
    Object.assign(row.dataset, {demand: demand.toFixed(4), prefetch: prefetch.toFixed(4)});
  });
  const busy = (key) => view.history.map((e) => (e.links.length && e.seconds > 0
    ? Math.min(1, sumOf(e.links, (link) => link[key]) / 1e6 / e.seconds / e.links.length) : null));
  drawStacked($('chart-link'), view.history.map((e) => e.time), [
    {values: busy('on_demand_us'), colour: colours.miss}, {values: busy('prefetch_us'), colour: colours.hit},
  ], {...chartSpan(), most: 1, label: (value) => percent(value)});
}

function renderRecall() {
  const bars = $('recall-bars');
  const {recall} = view.sample;
  while (bars.children.length < recall.length) {
    barRow(bars, `${recall[bars.children.length].distance} ${bars.children.length ? 'layers' : 'layer'} ahead`, '');
  }
  recall.forEach(({used, foreseen}, i) => {
    const row = bars.children[i];
    setBar(row, [[used > 0 ? foreseen / used : 0]]);
    setText(row.text, used > 0 ? percent(foreseen / used) : 'not measured yet');
    row.dataset.recall = used > 0 ? (foreseen / used).toFixed(4) : '';
  });
}

const rows = new Map();  // of requests: id -> <tr>

function requestRow(request) {
  let row = rows.get(request.id);
  if (row) return row;
  row = make('tr');
  row.cells_ = Array.from({length: 8}, (_, i) => make('td', i >= 3 ? 'number' : '', row));
  row.bar = make('span', 'bar', row.cells_[2]);
  row.dataset.id = request.id;
  row.cells_[0].textContent = request.request_id || `#${request.id}`;
  row.cells_[0].title = request.request_id;
  rows.set(request.id, row);
  return row;
}

function renderRequests() {
  const {sample} = view;
  const body = $('request-rows');
  const shown = sample.requests.map((request) => {
    const row = requestRow(request);
    const prefill = request.phase === 'prefill';
    const rate = view.rates.get(request.id)?.rate;
    row.dataset.phase = request.phase;
    const texts = [null,
      request.phase === 'ended' ? `ended: ${request.ended}` : request.phase, null,
      countText(request.prompt_tokens) + (request.cached_tokens ? ` (${countText(request.cached_tokens)} cached)` : ''),
      countText(request.output_tokens), rate ? tokensPerSecond(rate) : '–',
      timeText(request.queue_us), timeText(request.blocked_us)];
    texts.forEach((text, i) => { if (text !== null) setText(row.cells_[i], text); });
    setBar(row, [prefill || request.phase === 'waiting'
      ? [request.computed_tokens / Math.max(1, request.prompt_tokens), 'prefill']
      : [request.output_tokens / Math.max(1, request.max_tokens)]]);
    return row;
  });
  const same = body.children.length === shown.length && shown.every((row, i) => body.children[i] === row);
  if (!same) body.replaceChildren(...shown);
  const ids = new Set(sample.requests.map((request) => request.id));
  for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
  $('no-requests').hidden = shown.length > 0;
  setText($('requests-note'), `${sample.running} running, ${sample.waiting} waiting` + (sample.preemptions ? `, ${sample.preemptions} preemptions` : ''));
}
