// From start to end: the dependencies, the first image, the function, the second image, invocations.
'use strict';

const fs = require('fs');

const { RuntimeApi } = require('./api.js');
const engine = require('./engine.js');
const faults = require('./faults.js');
const handlers = require('./handlers.js');
const { Invocations } = require('./invocations.js');
const logs = require('./logs.js');
const streams = require('./streams.js');

// What AWS's runtimes exit with.
const BEFORE_SNAPSHOT_FAILED = 64;
const AFTER_RESTORE_FAILED = 65;
const UNHANDLED_REJECTION = 128;
const UNCAUGHT_EXCEPTION = 129;

const DRAWN = 'drawn: '; // in the list of loaded files, before what is none
const MOST_LOGGED = 8;

// At the first ready point it goes from the environment.
const held = process.env.REKINDLE_HOLD === '1';

let invocations = null;
let loading = ''; // the function's handler
let ending = false;

async function run() {
  logs.install();
  if (held) engine.prepareForImages();
  process.on('uncaughtException', (error) => {
    console.error('Uncaught Exception', `\t${faults.inDetail(error)}`);
    end(error, UNCAUGHT_EXCEPTION);
  });
  process.on('unhandledRejection', (reason) => {
    const error = new faults.UnhandledPromiseRejection(reason);
    console.error('Unhandled Promise Rejection', `\t${faults.inDetail(error)}`);
    end(error, UNHANDLED_REJECTION);
  });
  process.on('beforeExit', () => {
    if (invocations !== null) invocations.onIdle();
    if (loading === '' || ending) return;
    const error = faults.neverLoaded(loading);
    console.error('Uncaught Exception', `\t${faults.inDetail(error)}`);
    end(error, UNCAUGHT_EXCEPTION);
  });
  try {
    if (held) handlers.hooksFile('draws.js').watch();
    loadDependencies();
    await park('REKINDLE_DEPS');
    while (process.env.REKINDLE_MORE_DEPS !== undefined) {
      process.env.REKINDLE_DEPS = process.env.REKINDLE_MORE_DEPS;
      delete process.env.REKINDLE_MORE_DEPS;
      if (held) handlers.hooksFile('draws.js').watch();
      loadDependencies();
      await park('REKINDLE_DEPS');
    }
    const forImage = process.env.REKINDLE_FUNCTION_IMAGE === '1';
    if (held && forImage) handlers.hooksFile('draws.js').watch();
    else if (held) handlers.hooksFile('draws.js').pause(); // nobody has anything in common with this one
    const handler = await loadFunction();
    if (forImage) {
      logDrawn();
      await park('REKINDLE_FUNCTION_IMAGE');
      enterAgain();
    }
    if (held) handlers.hooksFile('draws.js').pause();
    // Nothing is connected before the last restore, and the address is the copy's.
    invocations = new Invocations(new RuntimeApi(), handler);
    await invocations.serve();
  } catch (error) {
    leave(error.message, 1);
  }
}

function leave(message, status) {
  process.stderr.write(`rekindle: ${message}\n`);
  process.exit(status);
}

/** Tells the server why the process ends, on a connection of its own. */
async function report(post, error, errorType) {
  const described = faults.describe(error);
  try {
    await post(new RuntimeApi(), JSON.stringify(described), errorType || described.errorType);
  } catch (failure) {
    process.stderr.write(`rekindle: ${failure.message}\n`);
  }
}

async function end(error, status) {
  if (ending) return;
  ending = true;
  const current = invocations === null ? null : invocations.current;
  if (current !== null) {
    await report((api, ...what) => api.fail(current.id, ...what), error);
  } else if (invocations === null) {
    await report((api, ...what) => api.failInit(...what), error);
  }
  process.exit(status);
}

function loadDependencies() {
  handlers.addLayers();
  for (const name of (process.env.REKINDLE_DEPS || '').split(',').map((part) => part.trim())) {
    if (name === '') continue;
    try {
      require(require.resolve(name, { paths: [process.env.LAMBDA_TASK_ROOT || process.cwd()] }));
    } catch (error) {
      leave(`the dependency ${name} (REKINDLE_DEPS) can't be loaded: ${String(error).split('\n')[0]}`, 1);
    }
  }
  tellLoadedFiles();
}

/** Who makes an image wants to know when an upgrade has changed one of them, and what its copies have in common. */
function tellLoadedFiles() {
  const list = process.env.REKINDLE_LOADED_FILES;
  delete process.env.REKINDLE_LOADED_FILES;
  if (list === undefined) return;
  const drawn = held ? handlers.hooksFile('draws.js').drawn().map(({ text }) => DRAWN + text) : [];
  fs.writeFileSync(list, [...Object.keys(require.cache), ...drawn].join('\0'));
}

/** For who makes the image, who tells the function's owner. */
function logDrawn() {
  const drawn = held ? handlers.hooksFile('draws.js').drawn().map(({ text }) => text) : [];
  if (drawn.length === 0) return;
  fs.writeSync(2, `rekindle: ${DRAWN}${drawn.slice(0, MOST_LOGGED).join('; ')}\n`);
}

/** A point to take an image at. A callback that fails is reported as on Lambda. */
async function park(point) {
  if (!held) return;
  const rekindle = handlers.hooksFile('index.js');
  engine.followClock(rekindle.instance);
  const before = rekindle.instance();
  try {
    await rekindle.ready();
  } catch (error) {
    console.error(`At the ready point of ${point}`, `\t${faults.inDetail(error)}`);
    if (rekindle.instance() === before) {
      await report((api, ...what) => api.failInit(...what), error, 'Runtime.BeforeSnapshotError');
      process.exit(BEFORE_SNAPSHOT_FAILED);
    }
    await report((api, ...what) => api.failRestore(...what), error, 'Runtime.AfterRestoreError');
    process.exit(AFTER_RESTORE_FAILED);
  }
}

/** A copy that has stood by was in its folder before that was made read-only for it. */
function enterAgain() {
  try {
    process.chdir(process.cwd());
  } catch {
    // It is somewhere else, which it has removed, or may not enter.
  }
}

async function loadFunction() {
  logs.install();
  streams.install();
  if (held) engine.keepWithin(Number(process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE));
  try {
    handlers.enter();
    loading = process.env._HANDLER;
    const handler = await handlers.load(loading);
    loading = '';
    if (!ending) return handler;
  } catch (error) {
    console.error('Uncaught Exception', `\t${faults.inDetail(error)}`);
    end(error, UNCAUGHT_EXCEPTION);
  }
  return new Promise(() => {}); // the process is about to end
}

module.exports = { run };
