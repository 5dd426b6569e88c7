// What this process has drawn at random while it was watched: pools, which each copy fills anew, and values, which copies
// have in common.
'use strict';

const path = require('path');
const { fileURLToPath } = require('url');

// Libraries draw ahead (uuid 256 bytes, nanoid 128 IDs, ws 8 KiB), and fill such a pool again and again, so nobody counts
// on what is in it. What is filled in one go and then kept, a key or an IV, is smaller; randomBytes() gives a value.
const SMALLEST_POOL = 128;
const MOST_POOLS = 1024;
const MOST_TRACED = 1000; // tracing a call takes longer than to draw
const FRAMES = 64;

const FILLING = ['randomFill', 'randomFillSync'];
const DRAWING = [
  'generateKey', 'generateKeyPair', 'generateKeyPairSync', 'generateKeySync', 'pseudoRandomBytes', 'randomBytes',
  'randomInt', 'randomUUID',
];

let crypto; // once it is watched
let fill;
let watching = false;
let used = false;
let traced = 0;
let pools = [];
const known = new WeakSet();
const values = new Map(); // what was drawn, in words: the module that had it drawn

/** From now on. What the program has taken from `crypto` before is not seen. */
function watch() {
  watching = true;
  if (crypto !== undefined) return;
  used = process.moduleLoadList.includes('NativeModule internal/crypto/random');
  crypto = require('crypto');
  fill = crypto.randomFillSync;
  for (const name of FILLING) wrap(crypto, name, (args) => filled(args[0], isWhole(args), name));
  for (const name of DRAWING) wrap(crypto, name, () => drew(name));
  const web = crypto.webcrypto;
  if (web !== undefined) {
    const prototype = Object.getPrototypeOf(web);
    wrap(prototype, 'getRandomValues', (args) => filled(args[0], true, 'getRandomValues'));
    wrap(prototype, 'randomUUID', () => drew('randomUUID'));
    wrap(Object.getPrototypeOf(web.subtle), 'generateKey', () => drew('subtle.generateKey'));
  }
  require('module').syncBuiltinESMExports();
}

/** Of Math.random() too, where code calls it that `isOwn`: libraries make up names with it. */
function watchMath(isOwn) {
  let left = MOST_TRACED / 10;
  wrap(Math, 'random', () => {
    if (left-- <= 0) return;
    const draw = trace('Math.random');
    if (draw.drawer !== undefined && isOwn(draw.drawer)) note(draw);
  });
}

/** What it has seen stays. Returns whether it was watched until now. */
function pause() {
  const before = watching;
  watching = false;
  return before;
}

/** Whether anything may have been drawn with `crypto`. */
function usesCrypto() {
  return crypto === undefined ? process.moduleLoadList.includes('NativeModule internal/crypto/random') : used;
}

function wrap(holder, name, note) {
  const property = Object.getOwnPropertyDescriptor(holder, name);
  if (property === undefined || typeof property.value !== 'function' || !property.configurable) return;
  const real = property.value;
  const wrapper = function (...args) {
    const result = Reflect.apply(real, this, args); // what throws has drawn nothing
    if (watching) {
      note(args);
    }
    return result;
  };
  Object.defineProperties(wrapper, Object.getOwnPropertyDescriptors(real));
  Object.defineProperty(holder, name, { ...property, value: wrapper });
}

function isWhole([array, offset, size]) {
  if (typeof offset !== 'number') return true;
  const end = typeof size === 'number' ? offset + size : array.length;
  return offset === 0 && end === (array.length === undefined ? array.byteLength : array.length);
}

/** Not a window of something larger, such as the memory of a WebAssembly program, which is somebody else's by then. */
function isPool(array) {
  if (!ArrayBuffer.isView(array) || array.byteLength < SMALLEST_POOL) return false;
  const whole = array.buffer.byteLength;
  return array.byteLength === whole || (Buffer.isBuffer(array) && whole === Buffer.poolSize);
}

function filled(array, whole, name) {
  used = true;
  const draw = trace(name);
  const kept = whole && isPool(array) && keep(array);
  // A library's own, filled when it was loaded: nobody has taken anything from it by then.
  if (kept && draw.calls === 1) return;
  note(draw);
}

/** False: there are too many. */
function keep(array) {
  if (known.has(array)) return true;
  if (pools.length >= MOST_POOLS) pools = pools.filter((pool) => pool.deref() !== undefined);
  if (pools.length >= MOST_POOLS) return false;
  known.add(array);
  pools.push(new WeakRef(array));
  return true;
}

function drew(name) {
  used = true;
  note(trace(name));
}

function note({ text, file }) {
  if (text !== undefined) values.set(text, file);
}

/** Which module had it drawn, when that was loaded, and through how many calls of code that is not Node.js's. */
function trace(name) {
  if (traced >= MOST_TRACED) return {};
  ++traced;
  const files = filesOfCallers();
  if (files.length === 0) return {};
  const file = files[files.length - 1];
  const by = nameOf(file);
  const through = nameOf(files[0]);
  return { text: `${by}: ${name}${through === by ? '' : ` by ${through}`}`, file, calls: files.length, drawer: files[0] };
}

/** Innermost first, up to the module that is being loaded. */
function filesOfCallers() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  const holder = {};
  try {
    Error.stackTraceLimit = FRAMES;
    Error.prepareStackTrace = (_, sites) => sites.map((site) => site.getFileName());
    Error.captureStackTrace(holder, filesOfCallers);
    const files = [];
    for (const file of holder.stack) {
      if (!file || file.startsWith(__dirname + path.sep)) continue;
      if (!file.startsWith('node:')) files.push(pathOf(file));
      else if (files.length > 0 && file.startsWith('node:internal/modules/')) break;
    }
    return files;
  } catch {
    return []; // the program has made it its own
  } finally {
    Error.prepareStackTrace = prepareStackTrace;
    Error.stackTraceLimit = stackTraceLimit;
  }
}

function pathOf(file) {
  return file.startsWith('file:') ? fileURLToPath(file) : file;
}

/** The package, or the file of the program's own code. */
function nameOf(file) {
  const inside = file.split('/node_modules/');
  if (inside.length > 1) {
    const last = inside[inside.length - 1];
    return last.split('/', last.startsWith('@') ? 2 : 1).join('/');
  }
  const relative = path.relative(process.cwd(), file);
  return relative.startsWith('..') ? file : relative;
}

/** In a copy. */
function refill() {
  for (const pool of pools) {
    const array = pool.deref();
    if (array !== undefined) fill(array);
  }
}

/** Values that copies have in common, in words, as "app.js: randomUUID by uuid", and the file that had them drawn. */
function drawn() {
  return [...values].map(([text, file]) => ({ text, file })).sort((one, other) => (one.text < other.text ? -1 : 1));
}

module.exports = { drawn, pause, refill, usesCrypto, watch, watchMath };
