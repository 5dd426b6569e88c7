// Rekindle's runtime hook: hold a program when it is ready, and wake up as one of many copies.
//
//   const rekindle = require('rekindle');
//   rekindle.registerAfterRestore(() => database.connect());
//   await loadEverything();
//   await rekindle.ready();   // without `rekindle run --hold` this returns at once
//   serve();
//
// A job that `rekindle run` supervises says how far it is, and when an image is cheap; elsewhere that does nothing:
//
//   rekindle.progress(step, total);
//   rekindle.checkpointHere();
//
// Needs rekindle_hook.node, which is looked for only when the process is really to be held or supervised: in
// $REKINDLE_HOOK_ADDON, beside this package, and in the lib folders above it.
'use strict';

const fs = require('fs');
const path = require('path');

const draws = require('./draws.js');

const NOT_HELD = 'not held';
const CONTINUED = 'continued';
const RESTORED = 'restored';

const ADDON = 'rekindle_hook.node';

const beforeSnapshot = [];
const afterRestore = [];
const beforeCheckpoint = [];
let loaded;
let supervised; // the addon, null when nobody supervises this process, undefined before the first call
let self = null;

// Held or not is known from the start; what a module draws when it is loaded is seen if the hook was loaded before it.
if (process.env.REKINDLE_HOLD === '1') draws.watch();

/** Has func(...args) called before the process parks, the last registered first; promises are waited for. */
function registerBeforeSnapshot(func, ...args) {
  beforeSnapshot.push([func, args]);
  return func;
}

/** Has func(...args) called in each copy, the first registered first; promises are waited for. */
function registerAfterRestore(func, ...args) {
  afterRestore.push([func, args]);
  return func;
}

/**
 * Has func(...args) called by checkpointHere() when an image is about to be taken, the last registered first: to let
 * go of what need not be in it, such as caches. Promises are not waited for.
 */
function registerBeforeCheckpoint(func, ...args) {
  beforeCheckpoint.push([func, args]);
  return func;
}

/**
 * Parks the process until it is woken. Resolves to NOT_HELD, CONTINUED or RESTORED (then instance() tells more);
 * rejects when the process can't be parked, and with what a callback throws.
 *
 * While it is parked nothing of it runs: no timer, no handler of a signal or a socket.
 */
async function ready() {
  if (loaded === undefined && process.env.REKINDLE_HOLD !== '1') return NOT_HELD;
  const hook = load();
  // It remembers that the process is held when the variable is gone, which is not for those that this one starts.
  if (!hook.held()) return NOT_HELD;
  const randomness = require('./randomness.js'); // not on the way up of a copy
  for (const [func, args] of beforeSnapshot.slice().reverse()) await func(...args);
  hook.runBeforeSnapshot();
  const renewRandomness = randomness.prepare();
  if (hook.park(afterRestore.length > 0) === hook.CONTINUED) return CONTINUED;
  self = hook.instance();
  // The hook has set the environment that process.env reads; only Node.js's idea of the time zone is a copy.
  if ('TZ' in self.environment) process.env.TZ = self.environment.TZ;
  hook.renew();
  renewRandomness();
  hook.runAfterRestore();
  for (const [func, args] of afterRestore) await func(...args);
  hook.up();
  return RESTORED;
}

/** Who this copy is: {id, name, environment}; null in a process that is none. */
function instance() {
  return self;
}

/** Sends an object, as JSON, or a string as it is, on this copy's control channel. */
function send(message) {
  if (loaded === undefined) throw new Error('this process has no control channel: it was not restored');
  loaded.send(typeof message === 'string' ? message : JSON.stringify(message));
}

/** The descriptor of this copy's control channel (SOCK_SEQPACKET), or -1. */
function channel() {
  return loaded === undefined ? -1 : loaded.channel();
}

/**
 * Says how far a supervised job is: `rekindle ps` and `top` show it, and that it does not hang. To be called at each
 * step, as often as it likes: most calls write nothing. Never throws because of the daemon.
 */
function progress(step, total = 0) {
  const hook = findSupervised();
  if (hook !== null) hook.progress(Number(step), Number(total));
}

/**
 * A good moment for an image, such as the end of a step. Returns NOT_HELD at once unless an image is due, or `force`
 * asks for one; else it waits, with the event loop standing still, and returns CONTINUED when the image was taken,
 * RESTORED in the job that was brought back from it, NOT_HELD when none came in time (30 s, or
 * $REKINDLE_BOUNDARY_SECONDS, which begin anew as long as the daemon says that it is storing the image). Before it
 * waits it calls what was given to registerBeforeCheckpoint(), and no other registered function.
 */
function checkpointHere(force = false) {
  const hook = findSupervised();
  if (hook === null) return NOT_HELD;
  if (beforeCheckpoint.length > 0 && (force || hook.checkpointDue())) {
    for (const [func, args] of beforeCheckpoint.slice().reverse()) func(...args);
  }
  const event = hook.checkpointHere(Boolean(force));
  if (event === hook.CONTINUED) return CONTINUED;
  return event === hook.RESTORED ? RESTORED : NOT_HELD;
}

/** Without the addon a supervised job is none the worse, only less well known. */
function findSupervised() {
  if (supervised === undefined) {
    supervised = null;
    if (process.env.REKINDLE_JOB_FILE) {
      try {
        supervised = load();
      } catch (error) {
        process.emitWarning(`this job's progress is not reported: ${error.message}`);
      }
    }
  }
  return supervised;
}

/** Why this process can't be a template, or null when it can. Node.js always has threads, so it never can. */
function unsafeToFork() {
  return load().unsafeToFork();
}

/**
 * What copies of this process will have in common although it ought to be random, as far as it was seen: what was drawn
 * with `crypto` since the hook was loaded, in a process that is held. An array of strings, as "app.js: randomBytes".
 */
function unrenewed() {
  return ["the seed of V8's hashes: fixed when Node.js starts", ...draws.drawn().map(({ text }) => text)];
}

function* candidates() {
  if (process.env.REKINDLE_HOOK_ADDON) {
    yield process.env.REKINDLE_HOOK_ADDON;
    return;
  }
  let folder = __dirname;
  yield path.join(folder, ADDON);
  while (folder !== path.dirname(folder)) {
    folder = path.dirname(folder);
    for (const place of ['', 'lib', 'lib64']) yield path.join(folder, place, ADDON);
  }
}

function load() {
  if (loaded !== undefined) return loaded;
  const places = [...candidates()];
  const found = places.find((place) => fs.existsSync(place));
  if (found === undefined) {
    throw new Error(`${ADDON} is in none of these places: ${places.join(', ')}. Set REKINDLE_HOOK_ADDON to its path`);
  }
  loaded = require(path.resolve(found));
  return loaded;
}

module.exports = {
  NOT_HELD,
  CONTINUED,
  RESTORED,
  registerBeforeSnapshot,
  registerAfterRestore,
  registerBeforeCheckpoint,
  ready,
  instance,
  send,
  channel,
  progress,
  checkpointHere,
  unrenewed,
  unsafeToFork,
};
