// What the other parts share: elements, numbers as text, bytes of base64.

const $ = (id) => document.getElementById(id);

// Sets text only where it differs: a screen reader is told of what has changed.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, parent) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (parent) parent.append(element);
  return element;
}

const percent = (share, digits = 0) => `${(100 * share).toFixed(share > 0 && share < 0.1 && !digits ? 1 : digits)}%`;

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}

function rateText(bytesPerSecond) {
  if (bytesPerSecond >= 1e8) return `${(bytesPerSecond / 1e9).toFixed(2)} GB/s`;
  return `${(bytesPerSecond / 1e6).toFixed(1)} MB/s`;
}

function timeText(us) {
  if (us < 1e3) return `${us} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  return us < 6e7 ? `${(us / 1e6).toFixed(1)} s` : `${Math.floor(us / 6e7)} min ${Math.round(us / 1e6) % 60} s`;
}

const countText = (n) => n.toLocaleString('en');
const tokensPerSecond = (rate) => (rate >= 100 ? rate.toFixed(0) : rate.toFixed(1));

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}
