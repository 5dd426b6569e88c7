// A program that draws at random before it is parked: ahead, as libraries for IDs do, and keys.
//
//   node draws_ahead.js DIR
//
// Each copy writes DIR/report.NAME, and ends.
'use strict';

const fs = require('fs');
const path = require('path');
const rekindle = require('rekindle');

const crypto = require('crypto');

process.chdir(__dirname);

// A library's, which the test puts there: a program's own arrays are taken for no pools.
const { pools, fillLater } = require(path.join(process.argv[2], 'node_modules', 'id_pools.js'));
const drawAll = () => Object.fromEntries(Object.entries(pools).map(([name, draw]) => [name, draw()]));

const memory = new WebAssembly.Memory({ initial: 1 });
const keys = {
  given: crypto.randomBytes(32),
  long: crypto.randomBytes(256),
  filled: crypto.randomFillSync(Buffer.alloc(64)),
  window: crypto.randomFillSync(new Uint8Array(memory.buffer, 1024, 256)),
  array: crypto.getRandomValues(new Uint8Array(128)),
};
const keysNow = () => Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, Buffer.from(key).toString('hex')]));

async function main() {
  await fillLater();
  const before = { ids: drawAll(), keys: keysNow() };
  await rekindle.ready();
  const report = { before, ids: drawAll(), keys: keysNow(), unrenewed: rekindle.unrenewed() };
  const file = path.join(process.argv[2], `report.${rekindle.instance().name}`);
  fs.writeFileSync(`${file}.part`, JSON.stringify(report));
  fs.renameSync(`${file}.part`, file);
}

main().catch((error) => {
  console.error(error);
  process.exit(90);
});
