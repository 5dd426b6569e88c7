// A job of Node.js that says what it finds once it has woken up as a copy.
//
//   node hook_probe.js DIR
//
// Each copy writes DIR/report.NAME; it ends with the status that is in DIR/exit.NAME.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const rekindle = require('rekindle');

const directory = process.argv[2];
const order = [];
let ticks = 0;
let interval;

rekindle.registerBeforeSnapshot(async (word) => {
  await new Promise((resolve) => setImmediate(resolve));
  order.push(word);
}, 'before-1');
rekindle.registerBeforeSnapshot(() => order.push('before-2'));
rekindle.registerAfterRestore(async () => {
  await new Promise((resolve) => setTimeout(resolve, 1));
  order.push('after-1');
});
rekindle.registerAfterRestore((word) => order.push(word), 'after-2');

async function main() {
  // All caches are in use, and all threads of the pool.
  crypto.randomUUID();
  crypto.randomInt(10);
  await Promise.all(Array.from({ length: 8 }, () => new Promise((done) => crypto.randomBytes(16, done))));
  interval = setInterval(() => ++ticks, 1);
  const event = await rekindle.ready();
  const self = rekindle.instance();
  const report = {
    event,
    self,
    order,
    pid: process.pid,
    tag: process.env.TAG,
    zone: new Date(0).getHours(),
    uuid: crypto.randomUUID(),
    integer: crypto.randomInt(2 ** 47),
    bytes: crypto.randomBytes(16).toString('hex'),
    pool: await new Promise((done) => crypto.randomBytes(16, (error, bytes) => done(bytes.toString('hex')))),
    web: globalThis.crypto ? globalThis.crypto.getRandomValues(new Uint32Array(4)).join() : String(Math.random()),
    math: Math.random(),
    refusal: event === rekindle.RESTORED ? rekindle.unsafeToFork() : '',
  };
  if (event === rekindle.RESTORED) rekindle.send({ type: 'hello' });
  const name = self ? self.name : event;
  const file = path.join(directory, `report.${name}`);
  fs.writeFileSync(`${file}.part`, JSON.stringify(report));
  fs.renameSync(`${file}.part`, file);
  const atFirst = ticks;
  const poll = setInterval(() => {
    const exit = path.join(directory, `exit.${name}`);
    // Timers run on.
    if (ticks === atFirst || !fs.existsSync(exit)) return;
    clearInterval(poll);
    clearInterval(interval);
    process.exitCode = Number(fs.readFileSync(exit, 'ascii'));
  }, 2);
}

main().catch((error) => {
  console.error(error);
  process.exit(90);
});
