// Drawing on canvases: colours of the theme, the map of experts, charts over time.

const dark = matchMedia('(prefers-color-scheme: dark)');
// From unused to the most used: one hue, and lightness that only falls (or, in the dark, rises).
const RAMPS = {
  light: ['#eff3f8', '#cbdcec', '#8fb9da', '#4b8dc0', '#1f5f9e', '#0a2c5e'],
  dark: ['#1b222e', '#1f3b5c', '#2f6390', '#6796b5', '#b3cac2', '#fbeeb9'],
};
let colours = {};
let ramp = [];

function channels(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// 256 colours as text.
function makeRamp(stops) {
  const parts = stops.map(channels);
  return Array.from({length: 256}, (_, i) => {
    const at = (i / 255) * (parts.length - 1);
    const low = Math.min(Math.floor(at), parts.length - 2);
    const mixed = parts[low].map((c, k) => Math.round(c + (parts[low + 1][k] - c) * (at - low)));
    return `rgb(${mixed.join(',')})`;
  });
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ink', 'soft', 'line', 'card', 'track', 'accent', 'resident', 'arriving', 'left', 'absent', 'hit', 'late', 'miss'];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  ramp = makeRamp(dark.matches ? RAMPS.dark : RAMPS.light);
}

// A context in CSS pixels, cleared. The bitmap is made anew only when its size has changed.
function contextOf(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  return context;
}

const PLACES = ['not in memory', 'in memory', 'arriving', 'just left'];
const MAP_LEFT = 30;  // of the layers' numbers
const MAP_TOP = 16;   // of the experts'

// How the map of so many rows and columns lies on a canvas of this width.
function layOutMap(rows, columns, width) {
  const room = Math.max(60, width - MAP_LEFT - 1);
  const cell = Math.max(2, Math.min(44, Math.floor(room / columns)));
  const row = rows > 64 ? 8 : rows > 32 ? 10 : rows > 16 ? 13 : cell < 16 ? 16 : 22;
  const strip = Math.max(2, Math.round(row / 4));  // where it is: the row's lower part
  return {rows, columns, cell, row, strip, gap: cell >= 6 ? 1 : 0,
          width: MAP_LEFT + cell * columns + 1, height: MAP_TOP + row * rows + 1};
}

function tickEvery(columns, cell) {
  for (const step of [1, 2, 4, 8, 16, 32, 64, 128]) {
    if (step * cell >= 26 || step >= columns) return step;
  }
  return columns;
}

// use: bytes [rows, columns] up to `most`; places: likewise, or empty. numbers: of the layers.
function drawMap(canvas, layout, numbers, use, places, most, cursor) {
  const context = contextOf(canvas, layout.width, layout.height);
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const {rows, columns, cell, row, strip, gap} = layout;
  context.fillStyle = colours.soft;
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  const ticks = tickEvery(columns, cell);
  for (let c = 0; c < columns; c += ticks) context.fillText(c, MAP_LEFT + (c + 0.5) * cell, 7);
  context.textAlign = 'right';
  const every = row >= 13 ? 1 : 2;
  for (let r = 0; r < rows; r += every) context.fillText(numbers[r], MAP_LEFT - 7, MAP_TOP + (r + 0.5) * row);
  const stripes = [colours.absent, colours.resident, colours.arriving, colours.left];
  const top = places.length ? row - strip - 2 : row - 1;
  for (let r = 0; r < rows; ++r) {
    const y = MAP_TOP + r * row;
    for (let c = 0; c < columns; ++c) {
      const i = r * columns + c;
      const x = MAP_LEFT + c * cell;
      context.fillStyle = ramp[most > 0 ? Math.min(255, Math.round((255 * use[i]) / most)) : 0];
      context.fillRect(x, y, cell - gap, top);
      if (!places.length) continue;
      context.fillStyle = stripes[places[i]];
      context.fillRect(x, y + top, cell - gap, strip);
    }
  }
  if (cursor) {
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(MAP_LEFT + cursor.column * cell - 1, MAP_TOP + cursor.row * row - 1, Math.max(cell, 4) + 1, row + 1);
  }
}

function drawScale(canvas) {
  const context = contextOf(canvas, 96, 10);
  for (let x = 0; x < 96; ++x) {
    context.fillStyle = ramp[Math.round((255 * x) / 95)];
    context.fillRect(x, 0, 1, 10);
  }
}

// series: [{values, colour}], from the bottom up; values are as many as `times`, null where nothing
// was measured. The newest is at the right edge; `span` is what the width stands for.
function drawStacked(canvas, times, series, {now, span, most, label}) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const context = contextOf(canvas, width, height);
  const right = 40;
  const bottom = height - 4;
  const top = 8;
  const x = (time) => (width - right) * (1 - (now - time) / span);
  const y = (value) => bottom - (bottom - top) * Math.min(1, value / most);
  context.fillStyle = colours.soft;
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  for (const part of [0, 0.5, 1]) {
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, Math.round(y(part * most)) + 0.5);
    context.lineTo(width - right, Math.round(y(part * most)) + 0.5);
    context.stroke();
    context.fillText(label(part * most), width - right + 6, Math.min(bottom - 3, y(part * most) + 1));
  }
  const floor = new Array(times.length).fill(0);
  for (const {values, colour} of series) {
    context.fillStyle = colour;
    for (let i = 1; i < times.length; ++i) {
      if (values[i] === null || x(times[i]) < 0) continue;
      const left = Math.max(0, x(times[i - 1]));
      const high = y(floor[i] + values[i]);
      context.fillRect(left, high, Math.max(1, x(times[i]) - left + 0.5), y(floor[i]) - high);
      floor[i] += values[i];
    }
  }
}

// The next round number above.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
