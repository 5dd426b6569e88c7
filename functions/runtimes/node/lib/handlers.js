// Finding the function: its code folder, its layers, and `module.function`.
'use strict';

const fs = require('fs');
const Module = require('module');
const path = require('path');
const { pathToFileURL } = require('url');

const faults = require('./faults.js');

/** Folders with the contents of layers, as they lie in /opt on Lambda; later ones hide earlier ones. */
function addLayers(...last) {
  const layers = (process.env.REKINDLE_LAYERS || '').split(':').filter((folder) => folder).reverse();
  const major = process.versions.node.split('.')[0];
  const wanted = [];
  const programs = [];
  for (const layer of layers) {
    wanted.push(path.join(layer, `nodejs/node${major}/node_modules`), path.join(layer, 'nodejs/node_modules'));
    programs.push(path.join(layer, 'bin'));
  }
  if (process.env.LAMBDA_TASK_ROOT) wanted.push(process.env.LAMBDA_TASK_ROOT);
  const added = append('NODE_PATH', last);
  if (prepend('NODE_PATH', wanted) || added) Module._initPaths();
  prepend('PATH', programs);
}

/** In this order, also where some are in it already. True when something is new in it. */
function prepend(variable, folders) {
  const present = (process.env[variable] || '').split(':').filter((folder) => folder);
  const wanted = folders.filter((folder) => fs.existsSync(folder));
  const fresh = wanted.some((folder) => !present.includes(folder));
  if (fresh) process.env[variable] = [...wanted, ...present.filter((folder) => !wanted.includes(folder))].join(':');
  return fresh;
}

function append(variable, folders) {
  const present = (process.env[variable] || '').split(':').filter((folder) => folder);
  const fresh = folders.filter((folder) => folder !== undefined && !present.includes(folder));
  if (fresh.length) process.env[variable] = [...present, ...fresh].join(':');
  return fresh.length > 0;
}

/** The folder that has the hook's package, where it is installed or where it is built; functions find it there too. */
function hookFolder() {
  return ['../../../node', '../../../../hook/node']
    .map((folder) => path.join(__dirname, folder))
    .find((folder) => fs.existsSync(path.join(folder, 'rekindle')));
}

/** Of the installed hook; the function's code may have another. */
function hooksFile(name) {
  return require(path.join(hookFolder() || '', 'rekindle', name));
}

/** Makes this process the function's: where it is, what it requires from; the hook where nothing else has it. */
function enter() {
  addLayers(hookFolder());
  const root = process.env.LAMBDA_TASK_ROOT;
  if (!root) return;
  try {
    process.chdir(root);
  } catch (error) {
    throw new faults.ImportModuleError(
      `Unable to enter the function's code folder ${root} (LAMBDA_TASK_ROOT): ${error.code}`,
    );
  }
}

/**
 * The handler that `spec` (module.function, folder/module.function) names. Of a promise that the module has left
 * rejected Node.js has told when this is done ('unhandledRejection').
 */
async function load(spec) {
  if (!spec) throw new faults.MalformedHandlerName('no handler is named: _HANDLER is not set');
  const root = process.cwd();
  if (spec.includes('..')) {
    throw new faults.MalformedHandlerName(
      `'${spec}' is not a valid handler name. Use absolute paths when specifying root directories in handler names.`,
    );
  }
  const base = path.basename(spec);
  const dot = base.indexOf('.');
  if (dot < 0) throw new faults.MalformedHandlerName('Bad handler');
  const folder = spec.slice(0, spec.length - base.length);
  const loaded = await loadModule(root, folder, base.slice(0, dot));
  let handler = loaded;
  for (const name of base.slice(dot + 1).split('.')) handler = handler && handler[name];
  if (!handler) throw new faults.HandlerNotFound(`${spec} is undefined or not exported`);
  if (typeof handler !== 'function') throw new faults.HandlerNotFound(`${spec} is not a function`);
  await new Promise((resolve) => setImmediate(resolve));
  return handler;
}

async function loadModule(root, folder, name) {
  try {
    const file = path.resolve(root, folder, name);
    const isModule = isInModulePackage(path.dirname(file));
    // In the order in which AWS's runtime looks.
    for (const [extension, imported] of [['', false], ['.js', isModule], ['.mjs', true], ['.cjs', false]]) {
      const candidate = file + extension;
      const stat = fs.statSync(candidate, { throwIfNoEntry: false });
      if (stat === undefined || !stat.isFile()) continue;
      return imported ? await import(pathToFileURL(candidate)) : require(candidate);
    }
    return require(require.resolve(name, { paths: [root, path.resolve(root, folder)] }));
  } catch (error) {
    if (error instanceof SyntaxError) throw new faults.UserCodeSyntaxError(String(error));
    if (error && (error.code === 'MODULE_NOT_FOUND' || error.code === 'ERR_MODULE_NOT_FOUND')) {
      throw new faults.ImportModuleError(String(error));
    }
    throw error;
  }
}

/** By the nearest package.json's "type". */
function isInModulePackage(folder) {
  for (;;) {
    if (path.basename(folder) === 'node_modules') return false;
    let text;
    try {
      text = fs.readFileSync(path.join(folder, 'package.json'), 'utf8');
    } catch {
      if (folder === path.dirname(folder)) return false;
      folder = path.dirname(folder);
      continue;
    }
    try {
      return JSON.parse(text).type === 'module';
    } catch (error) {
      console.warn(`${folder}/package.json can't be read, so it does not tell how modules are loaded:`, error.message);
      return false;
    }
  }
}

module.exports = { addLayers, enter, hookFolder, hooksFile, load };
