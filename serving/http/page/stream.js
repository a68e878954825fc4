// Server-sent events over fetch, which can send a key in a header as EventSource cannot.

const KEY_NAME = 'moesaic-api-key';

function headers(more) {
  const key = sessionStorage.getItem(KEY_NAME);
  return key ? {...more, Authorization: `Bearer ${key}`} : {...more};
}

// Calls onEvent(type, data) for each event of a response until its end. `data` is text.
async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf('\n\n')) >= 0) {
      let type = 'message';
      const data = [];
      for (const line of buffer.slice(0, end).split('\n')) {
        if (line.startsWith('event: ')) type = line.slice(7);
        if (line.startsWith('data: ')) data.push(line.slice(6));
      }
      buffer = buffer.slice(end + 2);
      if (data.length > 0) onEvent(type, data.join('\n'));
    }
  }
}

async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}
