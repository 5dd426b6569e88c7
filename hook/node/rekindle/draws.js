// What this process has drawn at random while it was watched: pools, which each copy fills anew, and values, which copies
// have in common.
'use strict';

const path = require('path');
const { globalPaths, syncBuiltinESMExports } = require('module');
const { fileURLToPath } = require('url');

// Libraries draw ahead (uuid 256 bytes, nanoid 128 IDs, ws 8 KiB), and fill such a pool again and again, so nobody counts
// on what is in it. What is filled in one go and then kept, a key or an IV, is smaller; randomBytes() gives a value.
const SMALLEST_POOL = 128;
const LARGEST_POOL = 65535; // the memory of a WebAssembly program is larger, and is not to be told from an array
const MOST_POOLS = 1024;
const MOST_POOL_BYTES = 1 << 20; // a WeakRef keeps its array until the turn ends
const MOST_TRACED = 1000; // tracing a call takes longer than to draw
const FRAMES = 64;

const DRAWING = [
  'generateKey', 'generateKeyPair', 'generateKeyPairSync', 'generateKeySync', 'generatePrime', 'generatePrimeSync',
  'prng', 'pseudoRandomBytes', 'randomBytes', 'randomInt', 'randomUUID', 'rng',
];
const EXCHANGING = ['DiffieHellman', 'DiffieHellmanGroup', 'ECDH'];

let crypto; // once it is watched
let fill;
let createHash;
let folder; // where the process was then: later there may be none
let watching = false;
let traced = 0;
let pools = [];
let poolBytes = 0;
let turnedAway = 0; // since it was last looked for pools that are gone
const known = new WeakMap(); // array: its entry in `pools`
const values = new Map(); // what was drawn, in words: the module that had it drawn

