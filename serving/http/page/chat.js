// One request's experts beside the nearest remembered one, and a conversation with the model that
// shows the experts of its answer while it streams.

const one = {id: null, timer: 0};

// Bytes [layers that have experts, experts] of counts of tokens: roots of shares, as in samples.
function planeOf(matrices, tokens) {
  const {experts} = view.model;
  const plane = new Uint8Array(view.layers.length * experts);
  view.layers.forEach((layer, row) => {
    for (let e = 0; e < experts; ++e) {
      const count = matrices.reduce((sum, matrix) => sum + matrix[layer][e], 0);
      if (count > 0) plane[row * experts + e] = Math.max(1, Math.round(255 * Math.sqrt(Math.min(1, count / tokens))));
    }
  });
  return plane;
}

function drawMatrix(canvas, matrices, tokens) {
  drawPlane(canvas, planeOf(matrices, Math.max(1, tokens)), tokens);
}

function drawPlane(canvas, plane, tokens) {
  const layout = layOutMap(view.layers.length, view.model.experts, canvas.parentElement.clientWidth);
  drawMap(canvas, layout, view.layers, plane, new Uint8Array(0), Math.max(...plane), null);
  Object.assign(canvas.dataset, {tokens, used: plane.reduce((n, byte) => n + (byte > 0), 0)});
}

// Tokens of a matrix of which only counts are known: a layer's sum over the experts per token.
function tokensOf(matrix) {
  const layer = view.layers[0];
  return matrix[layer].reduce((sum, n) => sum + n, 0) / view.model.experts_per_token;
}

async function expertsOf(id, nearest) {
  const model = encodeURIComponent(view.model.name);
  const response = await fetch(`/v1/moesaic/requests/${id}?nearest=${nearest}&model=${model}`, {headers: headers(), cache: 'no-store'});
  return response.ok ? response.json() : null;
}

async function showOne() {
  clearTimeout(one.timer);
  const {id} = one;
  if (id === null) return;
  if (view.recorded) return showRecordedOne(id);
  const listed = view.sample && view.sample.requests.find((request) => request.id === id);
  let experts = null;
  try {
    experts = await expertsOf(id, true);
  } catch {
    // The server has gone: what is shown stays.
  }
  if (one.id !== id) return;
  if (experts) {
    const tokens = experts.prefill_tokens + experts.decode_tokens;
    setText($('one-own'), `${countText(experts.prefill_tokens)} tokens of the prompt, ${countText(experts.decode_tokens)} of the answer`);
    drawMatrix($('one-map'), [experts.prefill, experts.decode], tokens);
    const {nearest} = experts;
    $('nearest-map').hidden = !nearest;
    if (nearest) {
      setText($('one-nearest'), `entry ${nearest.entry} of ${nearest.entries}, similarity ${nearest.similarity.toFixed(2)}`);
      drawMatrix($('nearest-map'), [nearest.counts], tokensOf(nearest.counts));
    } else {
      setText($('one-nearest'), experts.collection ? 'none is like it' : 'the predictor keeps no requests; one that does: --predictor eamc');
    }
  } else if (listed && listed.phase === 'waiting') {
    setText($('one-own'), 'it has not begun');
  }
  if (listed && listed.phase !== 'ended') one.timer = setTimeout(showOne, 1000);
}

function openOne(id, name) {
  one.id = id;
  $('one').hidden = false;
  $('one').dataset.id = id;
  setText($('one-name'), name);
  setText($('one-own'), '');
  setText($('one-nearest'), '');
  showOne();
}

function closeOne() {
  one.id = null;
  $('one').hidden = true;
}

$('one-close').addEventListener('click', closeOne);
$('request-rows').addEventListener('click', (event) => {
  const row = event.target.closest('tr');
  if (row) openOne(Number(row.dataset.id), row.cells_[0].textContent);
});

// ----- the conversation

const MAX_MESSAGES = 40;  // that are kept and shown
const chat = {messages: [], stop: null};

function addMessage(role, text) {
  const message = make('div', `message ${role}`, $('chat-log'));
  make('b', '', message).textContent = role === 'user' ? 'You' : view.model.name;
  message.text = make('p', '', message);
  message.text.textContent = text;
  while ($('chat-log').children.length > MAX_MESSAGES) $('chat-log').firstChild.remove();
  $('chat-log').scrollTop = $('chat-log').scrollHeight;
  return message;
}

function setAnswering(answering) {
  $('chat').dataset.state = answering ? 'answering' : 'idle';
  $('chat-send').hidden = answering;
  $('chat-stop').hidden = !answering;
}

// The experts of the answer, twice a second until `ended()`.
async function followAnswer(name, ended) {
  for (;;) {
    const last = ended();
    const listed = view.sample && view.sample.requests.find((request) => request.request_id === name);
    if (listed) {
      const experts = await expertsOf(listed.id, false).catch(() => null);
      if (experts && experts.decode_tokens > 0) {
        drawMatrix($('chat-map'), [experts.decode], experts.decode_tokens);
        setText($('chat-experts'), `${$('chat-map').dataset.used} of ${countText(view.use.length)} experts were used by ${countText(experts.decode_tokens)} tokens of the answer.`);
      }
      if (last && listed.phase === 'ended') return;
    } else if (last && last() > 4000) {
      return;
    }
    await new Promise((go) => setTimeout(go, 500));
  }
}

async function ask(text) {
  chat.messages.push({role: 'user', content: text});
  addMessage('user', text);
  const answer = addMessage('assistant', '');
  const name = `page-${crypto.getRandomValues(new Uint32Array(2)).join('-')}`;
  chat.stop = new AbortController();
  setAnswering(true);
  let endedAt = 0;
  followAnswer(name, () => (endedAt ? () => performance.now() - endedAt : null));
  let said = '';
  let thought = '';
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', signal: chat.stop.signal,
      headers: headers({'Content-Type': 'application/json', 'X-Request-Id': name}),
      body: JSON.stringify({model: view.model.name, messages: chat.messages.slice(-MAX_MESSAGES), stream: true}),
    });
    if (!response.ok) throw new Error(await errorText(response));
    await readEvents(response, (type, data) => {
      if (data === '[DONE]') return;
      const json = JSON.parse(data);
      if (json.error) throw new Error(json.error.message);
      const delta = json.choices[0]?.delta || {};
      said += delta.content || '';
      thought += delta.reasoning || '';
      setText(answer.text, said || thought);
      answer.classList.toggle('thinking', !said && thought !== '');
      $('chat-log').scrollTop = $('chat-log').scrollHeight;
    });
  } catch (error) {
    if (error.name !== 'AbortError') {
      answer.classList.add('failed');
      said = said || error.message;
      setText(answer.text, said);
    }
  }
  chat.messages.push({role: 'assistant', content: said});
  chat.messages.splice(0, Math.max(0, chat.messages.length - MAX_MESSAGES));
  endedAt = performance.now();
  chat.stop = null;
  setAnswering(false);
}

$('chat-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('chat-text').value.trim();
  if (!text || chat.stop || !view.model) return;
  $('chat-text').value = '';
  ask(text);
});
$('chat-text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $('chat-form').requestSubmit();
});
$('chat-stop').addEventListener('click', () => chat.stop?.abort());
