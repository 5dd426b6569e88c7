// An HTTP server with state in its heap: GET /put?key=value changes it, every answer is all of it with a
// digest.
//   node node_server.js PORT
'use strict';
const crypto = require('crypto');
const http = require('http');

const state = new Map();
const blocks = [];
for (let i = 0; i < 64; ++i) blocks.push(Buffer.alloc(64 * 1024, `block ${i} `));
let ticks = 0;
setInterval(() => { ++ticks; }, 10);

function digest() {
  const hash = crypto.createHash('sha256');
  for (const block of blocks) hash.update(block);
  hash.update(JSON.stringify([...state]));
  return hash.digest('hex');
}

http.createServer((request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/put') for (const [key, value] of url.searchParams) state.set(key, value);
  response.setHeader('Connection', 'close');
  const answer = { pid: process.pid, ticks, state: Object.fromEntries(state), digest: digest() };
  response.end(JSON.stringify(answer));
}).listen(Number(process.argv[2]), '127.0.0.1');
