// Says what a function for Node.js requires, by loading its handler as the runtime does. The environment is that of
// an instance: _HANDLER, LAMBDA_TASK_ROOT, REKINDLE_LAYERS.
//
// Its last line is one JSON object, as python/discover_imports.py has it:
//   ok       whether the handler was loaded and is there
//   error    null, or errorType and errorMessage, as the runtime would report them
//   imports  packages that the function's own code names in require(), and that this machine has for all programs:
//            neither the code folder nor a layer, nor a folder that only the function's environment names
//   layer_imports  the same, that a layer has
//   seconds  how long loading it took
// Of ES modules there are none: these look for packages beside themselves alone.
//
// It runs the function's code with the rights of whoever calls it, without a limit of time, and ends at once when the
// handler is loaded.
'use strict';

const fs = require('fs');
const Module = require('module');
const path = require('path');
const { performance } = require('perf_hooks'); // the global one is the code's to replace

const faults = require('./lib/faults.js');
const handlers = require('./lib/handlers.js');
const streams = require('./lib/streams.js');

const now = performance.now.bind(performance);
const began = now() / 1000;
const AGAIN = 'EAGAIN'; // a pipe that is full, and does not block since somebody has written to process.stdout

/** The folders that the bare runtime finds packages in: what the function's environment adds is not among them. */
function foldersOfMachine() {
  const own = { NODE_PATH: process.env.NODE_PATH, HOME: process.env.HOME };
  for (const name of Object.keys(own)) delete process.env[name];
  Module._initPaths();
  const folders = [...Module.globalPaths, '/node_modules'];
  for (const [name, value] of Object.entries(own)) {
    if (value !== undefined) process.env[name] = value;
  }
  Module._initPaths();
  return folders;
}

function liesIn(file, folder) {
  return file.startsWith(folder.endsWith('/') ? folder : `${folder}/`);
}

/** "@scope/name" or "name" of what require() is given. */
function packageOf(request) {
  return request.split('/', request.startsWith('@') ? 2 : 1).join('/');
}

/** The folders of layers, as require() says where a file lies. */
function foldersOfLayers() {
  const layers = (process.env.REKINDLE_LAYERS || '').split(':').filter((folder) => folder && fs.existsSync(folder));
  return layers.map((folder) => fs.realpathSync(folder));
}

/** Has every require() in a file under `code` add the package that it names to the set of the folders that have it. */
function recordRequires(code, sets) {
  const resolve = Module._resolveFilename;
  Module._resolveFilename = function (request, parent, ...rest) {
    const file = resolve.call(this, request, parent, ...rest);
    const own = parent && typeof parent.filename === 'string' && liesIn(parent.filename, code);
    if (own && !/^[./]/.test(request) && path.isAbsolute(file)) {
      const place = sets.find(({ folders }) => folders.some((folder) => liesIn(file, folder)));
      if (place !== undefined) place.found.add(packageOf(request));
    }
    return file;
  };
}

function report(error, imports, layerImports) {
  const found = { imports: [...imports].sort(), layer_imports: [...layerImports].sort() };
  const text = JSON.stringify({ ok: error === null, error, ...found, seconds: now() / 1000 - began });
  for (let left = Buffer.from(`\n${text}\n`); left.length > 0;) {
    try {
      left = left.subarray(fs.writeSync(1, left));
    } catch (failure) {
      if (failure.code !== AGAIN) throw failure;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
  // At once: what the code has left to be done at its end is not.
  process.kill(process.pid, 'SIGKILL');
}

async function run() {
  const imports = new Set();
  const layerImports = new Set();
  const fail = (error) => report(faults.describe(error), imports, layerImports);
  const exit = (status) => (status ? `with error: exit status ${status}` : 'without providing a reason');
  process.on('exit', (status) =>
    report({ errorType: 'Runtime.ExitError', errorMessage: `Runtime exited ${exit(status)}` }, imports, layerImports));
  process.on('beforeExit', () => fail(faults.neverLoaded(process.env._HANDLER)));
  process.on('uncaughtException', fail);
  process.on('unhandledRejection', (reason) => fail(new faults.UnhandledPromiseRejection(reason)));
  const folders = foldersOfMachine();
  try {
    handlers.enter();
    streams.install();
    const layers = foldersOfLayers();
    recordRequires(process.cwd(), [{ folders: layers, found: layerImports }, { folders, found: imports }]);
    await handlers.load(process.env._HANDLER);
  } catch (error) {
    return fail(error);
  }
  return report(null, imports, layerImports);
}

run();
