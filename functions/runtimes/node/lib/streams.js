// Handlers that write their answer, as AWS's runtime has them: awslambda.streamifyResponse(). What they write is
// collected, and answered when they have ended it.
'use strict';

const { Writable } = require('stream');

const IS_STREAMING = Symbol.for('aws.lambda.runtime.handler.streaming');
const OF_HTTP = 'application/vnd.awslambda.http-integration-response';

class ResponseStream extends Writable {
  constructor() {
    super();
    this.pieces = [];
    this.contentType = 'application/octet-stream';
    this.metadata = null; // of HttpResponseStream
  }

  setContentType(type) {
    this.contentType = type;
  }

  write(chunk, ...rest) {
    return super.write(asBytes(chunk), ...rest);
  }

  end(chunk, ...rest) {
    const none = chunk === undefined || chunk === null || typeof chunk === 'function';
    return super.end(none ? chunk : asBytes(chunk), ...rest);
  }

  _write(chunk, encoding, done) {
    this.pieces.push(chunk);
    done();
  }

  /** All that was written; before it, what is said of it, and eight zero bytes. */
  get body() {
    const before = this.metadata === null ? [] : [Buffer.from(JSON.stringify(this.metadata)), Buffer.alloc(8)];
    return Buffer.concat([...before, ...this.pieces]);
  }
}

function asBytes(chunk) {
  return typeof chunk === 'string' || chunk instanceof Uint8Array ? chunk : JSON.stringify(chunk);
}

/** What functions find under this name. */
function install() {
  globalThis.awslambda = {
    streamifyResponse(handler) {
      handler[IS_STREAMING] = 'response';
      return handler;
    },
    HttpResponseStream: class {
      static from(stream, metadata) {
        stream.setContentType(OF_HTTP);
        stream.metadata = metadata;
        return stream;
      }
    },
  };
}

module.exports = { IS_STREAMING, ResponseStream, install };
