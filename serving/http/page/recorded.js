// A recorded trace in place of a server: what `moesaic trace show --html` writes holds its data.

function squaresOf(base64) {
  return Float64Array.from(bytesOf(base64), (byte) => (byte / 255) ** 2);
}

// Cosine of the matrices of two sequences.
function similarityOf(a, b) {
  let both = 0;
  let aa = 0;
  let bb = 0;
  a.forEach((x, i) => {
    both += x * b[i];
    aa += x * x;
    bb += b[i] * b[i];
  });
  return both > 0 ? both / Math.sqrt(aa * bb) : 0;
}

function showRecordedOne(id) {
  const {sequences} = view.recorded;
  const own = sequences[id];
  own.shares ||= squaresOf(own.use);
  let best = -1;
  let similarity = 0;
  sequences.forEach((other, i) => {
    if (i === id) return;
    other.shares ||= squaresOf(other.use);
    const s = similarityOf(own.shares, other.shares);
    if (s > similarity) [best, similarity] = [i, s];
  });
  setText($('one-own'), `${countText(own.prompt_tokens)} tokens of the prompt, ${countText(own.output_tokens)} of the answer`);
  drawPlane($('one-map'), bytesOf(own.use), own.prompt_tokens + own.output_tokens);
  $('nearest-map').hidden = best < 0;
  setText($('one-nearest'), best < 0 ? 'none is like it' : `${sequences[best].id || `#${best}`}, similarity ${similarity.toFixed(2)}`);
  if (best >= 0) drawPlane($('nearest-map'), bytesOf(sequences[best].use), sequences[best].prompt_tokens + sequences[best].output_tokens);
}

function showWindow(i) {
  const {recorded} = view;
  const window = recorded.windows[i];  // -1: all
  view.use = bytesOf(window ? window.use : recorded.use);
  view.most = Math.max(...view.use);
  $('map').dataset.window = i;
  const before = recorded.windows.slice(0, Math.max(0, i)).reduce((sum, w) => sum + w.tokens, 0);
  setText($('window-note'), window
    ? `tokens ${countText(before + 1)} to ${countText(before + window.tokens)} of ${countText(recorded.tokens)}${window.in ? `, ${window.in}` : ''}`
    : `all ${countText(recorded.tokens)} tokens`);
  renderMap();
}

function showRecorded(recorded) {
  view.recorded = recorded;
  view.layers = recorded.layers;
  view.model = {name: recorded.model || recorded.file, experts: recorded.experts, experts_per_token: recorded.experts_per_token};
  view.sample = {number: 0, experts_resident: 0, running: 0, waiting: 0, preemptions: 0, requests: recorded.sequences.map((sequence, id) => ({
    ...sequence, id, request_id: sequence.id || `#${id}`, phase: 'ended', ended: sequence.domain || 'recorded',
    cached_tokens: 0, max_tokens: Math.max(1, sequence.output_tokens),
  }))};
  document.body.dataset.state = 'recorded';
  document.title = `${recorded.file} · Moesaic`;
  setText($('model-name'), recorded.file);
  setText($('state'), 'recorded');
  for (const id of ['figures', 'time', 'link', 'recall', 'memory', 'model', 'chat', 'no-requests']) $(id).hidden = true;
  for (const item of document.querySelectorAll('.key-item .resident, .key-item .arriving, .key-item .left, .key-item .absent')) item.parentElement.hidden = true;
  setText($('requests-title'), 'Sequences');
  $('player').hidden = false;
  $('window').max = recorded.windows.length - 1;
  renderRequests();
  const left = recorded.all_sequences - recorded.sequences.length;
  setText($('requests-note'), `${countText(recorded.all_sequences)} of ${recorded.model || 'a model'}, top ${recorded.experts_per_token} of ${recorded.experts} experts` + (left > 0 ? `; the first ${recorded.sequences.length} are listed` : ''));
  showWindow(-1);
}

let playing = 0;
$('play').addEventListener('click', () => {
  if (playing) {
    clearInterval(playing);
    playing = 0;
  } else {
    playing = setInterval(() => {
      const next = Number($('window').value) + 1;
      $('window').value = next >= view.recorded.windows.length ? 0 : next;
      showWindow(Number($('window').value));
    }, 120);
  }
  setText($('play'), playing ? 'Pause' : 'Play');
});
$('window').addEventListener('input', () => showWindow(Number($('window').value)));
$('window-all').addEventListener('click', () => showWindow(-1));
