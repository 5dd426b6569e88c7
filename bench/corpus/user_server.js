// An HTTP server with 400,000 user records in its heap: node user_server.js PORT
'use strict';
const http = require('http');

const users = new Map();
for (let i = 0; i < 400000; ++i) {
  users.set(`user:${i}`, { name: `n${i}`, mail: `u${i}@example.org`, hits: i % 97 });
}
http.createServer((request, response) => {
  response.setHeader('Connection', 'close');
  response.end(JSON.stringify(users.get(request.url.slice(1)) || users.size));
}).listen(Number(process.argv[2]), '127.0.0.1');
