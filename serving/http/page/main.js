// The page's life: connected, asleep while nobody looks, connected again.

let controller = null;   // of the stream; null: there is none
let retryMs = 1000;
let retryTimer = 0;
let scheduled = false;
let eventCount = 0;

function setState(state, text) {
  document.body.dataset.state = state;
  setText($('state'), text);
}

function renderSoon() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render();
  });
}

function onEvent(type, data) {
  document.body.dataset.events = ++eventCount;
  const json = JSON.parse(data);
  if (type === 'model') {
    showModel(json);
    closeOne();  // of what was there before; numbers begin anew with a server
  } else if (type === 'sample') {
    showSample(json);
    if (json.not_ready) setState('failing', json.not_ready);
    else setState('live', json.running > 0 ? 'working' : 'ready');
    renderSoon();
  }
}

function askForKey(wrong) {
  setState('key', 'a key is needed');
  $('key-form').hidden = false;
  setText($('key-error'), wrong ? 'The server does not know this key.' : '');
  $('key').focus();
}

// Which of several models is looked at: the chosen one, else the first that is loaded. A query.
async function chooseModel() {
  const response = await fetch('/v1/models', {headers: headers(), cache: 'no-store'});
  if (!response.ok) return '';  // the events say why
  const models = (await response.json()).data.filter((model) => model.id === model.root);
  const select = $('models');
  select.hidden = $('order').hidden = models.length < 2;
  $('model-name').hidden = !select.hidden;
  if (models.length < 2) return '';
  const chosen = models.find((model) => model.id === select.value)
    || models.find((model) => model.status?.value === 'loaded') || models[0];
  select.replaceChildren(...models.map((model) => {
    const {value, progress} = model.status || {};
    const percent = progress === undefined ? '' : ` ${Math.floor(100 * progress)}%`;
    const state = value && value !== 'loaded' ? ` (${value}${percent})` : '';
    return new Option(model.id + state, model.id, false, model.id === chosen.id);
  }));
  const loaded = chosen.status?.value === 'loaded';
  $('order').dataset.order = loaded ? 'unload' : 'load';
  setText($('order'), loaded ? 'Unload' : 'Load');
  return `?model=${encodeURIComponent(chosen.id)}`;
}

// Has the model that is looked at loaded, or taken off.
async function order() {
  const button = $('order');
  const model = $('models').value;
  button.disabled = true;
  setText(button, button.dataset.order === 'load' ? 'Loading' : 'Unloading');
  let failed = '';
  try {
    const response = await fetch(`/models/${button.dataset.order}`, {
      method: 'POST',
      headers: headers({'Content-Type': 'application/json'}),
      body: JSON.stringify({model}),
    });
    if (!response.ok) failed = await errorText(response);
  } catch {
    failed = 'the server does not answer';
  }
  button.disabled = false;
  setText($('order-error'), failed);
  sleep();
  await connect();
}

async function connect() {
  clearTimeout(retryTimer);
  if (controller) return;
  const mine = controller = new AbortController();
  let why = 'the connection ended';
  try {
    const query = await chooseModel();
    const response = await fetch(`/v1/moesaic/events${query}`, {headers: headers(), signal: mine.signal, cache: 'no-store'});
    if (response.status === 401) {
      const had = sessionStorage.getItem(KEY_NAME) !== null;
      controller = null;
      return askForKey(had);
    }
    if (response.ok) {
      $('key-form').hidden = true;
      retryMs = 1000;
      await readEvents(response, onEvent);
    } else {
      why = await errorText(response);
    }
  } catch {
    why = 'the server does not answer';
  }
  if (controller !== mine) return;  // put to sleep, or another has taken its place
  controller = null;
  setState('lost', `${why}; trying again`);
  retryTimer = setTimeout(connect, retryMs);
  retryMs = Math.min(10000, retryMs * 1.5);
}

function sleep() {
  clearTimeout(retryTimer);
  const old = controller;
  controller = null;
  if (old) old.abort();
}

document.addEventListener('visibilitychange', () => {
  if (view.recorded) return;
  if (document.hidden) return sleep();
  if (document.body.dataset.state !== 'key') connect();
});

$('models').addEventListener('change', () => {
  setText($('order-error'), '');
  sleep();
  connect();
});

$('order').addEventListener('click', order);

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_NAME, $('key').value.trim());
  $('key').value = '';
  connect();
});

function pointAt(event) {
  if (!view.model || !view.sample) return;
  const layout = mapLayout();
  const box = $('map').getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - MAP_LEFT) / layout.cell);
  const row = Math.floor((event.clientY - box.top - MAP_TOP) / layout.row);
  if (row < 0 || column < 0 || row >= layout.rows || column >= layout.columns) return;
  view.cursor = {row, column};
  view.pointed = true;
  renderMap();
}

$('map').addEventListener('pointermove', pointAt);
$('map').addEventListener('pointerdown', pointAt);
$('map').addEventListener('pointerleave', () => {
  view.pointed = false;
  renderSoon();
});
$('map').addEventListener('blur', renderSoon);
$('map').addEventListener('focus', renderSoon);
$('map').addEventListener('keydown', (event) => {
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  const step = steps[event.key];
  if (!step || !view.model || !view.sample) return;
  event.preventDefault();
  const at = view.cursor || {row: 0, column: 0};
  view.cursor = {
    row: Math.max(0, Math.min(view.layers.length - 1, at.row + step[0])),
    column: Math.max(0, Math.min(view.model.experts - 1, at.column + step[1])),
  };
  renderMap();
});

dark.addEventListener('change', () => {
  readTheme();
  renderSoon();
});
addEventListener('resize', renderSoon);
// While nothing happens no sample comes: time goes on all the same.
setInterval(() => { if (!document.hidden) renderSoon(); }, 1000);

readTheme();
const recorded = $('recorded');
if (recorded) showRecorded(JSON.parse(recorded.textContent));
else connect();
