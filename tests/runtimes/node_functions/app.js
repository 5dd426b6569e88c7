// Handlers as people write them for Lambda.
'use strict';

const fs = require('fs');

let calls = 0;

class OrderError extends Error {
  constructor(order) {
    super(`order ${order} is no good: ünïcode`);
    this.name = 'OrderError';
    this.order = order;
  }
}

const actions = {
  echo: (event) => event,
  calls: () => ({ calls, pid: process.pid, directory: process.cwd() }),
  context: (event, context) => ({
    id: context.awsRequestId,
    arn: context.invokedFunctionArn,
    name: context.functionName,
    version: context.functionVersion,
    memory: context.memoryLimitInMB,
    group: context.logGroupName,
    stream: context.logStreamName,
    remaining: context.getRemainingTimeInMillis(),
    identity: context.identity,
    client: context.clientContext,
    trace: process.env._X_AMZN_TRACE_ID,
  }),
  raise: () => {
    throw new OrderError(7);
  },
  text: () => {
    throw 'only a text';
  },
  reject: () => Promise.reject(new TypeError('no type')),
  exit: (event) => process.exit(event.status),
  print: (event, context) => {
    console.log('a line\nand', { another: 1 });
    console.error('an entry of', context.awsRequestId);
    process.stdout.write('no end of line');
  },
  large: (event) => 'x'.repeat(event.size),
  binary: (event) => Buffer.from(event.data, 'base64').reverse().toString('base64'),
  unserialisable: () => {
    const circle = {};
    circle.circle = circle;
    return circle;
  },
  big: () => 1n,
  nothing: () => undefined,
  wait: (event) => fs.promises.readFile(event.fifo, 'ascii'),
  never: () => new Promise(() => {}),
  uncaught: () => {
    setTimeout(() => {
      throw new RangeError('late');
    }, 1);
    return new Promise((resolve) => setTimeout(resolve, 60_000));
  },
  unhandled: () => {
    Promise.reject(new RangeError('lost'));
    return new Promise((resolve) => setTimeout(resolve, 60_000));
  },
};

exports.handler = async (event, context) => {
  ++calls;
  return actions[event.do](event, context);
};

// Not async, with a callback; what it leaves running is waited for, unless it says otherwise.
exports.callback = (event, context, callback) => {
  let done = false;
  if (event.wait === false) context.callbackWaitsForEmptyEventLoop = false;
  setTimeout(() => {
    done = true;
  }, event.wait === false ? 60_000 : 20);
  const answer = {
    toJSON: () => ({ done }),
  };
  if (event.silent) return;
  if (event.method === 'succeed') return context.succeed(answer);
  if (event.method === 'fail') return context.fail(new OrderError(8));
  if (event.method === 'throw') throw new OrderError(9);
  callback(event.error ? new OrderError(7) : null, answer);
  callback(null, 'a second time');
};

exports.nested = { deep: { handler: async () => 'deep' } };
exports.thenable = () => ({ then: (resolve) => resolve('thenable') });
exports.value = 5;
