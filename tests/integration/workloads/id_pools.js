// As libraries for IDs have it: bytes are drawn ahead.
'use strict';

const crypto = require('crypto');

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

async function fillLater() {
  const later = new Uint8Array(256);
  await new Promise((resolve) => crypto.randomFill(later, resolve));
  let used = 0;
  pools.later = () => Buffer.from(later.subarray(used, (used += 16))).toString('hex');
}

module.exports = { fillLater, pools };
