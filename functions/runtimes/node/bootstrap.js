// Runs an AWS Lambda handler that is written for Node.js; docs/functions.md is the users' page.
'use strict';

require('./lib/life.js').run();
