// console as logs: one line an entry, with time, request and level, as on Lambda.
'use strict';

const util = require('util');

const LEVELS = { TRACE: 1, DEBUG: 2, INFO: 3, WARN: 4, ERROR: 5, FATAL: 6 };
const METHODS = {
  trace: 'TRACE',
  debug: 'DEBUG',
  info: 'INFO',
  log: 'INFO',
  warn: 'WARN',
  error: 'ERROR',
  fatal: 'FATAL',
};

let requestId;

function write(level, ...values) {
  const line = `${new Date().toISOString()}\t${requestId}\t${level}\t${util.format(...values)}`;
  // An entry is a line; its own ends of lines are kept as carriage returns.
  process.stdout.write(line.replace(/\n/g, '\r') + '\n');
}

/** The level is the environment's, which a copy gets late: call it again then. */
function install() {
  const least = LEVELS[(process.env.AWS_LAMBDA_LOG_LEVEL || '').toUpperCase()] || LEVELS.TRACE;
  for (const [method, level] of Object.entries(METHODS)) {
    console[method] = LEVELS[level] >= least ? (...values) => write(level, ...values) : () => {};
  }
}

function setRequest(id) {
  requestId = id;
}

module.exports = { install, setRequest };
