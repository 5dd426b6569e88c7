// The Lambda Runtime API's client: one kept connection, HTTP/1.1 written and read by hand.
'use strict';

const net = require('net');

const ROOT = '/2018-06-01/runtime/';
const LONGEST_HEAD = 1 << 20;
const HEAD_END = Buffer.from('\r\n\r\n');
const LINE_END = Buffer.from('\r\n');

/** The Runtime API is gone, or said what a runtime can't go on after. */
class ApiError extends Error {}

/** The Runtime API answered with a status that concerns one invocation alone. */
class Refused extends Error {}

/** Before the first byte of an answer. */
class Closed extends Error {}

/** Takes bytes until an answer is whole. */
class AnswerReader {
  constructor() {
    this.rest = Buffer.alloc(0); // of the head, or of a chunk
    this.head = null;
    this.pieces = [];
    this.missing = 0; // of the body; -1: until the end of the connection
    this.chunked = false;
  }

  get begun() {
    return this.head !== null || this.rest.length > 0;
  }

  /** The answer, {status, headers, body}, when it is whole; else null. */
  take(data) {
    if (this.head === null) {
      this.rest = this.rest.length ? Buffer.concat([this.rest, data]) : data;
      const end = this.rest.indexOf(HEAD_END);
      if (end < 0) {
        if (this.rest.length > LONGEST_HEAD) throw new ApiError(`a head of more than ${LONGEST_HEAD} bytes`);
        return null;
      }
      data = this.rest.subarray(end + HEAD_END.length);
      this.head = parseHead(this.rest.toString('utf8', 0, end));
      this.rest = Buffer.alloc(0);
      if (this.head.status < 200) {
        this.head = null;
        return data.length ? this.take(data) : null;
      }
      this.chunked = /chunked/.test(this.head.headers['transfer-encoding'] || '');
      const length = this.head.headers['content-length'];
      const none = this.head.status === 204 || this.head.status === 304;
      this.missing = none ? 0 : length === undefined ? -1 : Number(length);
    }
    if (this.chunked) return this.takeChunks(data);
    if (this.missing < 0) {
      this.pieces.push(data);
      return null;
    }
    this.pieces.push(data);
    this.missing -= data.length;
    return this.missing <= 0 ? this.finish() : null;
  }

  takeChunks(data) {
    this.rest = this.rest.length ? Buffer.concat([this.rest, data]) : data;
    for (;;) {
      const line = this.rest.indexOf(LINE_END);
      if (line < 0) return null;
      const size = parseInt(this.rest.toString('latin1', 0, line), 16);
      if (size === 0) {
        // The end is an empty line, after trailers if there are any.
        const whole = this.rest.indexOf(HEAD_END, line) >= 0;
        return whole ? this.finish() : null;
      }
      const start = line + LINE_END.length;
      if (this.rest.length < start + size + LINE_END.length) return null;
      this.pieces.push(this.rest.subarray(start, start + size));
      this.rest = this.rest.subarray(start + size + LINE_END.length);
    }
  }

  finish() {
    const body = this.pieces.length === 1 ? this.pieces[0] : Buffer.concat(this.pieces);
    return { status: this.head.status, headers: this.head.headers, body };
  }
}

function parseHead(text) {
  const lines = text.split('\r\n');
  const match = /^HTTP\/1\.\d (\d{3})/.exec(lines[0]);
  if (!match) throw new ApiError(`no HTTP/1: ${lines[0].slice(0, 80)}`);
  const headers = Object.create(null);
  for (let i = 1; i < lines.length; ++i) {
    const colon = lines[i].indexOf(':');
    if (colon > 0) headers[lines[i].slice(0, colon).toLowerCase()] = lines[i].slice(colon + 1).trim();
  }
  return { status: Number(match[1]), headers };
}

