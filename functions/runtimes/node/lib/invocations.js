// One invocation after the other: the context, and all the ways in which a handler may give its answer.
'use strict';

const { Refused } = require('./api.js');
const faults = require('./faults.js');
const logs = require('./logs.js');
const { IS_STREAMING, ResponseStream } = require('./streams.js');

class Invocations {
  constructor(api, handler) {
    this.api = api;
    this.handler = handler;
    this.current = null; // the invocation that is not answered yet
  }

  async serve() {
    for (;;) {
      const { headers, body } = await this.api.next();
      const id = headers['lambda-runtime-aws-request-id'];
      logs.setRequest(id);
      setTrace(headers['lambda-runtime-trace-id']);
      const invoke = this.handler[IS_STREAMING] ? this.invokeStreaming : this.invoke;
      const answer = await invoke.call(this, headers, body, id);
      try {
        if (answer.error === undefined) {
          await this.api.respond(id, answer.body, answer.contentType);
        } else {
          await this.fail(id, answer.error);
        }
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        // The invocation is over for the server (its time is up, or the answer is too large); the next one is not.
        process.stderr.write(`rekindle: ${error.message}\n`);
      }
    }
  }

  async fail(id, error) {
    console.error('Invoke Error', `\t${faults.inDetail(error)}`);
    const described = faults.describe(error);
    await this.api.fail(id, JSON.stringify(described), described.errorType);
  }

  /** {body} or {error}, once the handler has given it. */
  invoke(headers, body, id) {
    return new Promise((resolve) => {
      const invocation = { id, onIdle: null };
      this.current = invocation;
      let answered = false;
      const settle = (answer) => {
        answered = true;
        invocation.onIdle = null;
        this.current = null;
        resolve(answer);
      };
      const fail = (error) => settle({ error: error === undefined || error === null ? 'handled' : error });
      const succeed = (result) => {
        let text;
        try {
          text = JSON.stringify(result === undefined ? null : result);
        } catch {
          return fail(new Error('Unable to stringify response body'));
        }
        return settle({ body: text === undefined ? 'null' : text });
      };
      // Only the first of all these calls counts.
      const once = (function_) => (...values) => {
        if (answered || invocation.onIdle === finishWhenIdle) return;
        function_(...values);
      };
      let result;
      const finishWhenIdle = () => succeed(result);
      const context = {
        callbackWaitsForEmptyEventLoop: true,
        succeed: once(succeed),
        fail: once(fail),
        done: once((error, value) => (error === undefined || error === null ? succeed(value) : fail(error))),
      };
      const callback = once((error, value) => {
        if (error !== undefined && error !== null) return fail(error);
        if (!context.callbackWaitsForEmptyEventLoop) return succeed(value);
        result = value;
        invocation.onIdle = finishWhenIdle;
        return undefined;
      });
      const isAsync = this.handler.constructor.name === 'AsyncFunction';
      invocation.onIdle = () => (isAsync ? fail(new faults.NodeJsExit(NEVER_SETTLED)) : succeed(null));
      try {
        describeContext(context, headers, id);
        const returned = this.handler(JSON.parse(body.toString('utf8')), context, callback);
        if (returned && typeof returned.then === 'function') returned.then(once(succeed), once(fail));
      } catch (error) {
        once(fail)(error);
      }
    });
  }

  /** As invoke, of a handler that writes its answer; then with {contentType}. It is given when that is ended. */
  invokeStreaming(headers, body, id) {
    return new Promise((resolve) => {
      const invocation = { id, onIdle: null };
      this.current = invocation;
      const settle = (answer) => {
        if (this.current !== invocation) return;
        this.current = null;
        resolve(answer);
      };
      const fail = (error) => settle({ error: error === undefined || error === null ? 'handled' : error });
      invocation.onIdle = () => fail(new faults.NodeJsExit(NEVER_ENDED));
      const stream = new ResponseStream();
      stream.once('error', fail);
      const ended = new Promise((end) => stream.once('finish', end));
      try {
        const context = { callbackWaitsForEmptyEventLoop: true };
        describeContext(context, headers, id);
        const returned = this.handler(JSON.parse(body.toString('utf8')), stream, context);
        Promise.all([returned, ended]).then(() => settle({ body: stream.body, contentType: stream.contentType }), fail);
      } catch (error) {
        fail(error);
      }
    });
  }

  /** The event loop has nothing left to do, which some handlers wait for, and others wait too long for. */
  onIdle() {
    if (this.current !== null && this.current.onIdle !== null) this.current.onIdle();
  }
}

const NEVER_SETTLED =
  'The Lambda runtime client detected an unexpected Node.js exit code. This is most commonly caused by a Promise ' +
  'that was never settled. For more information, see https://nodejs.org/docs/latest/api/process.html#exit-codes';

const NEVER_ENDED =
  'The handler streams its response (awslambda.streamifyResponse), and has not ended it: responseStream.end() is missing, ' +
  'or a Promise was never settled.';

function setTrace(trace) {
  if (trace) {
    process.env._X_AMZN_TRACE_ID = trace;
  } else {
    delete process.env._X_AMZN_TRACE_ID;
  }
}

function describeContext(context, headers, id) {
  const deadline = Number(headers['lambda-runtime-deadline-ms']);
  Object.assign(context, {
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: process.env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    clientContext: parse(headers['lambda-runtime-client-context'], 'ClientContext'),
    identity: parse(headers['lambda-runtime-cognito-identity'], 'CognitoIdentity'),
    invokedFunctionArn: headers['lambda-runtime-invoked-function-arn'],
    awsRequestId: id,
    tenantId: headers['lambda-runtime-aws-tenant-id'],
    getRemainingTimeInMillis: () => deadline - Date.now(),
  });
}

function parse(text, name) {
  if (text === undefined || text === '') return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`Cannot parse ${name} as json: ${error}`);
  }
}

module.exports = { Invocations };
