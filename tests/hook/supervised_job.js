// supervised_job.c in JavaScript.
'use strict';

const fs = require('fs');
const readline = require('readline');
const rekindle = require('rekindle');

let drops = 0;
const writes = () => Number(/syscw: (\d+)/.exec(fs.readFileSync('/proc/self/io', 'latin1'))[1]);

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const [word, ...numbers] = line.split(' ');
  let answer = 'said';
  if (word === 'progress') {
    rekindle.progress(...numbers.map(Number));
  } else if (word === 'burst') {
    const before = writes();
    const begin = process.hrtime.bigint();
    for (let step = 1; step <= Number(numbers[0]); ++step) rekindle.progress(step);
    const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
    answer = `${writes() - before} ${seconds}`;
  } else if (word === 'caches') {
    rekindle.registerBeforeCheckpoint(() => { drops += 1; });
  } else if (word === 'drops') {
    answer = drops;
  } else {
    answer = rekindle.checkpointHere(word === 'now');
  }
  fs.writeSync(1, answer + '\n');
});
