// New random states for a copy. OpenSSL's generator is the addon's; here is what Node.js and V8 keep drawn from it.
'use strict';

const draws = require('./draws.js');

const UUIDS_KEPT = 128;
const INTEGERS_KEPT = 1024;

/**
 * To be called before parking: whatever takes time is done here. Returns what a copy calls, in which what is drawn is its
 * own from then on: nobody watches any more.
 */
function prepare() {
  const watched = draws.pause();
  const steps = [prepareMathRandom()];
  if (draws.usesCrypto()) steps.push(prepareCrypto(), draws.prepareRefill());
  if (watched) draws.watch();
  return () => {
    draws.pause();
    steps.forEach((step) => step());
  };
}

/**
 * V8 has no way to seed Math.random() again, but each context's has a state of its own, which is made at its first
 * call. References to the function that were taken before lead to the old one.
 */
function prepareMathRandom() {
  // With a seed of the user's, it is to repeat.
  if (process.execArgv.some((option) => /^--random[-_]seed/.test(option))) return () => {};
  const v8 = require('v8');
  const fresh = require('vm').runInNewContext('Math.random');
  const seed = require('crypto').randomBytes;
  return () => {
    v8.setFlagsFromString(`--random-seed=${(seed(4).readUInt32LE() >>> 1) || 1}`);
    fresh();
    v8.setFlagsFromString('--random-seed=0');
    Math.random = fresh;
  };
}

/** randomUUID() and randomInt() draw ahead of time. */
function prepareCrypto() {
  const crypto = require('crypto');
  const integers = integerCache(crypto);
  return () => {
    for (let i = 0; i < UUIDS_KEPT; ++i) crypto.randomUUID();
    if (integers !== undefined) {
      crypto.randomFillSync(integers);
    } else {
      for (let i = 0; i < INTEGERS_KEPT; ++i) crypto.randomInt(2);
    }
  };
}

/** The buffer that randomInt() takes its numbers from, as far as this version of Node.js shows it: filling it anew is
 * quicker than using it up.
 */
function integerCache(crypto) {
  const read = Buffer.prototype.readUIntBE;
  let cache;
  Buffer.prototype.readUIntBE = function (...args) {
    cache = this;
    return read.apply(this, args);
  };
  try {
    crypto.randomInt(2);
  } finally {
    Buffer.prototype.readUIntBE = read;
  }
  return cache !== undefined && cache.length === 6 * INTEGERS_KEPT ? cache : undefined;
}

module.exports = { prepare };