/** Connects at its first request, to what the environment names then. */
class RuntimeApi {
  constructor(environment = process.env) {
    const socket = environment.REKINDLE_RUNTIME_SOCKET;
    const address = environment.AWS_LAMBDA_RUNTIME_API;
    if (socket) {
      this.where = socket;
      this.address = { path: socket };
    } else if (address) {
      const match = /^\[?([^\]]+?)\]?:(\d+)$/.exec(address);
      if (!match) throw new ApiError(`AWS_LAMBDA_RUNTIME_API is ${JSON.stringify(address)}, which is not HOST:PORT`);
      this.where = address;
      this.address = { host: match[1], port: Number(match[2]), noDelay: true };
    } else {
      throw new ApiError('neither REKINDLE_RUNTIME_SOCKET nor AWS_LAMBDA_RUNTIME_API says where the Runtime API is');
    }
    this.common =
      `Host: ${socket ? 'localhost' : address}\r\n` + `User-Agent: rekindle-nodejs/${process.versions.node}\r\n`;
    this.nextHead = `GET ${ROOT}invocation/next HTTP/1.1\r\n${this.common}\r\n`;
    this.socket = null;
    this.reader = null;
    this.waiting = null; // {resolve, reject}
  }

  /** Waits for an invocation. */
  async next() {
    const answer = await this.exchange(this.nextHead);
    if (answer.status === 200) return answer;
    throw new ApiError(
      `the Runtime API at ${this.where} answered invocation/next with ${answer.status}: ${shown(answer.body)}`,
    );
  }

  respond(id, body, contentType = 'application/json') {
    return this.post(`invocation/${id}/response`, body, `Content-Type: ${oneLine(contentType)}\r\n`);
  }

  fail(id, body, errorType) {
    return this.post(`invocation/${id}/error`, body, errorHeaders(errorType));
  }

  failInit(body, errorType) {
    return this.post('init/error', body, errorHeaders(errorType));
  }

  failRestore(body, errorType) {
    return this.post('restore/error', body, errorHeaders(errorType));
  }

  /** `body`: a text or bytes. */
  async post(where, body, headers) {
    const length = Buffer.byteLength(body);
    const head = `POST ${ROOT}${where} HTTP/1.1\r\n${this.common}${headers}Content-Length: ${length}\r\n\r\n`;
    const request = typeof body === 'string' ? head + body : Buffer.concat([Buffer.from(head), body]);
    const answer = await this.exchange(request);
    if (answer.status >= 200 && answer.status < 300) return;
    const what = `the Runtime API at ${this.where} answered ${where} with ${answer.status}: ${shown(answer.body)}`;
    throw answer.status >= 500 ? new ApiError(what) : new Refused(what);
  }

  close() {
    if (this.socket !== null) this.socket.destroy();
    this.socket = null;
  }

  async exchange(request) {
    const kept = this.socket !== null;
    try {
      return await this.ask(request);
    } catch (error) {
      this.close();
      if (error instanceof ApiError) throw error;
      if (error instanceof Closed) {
        // Nothing was answered: the server had closed a connection that was idle for long. Should it have seen the
        // request after all, it refuses the second one.
        if (kept) return this.exchange(request);
        throw new ApiError(`the Runtime API at ${this.where} closed the connection`);
      }
      throw new ApiError(`talking to the Runtime API at ${this.where}: ${error.message}`);
    }
  }

  ask(request) {
    return new Promise((resolve, reject) => {
      this.waiting = { resolve, reject };
      this.reader = new AnswerReader();
      if (this.socket === null) this.connect();
      // It keeps the process alive while something is awaited of it, and only then.
      this.socket.ref();
      this.socket.write(request);
    });
  }

  connect() {
    const socket = net.connect(this.address);
    this.socket = socket;
    let broken = null;
    socket.on('data', (data) => this.onData(socket, data));
    socket.on('error', (error) => {
      broken = error;
    });
    socket.on('close', () => this.onClose(socket, broken));
  }

  onData(socket, data) {
    if (socket !== this.socket || this.waiting === null) return;
    let answer;
    try {
      answer = this.reader.take(data);
    } catch (error) {
      this.settle('reject', new ApiError(`the Runtime API at ${this.where} sent what is no answer: ${error.message}`));
      return;
    }
    if (answer !== null) this.deliver(answer);
  }

  onClose(socket, broken) {
    if (socket !== this.socket) return;
    this.socket = null;
    if (this.waiting === null) return;
    if (this.reader.missing < 0 && !this.reader.chunked) {
      this.deliver(this.reader.finish());
    } else if (this.reader.begun) {
      this.settle('reject', new Error('it closed the connection within an answer'));
    } else if (broken && broken.code !== 'ECONNRESET' && broken.code !== 'EPIPE') {
      this.settle('reject', broken);
    } else {
      this.settle('reject', new Closed());
    }
  }

  deliver(answer) {
    if (this.socket !== null) {
      if ((answer.headers.connection || '').toLowerCase() === 'close') {
        this.close();
      } else {
        this.socket.unref();
      }
    }
    this.settle('resolve', answer);
  }

  settle(how, value) {
    const waiting = this.waiting;
    this.waiting = null;
    waiting[how](value);
  }
}

function errorHeaders(errorType) {
  return `Content-Type: application/json\r\nLambda-Runtime-Function-Error-Type: ${oneLine(errorType)}\r\n`;
}

function oneLine(text) {
  return String(text).replace(/[^\x20-\x7e]/g, '?');
}

function shown(body) {
  return body.toString('utf8', 0, 500);
}

module.exports = { ApiError, Refused, RuntimeApi };
