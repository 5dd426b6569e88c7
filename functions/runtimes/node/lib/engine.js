// What V8 and Node.js are told, since they have seen the machine on which an image was taken, and its time, and not the
// instance that they run in.
'use strict';

const { performance } = require('perf_hooks');
const v8 = require('v8');

// The global ones are the code's to replace.
const sinceStart = performance.now.bind(performance);
const asJson = performance.toJSON.bind(performance);
const today = Date.now.bind(Date);
const define = Reflect.defineProperty.bind(Reflect);
const originAtStart = performance.timeOrigin;
let follows = false;

const MIB = 1024 * 1024;
// Up to here Node.js itself would keep the space for young objects at its smallest; that costs time.
const SMALL_MEMORY = 256;

/** Before an image is taken: nothing may be in use by then that a copy would not have. */
function prepareForImages() {
  // It marks code with a protection key, which no copy has: WebAssembly, and with it fetch(), would end the process.
  // Newer ones don't know the option, and would say so in the log; they use none.
  if (parseInt(process.versions.node, 10) < 22) v8.setFlagsFromString('--no-wasm-memory-protection-keys');
}

/**
 * In a copy: how large the heap may get was set when Node.js started, by the memory of the machine. If the function has
 * less, it would be killed for memory while V8 sees no need to collect what is garbage.
 */
function keepWithin(memorySize) {
  if (!(memorySize * MIB < v8.getHeapStatistics().heap_size_limit)) return;
  v8.setFlagsFromString('--heap-growing-percent=30');
  if (memorySize <= SMALL_MEMORY) v8.setFlagsFromString('--semi-space-growth-factor=1');
}

/**
 * Before an image is taken: `performance.timeOrigin` is read once when Node.js starts, and performance.now() stands
 * still while a process is an image, so the time that they give together would be behind by the age of that. `instance`
 * tells which copy this process is.
 */
function followClock(instance) {
  if (follows) return;
  follows = true;
  let origin = originAtStart;
  let of = instance();
  const get = () => {
    if (of !== instance()) {
      of = instance();
      origin = today() - sinceStart();
    }
    return origin;
  };
  const toJSON = () => ({ ...asJson(), timeOrigin: get() });
  // Not where the code has made them its own: nothing is thrown.
  define(performance, 'timeOrigin', { configurable: true, enumerable: true, get });
  define(performance, 'toJSON', { configurable: true, enumerable: false, writable: true, value: toJSON });
}

module.exports = { followClock, prepareForImages, keepWithin };
