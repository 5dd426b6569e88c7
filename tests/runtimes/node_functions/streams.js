// Handlers that stream their response.
'use strict';

const { Readable } = require('stream');
const { pipeline } = require('stream/promises');

const actions = {
  pieces: (stream) => {
    stream.write('one,');
    stream.write(Buffer.from([0xff]));
    stream.write({ two: 2 });
    setTimeout(() => stream.end(',three'), 1);
  },
  html: (stream) => {
    const page = awslambda.HttpResponseStream.from(stream, { statusCode: 201 });
    page.write('<p>');
    page.end();
  },
  pipeline: (stream) => {
    stream.setContentType('text/plain');
    return pipeline(Readable.from(['x'.repeat(100_000), 'x'.repeat(200_000)]), stream);
  },
  context: (stream, context) => {
    stream.end(context.awsRequestId);
  },
  raise: (stream) => {
    stream.write('a part');
    throw new RangeError('half-way');
  },
  destroy: (stream) => {
    stream.destroy(new TypeError('broken off'));
  },
  'leave open': (stream) => {
    stream.write('a part');
  },
  nothing: (stream) => {
    stream.end();
  },
};

exports.handler = awslambda.streamifyResponse(async (event, stream, context) => actions[event.do](stream, context));
