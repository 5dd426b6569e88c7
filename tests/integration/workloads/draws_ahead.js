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

/** IDs of 16 bytes from a pool, which is filled by `fill` when it is used up. */
function idsFrom(pool, fill) {
  let used = pool.length;
  return () => {
    if (used + 16 > pool.length) {
      fill(pool);
      used = 0;
    }
    used += 16;
    return Buffer.from(pool.subarray(used - 16, used)).toString('hex');
  };
}

const fillSync = (pool) => crypto.randomFillSync(pool);
const pools = {
  uuid: idsFrom(new Uint8Array(256), fillSync),
  slab: idsFrom(Buffer.allocUnsafe(21 * 128), fillSync),
  large: idsFrom(Buffer.alloc(8192), (pool) => crypto.randomFillSync(pool, 0, pool.length)),
  web: idsFrom(new Uint8Array(256), (pool) => globalThis.crypto.getRandomValues(pool)),
};
const drawAll = () => Object.fromEntries(Object.entries(pools).map(([name, draw]) => [name, draw()]));

const memory = new WebAssembly.Memory({ initial: 1 });
const keys = {
  given: crypto.randomBytes(32),
  long: crypto.randomBytes(256),
  filled: crypto.randomFillSync(Buffer.alloc(64)),
  window: crypto.randomFillSync(new Uint8Array(memory.buffer, 1024, 256)),
};
const keysNow = () => Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, Buffer.from(key).toString('hex')]));

async function main() {
  const later = new Uint8Array(256);
  await new Promise((resolve) => crypto.randomFill(later, resolve));
  let used = 0;
  pools.later = () => Buffer.from(later.subarray(used, (used += 16))).toString('hex');
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
