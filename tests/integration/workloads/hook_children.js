// Is held, and then starts a program that gets ready too: into FOLDER/report.child, what each ready() returned.
//
//     hook_children.js FOLDER
'use strict';

const { execFileSync } = require('child_process');
const fs = require('fs');
const path = require('path');

const rekindle = require('rekindle');

const CHILD = "require('rekindle').ready().then((event) => process.stdout.write(event))";

async function main() {
  const own = await rekindle.ready();
  const child = execFileSync(process.execPath, ['-e', CHILD], { timeout: 30000 }).toString();
  const report = path.join(process.argv[2], 'report.child');
  fs.writeFileSync(report + '.new', JSON.stringify({ own, child }));
  fs.renameSync(report + '.new', report);
}

main();