/** From now on, until as much has been traced again. What the program has taken from `crypto` before is not seen. */
function watch() {
  watching = true;
  traced = 0;
  if (crypto !== undefined) return;
  try {
    folder = process.cwd();
  } catch {
    folder = path.sep;
  }
  crypto = require('crypto');
  ({ createHash, randomFillSync: fill } = crypto);
  wrap(crypto, 'randomFillSync', (args) => filled(args[0], isWhole(args), trace('randomFillSync')));
  wrapRandomFill();
  for (const name of DRAWING) {
    void crypto[name]; // aliases are made when they are first read
    wrap(crypto, name, () => note(trace(name)));
  }
  for (const name of EXCHANGING) {
    if (crypto[name] !== undefined) {
      wrap(crypto[name].prototype, 'generateKeys', () => note(trace(`${name}.generateKeys`)));
    }
  }
  const web = crypto.webcrypto;
  if (web !== undefined) {
    const prototype = Object.getPrototypeOf(web);
    wrap(prototype, 'getRandomValues', (args) => filled(args[0], true, trace('getRandomValues')));
    wrap(prototype, 'randomUUID', () => note(trace('randomUUID')));
    wrap(Object.getPrototypeOf(web.subtle), 'generateKey', () => note(trace('subtle.generateKey')));
  }
  syncBuiltinESMExports();
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

/** Whether anything may have been drawn with `crypto`: Node.js's own code draws past what is watched. */
function usesCrypto() {
  return crypto !== undefined || process.moduleLoadList.includes('NativeModule internal/crypto/random');
}

function wrap(holder, name, look) {
  replace(holder, name, (real) => function (...args) {
    const result = Reflect.apply(real, this, args); // what throws has drawn nothing
    if (watching) attempt(() => look(args));
    return result;
  });
}

/** The array is filled when the callback is called. */
function wrapRandomFill() {
  replace(crypto, 'randomFill', (real) => function (...args) {
    const callback = args[args.length - 1];
    let draw;
    if (watching && typeof callback === 'function') {
      attempt(() => {
        draw = trace('randomFill');
      });
      args[args.length - 1] = function (...results) {
        if (draw !== undefined && !results[0]) attempt(() => filled(args[0], isWhole(args), draw));
        return Reflect.apply(callback, this, results);
      };
    }
    return Reflect.apply(real, this, args);
  });
}

function replace(holder, name, make) {
  const property = Object.getOwnPropertyDescriptor(holder, name);
  if (property === undefined || typeof property.value !== 'function' || !property.configurable) return;
  const wrapper = make(property.value);
  attempt(() => {
    Object.defineProperties(wrapper, Object.getOwnPropertyDescriptors(property.value));
    Object.defineProperty(holder, name, { ...property, value: wrapper });
  });
}

/** To look must never be the program's misfortune. */
function attempt(look) {
  try {
    look();
  } catch {
    // What it was is not told.
  }
}

function isWhole([array, offset, size]) {
  if (typeof offset !== 'number') return true;
  const end = typeof size === 'number' ? offset + size : array.length;
  return offset === 0 && end === (array.length === undefined ? array.byteLength : array.length);
}

/**
 * Not a window of something larger, nor what others write to at the same time. A buffer of the slab that Node.js cuts
 * small ones from is one by itself.
 */
function isPool(array) {
  if (!ArrayBuffer.isView(array)) return false;
  const { buffer, byteLength } = array;
  if (byteLength < SMALLEST_POOL || byteLength > LARGEST_POOL) return false;
  if (!(buffer instanceof ArrayBuffer) || buffer.resizable) return false;
  return byteLength === buffer.byteLength || (Buffer.isBuffer(array) && buffer.byteLength === Buffer.poolSize);
}

/** A program's own array may be a key, or a table that it goes by: only what libraries fill is taken for a pool. */
function filled(array, whole, draw) {
  const kept = whole && draw.drawer !== undefined && isOfLibrary(draw.drawer) && isPool(array) && keep(array, draw);
  // A library's own, filled when it was loaded: nobody has taken anything from it by then.
  if (kept && draw.calls === 1) return;
  note(draw);
}

function isOfLibrary(file) {
  return file.includes('/node_modules/') || globalPaths.some((place) => file.startsWith(place + path.sep));
}

/** False: there are too many. */
function keep(array, draw) {
  const entry = known.get(array);
  if (entry !== undefined) {
    entry.draw = draw;
    entry.digest = digestOf(array);
    return true;
  }
  const isFull = () => pools.length >= MOST_POOLS || poolBytes + array.byteLength > MOST_POOL_BYTES;
  if (isFull()) {
    if (turnedAway++ % MOST_POOLS !== 0) return false;
    keepOnly(({ ref }) => ref.deref() !== undefined);
    if (isFull()) return false;
    turnedAway = 0;
  }
  const added = { ref: new WeakRef(array), bytes: array.byteLength, digest: digestOf(array), draw };
  known.set(array, added);
  pools.push(added);
  poolBytes += added.bytes;
  return true;
}

function keepOnly(isKept) {
  pools = pools.filter(isKept);
  poolBytes = pools.reduce((sum, { bytes }) => sum + bytes, 0);
}

function digestOf(array) {
  return createHash('sha256').update(array).digest('latin1');
}

/** What the program has written to since it was filled holds something else by now: that stays, and is told. */
function leaveChanged() {
  keepOnly((entry) => {
    const array = entry.ref.deref();
    if (array === undefined) return false;
    if (digestOf(array) === entry.digest) return true;
    known.delete(array);
    note(entry.draw);
    return false;
  });
}

function note({ text, file }) {
  if (text !== undefined) values.set(text, file);
}

/** Which module had it drawn, when that was loaded, and through how many calls of code that is not Node.js's. */
function trace(name) {
  if (traced >= MOST_TRACED) return { text: `others: more than the ${MOST_TRACED} draws that are looked at` };
  ++traced;
  const files = filesOfCallers();
  if (files === null) return { text: `somebody: ${name}` };
  if (files.length === 0) return {};
  const file = files[files.length - 1];
  const by = nameOf(file);
  const through = nameOf(files[0]);
  return { text: `${by}: ${name}${through === by ? '' : ` by ${through}`}`, file, calls: files.length, drawer: files[0] };
}

/** Innermost first, up to the module that is being loaded. Null: the program has made it its own. */
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
    return null;
  } finally {
    attempt(() => {
      Error.prepareStackTrace = prepareStackTrace;
    });
    attempt(() => {
      Error.stackTraceLimit = stackTraceLimit;
    });
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
  const relative = path.relative(folder, file);
  return relative.startsWith('..') ? file : relative;
}

/** To be called before parking: whatever takes time is done here. Returns what a copy calls. */
function prepareRefill() {
  if (crypto === undefined) return () => {};
  attempt(leaveChanged);
  return () => {
    for (const entry of pools) {
      attempt(() => {
        const array = entry.ref.deref();
        if (array === undefined) return;
        fill(array);
        entry.digest = digestOf(array);
      });
    }
  };
}

/**
 * Values that copies have in common, in words, as "app.js: randomUUID by uuid", and the file that had them drawn, or
 * undefined where that is not known.
 */
function drawn() {
  if (crypto !== undefined) attempt(leaveChanged);
  return [...values].map(([text, file]) => ({ text, file })).sort((one, other) => (one.text < other.text ? -1 : 1));
}

module.exports = { drawn, pause, prepareRefill, usesCrypto, watch, watchMath };
