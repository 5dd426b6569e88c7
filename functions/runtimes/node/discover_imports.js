// Says what a function for Node.js requires, by loading its handler as the runtime does. The environment is that of
// an instance: _HANDLER, LAMBDA_TASK_ROOT, REKINDLE_LAYERS.
//
// Its last line is one JSON object, as python/discover_imports.py has it:
//   ok       whether the handler was loaded and is there
//   error    null, or errorType and errorMessage, as the runtime would report them
//   imports  packages that the function's own code names in require(), and that this machine has for all programs:
//            neither the code folder nor a layer, nor a folder that only the function's environment names
//   layer_imports  the same, that a layer has
//   drawn    what was drawn at random meanwhile and instances of one image would have in common, in words; what the
//            function's own code has drawn only if it has registered nothing to be done after a restore
//   seconds  how long loading it took
// Packages of the machine that have something drawn, or load one that has, are not among the imports: an image of them
// would have the functions of all owners have it in common.
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

/**
 * Has every require() in a file under `code` tell the package that it names, and the file that was meant, to the one of
 * `sets` whose folders have it; and every one be noted in `loads`, by file.
 */
function recordRequires(code, sets, loads) {
  const resolve = Module._resolveFilename;
  Module._resolveFilename = function (request, parent, ...rest) {
    const file = resolve.call(this, request, parent, ...rest);
    const from = parent && typeof parent.filename === 'string' ? parent.filename : undefined;
    if (from === undefined || !path.isAbsolute(file)) return file;
    if (!loads.has(from)) loads.set(from, new Set());
    loads.get(from).add(file);
    if (liesIn(from, code) && !/^[./]/.test(request)) {
      const place = sets.find(({ folders }) => folders.some((folder) => liesIn(file, folder)));
      if (place !== undefined) place.note(packageOf(request), file);
    }
    return file;
  };
}

/** The packages none of whose files have loaded one of `drawing`. */
function packagesWithout(found, loads, drawing) {
  const reaches = (files) => {
    const seen = new Set(files);
    for (const file of seen) {
      if (drawing.has(file)) return true;
      for (const next of loads.get(file) || []) seen.add(next);
    }
    return false;
  };
  return [...found].filter(([, files]) => !reaches(files)).map(([name]) => name).sort();
}

/** What is watched of the hook: what is drawn, and whether something is registered. */
function watchDraws(code) {
  if (handlers.hookFolder() === undefined) return { drawn: () => [], isRegistered: () => false };
  const draws = handlers.hooksFile('draws.js');
  const rekindle = handlers.hooksFile('index.js');
  const register = rekindle.registerAfterRestore;
  let registered = false;
  rekindle.registerAfterRestore = (...args) => {
    registered = true;
    return register(...args);
  };
  draws.watch();
  draws.watchMath((file) => liesIn(file, code) && !file.includes('/node_modules/'));
  return { drawn: draws.drawn, isRegistered: () => registered };
}

function report(error, found) {
  const text = JSON.stringify({ ok: error === null, error, ...found(), seconds: now() / 1000 - began });
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
  const imports = new Map();
  const layerImports = new Set();
  const loads = new Map();
  let draws;
  const found = () => {
    const drawn = draws === undefined ? [] : draws.drawn();
    const drawing = new Set(drawn.map(({ file }) => file));
    const code = process.env.LAMBDA_TASK_ROOT || process.cwd();
    const isTold = ({ file }) =>
      file === undefined || !draws.isRegistered() || !liesIn(file, code) || file.includes('/node_modules/');
    return {
      // Where somebody has drawn of whom it is not known, it may have been any.
      imports: drawing.has(undefined) ? [] : packagesWithout(imports, loads, drawing),
      layer_imports: [...layerImports].sort(),
      drawn: drawn.filter(isTold).map(({ text }) => text),
    };
  };
  const fail = (error) => report(faults.describe(error), found);
  const exit = (status) => (status ? `with error: exit status ${status}` : 'without providing a reason');
  process.on('exit', (status) =>
    report({ errorType: 'Runtime.ExitError', errorMessage: `Runtime exited ${exit(status)}` }, found));
  process.on('beforeExit', () => fail(faults.neverLoaded(process.env._HANDLER)));
  process.on('uncaughtException', fail);
  process.on('unhandledRejection', (reason) => fail(new faults.UnhandledPromiseRejection(reason)));
  const folders = foldersOfMachine();
  try {
    handlers.enter();
    streams.install();
    const layers = foldersOfLayers();
    const note = (name, file) => {
      if (!imports.has(name)) imports.set(name, []);
      imports.get(name).push(file);
    };
    const sets = [{ folders: layers, note: (name) => layerImports.add(name) }, { folders, note }];
    recordRequires(process.cwd(), sets, loads);
    draws = watchDraws(process.cwd());
    await handlers.load(process.env._HANDLER);
  } catch (error) {
    return fail(error);
  }
  return report(null, found);
}

run();
