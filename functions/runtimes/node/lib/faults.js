// What goes wrong, in the shapes that AWS's runtime for Node.js gives it.
'use strict';

const util = require('util');

class Fault extends Error {}
for (const name of [
  'ImportModuleError',
  'HandlerNotFound',
  'MalformedHandlerName',
  'UserCodeSyntaxError',
  'NodeJsExit',
]) {
  module.exports[name] = class extends Fault {};
  module.exports[name].prototype.name = `Runtime.${name}`;
}

/** Of a promise that was rejected and that nobody has handled. Its trace says where the reason was made, which the
 * place where it was found does not. */
module.exports.UnhandledPromiseRejection = class extends Fault {
  constructor(reason) {
    super(textOf(reason));
    this.reason = reason;
    const { trace } = describe(reason);
    this.stack = [`${this.name}: ${this.message}`, ...trace.filter((line) => /^\s+at /.test(line))].join('\n');
  }
};
module.exports.UnhandledPromiseRejection.prototype.name = 'Runtime.UnhandledPromiseRejection';

function textOf(reason) {
  if (typeof reason === 'object' && reason !== null && !util.types.isNativeError(reason)) return util.inspect(reason);
  return String(reason);
}

/** Nothing is left to do, and the module of this handler still waits for something. */
function neverLoaded(spec) {
  return new module.exports.NodeJsExit(
    `the module of '${spec}' was not loaded to its end: what it waits for (await outside of a function) never comes`,
  );
}

/** The answer's object. Anything can be thrown. */
function describe(error) {
  try {
    if (util.types.isNativeError(error) || looksLikeError(error)) {
      // Their types are what the program has made them.
      return { errorType: String(error.name), errorMessage: String(error.message), trace: String(error.stack).split('\n') };
    }
    return { errorType: typeof error, errorMessage: String(error), trace: [] };
  } catch {
    return {
      errorType: 'handled',
      errorMessage:
        'callback called with Error argument, but there was a problem while retrieving one or more of its message, ' +
        'name, and stack',
    };
  }
}

function looksLikeError(error) {
  return (
    error !== null &&
    typeof error === 'object' &&
    ['name', 'message', 'stack'].every((part) => typeof error[part] === 'string' && error[part] !== '')
  );
}

/** For the log: with what the program has put on the error besides. */
function inDetail(error) {
  try {
    return JSON.stringify(error instanceof Error ? error : new Error(error), (_, value) => {
      if (!(value instanceof Error)) return value;
      const shown = { errorType: value.name, errorMessage: value.message, code: value.code, ...value };
      if (typeof value.stack === 'string') shown.stack = value.stack.split('\n');
      return shown;
    });
  } catch {
    return JSON.stringify(describe(error));
  }
}

Object.assign(module.exports, { describe, inDetail, neverLoaded });
