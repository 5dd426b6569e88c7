// What V8 is told, since it has seen the machine on which an image was taken and not the instance that it runs in.
'use strict';

const v8 = require('v8');

/** Before an image is taken: nothing may be in use by then that a copy would not have. */
function prepareForImages() {
  // It marks code with a protection key, which no copy has: WebAssembly, and with it fetch(), would end the process.
  // Newer ones don't know the option, and would say so in the log; they use none.
  if (parseInt(process.versions.node, 10) < 22) v8.setFlagsFromString('--no-wasm-memory-protection-keys');
}

module.exports = { prepareForImages };
