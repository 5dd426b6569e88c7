"""What the package for Node.js makes of what was drawn at random, in processes in which a copy's renewal is done."""

import json
import os
import subprocess
import tempfile
import textwrap
import unittest

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "hook", "node", "rekindle")

PROLOGUE = """
const draws = require(process.env.HOOK + '/draws.js');
const { prepare } = require(process.env.HOOK + '/randomness.js');
const fs = require('fs');
const tell = (what) => fs.writeSync(1, JSON.stringify(what));
const texts = () => draws.drawn().map(({ text }) => text);
const hex = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('hex');
draws.watch();
const crypto = require('crypto');
"""

LIBRARY = """const crypto = require('crypto');
exports.fill = (array) => crypto.randomFillSync(array);
exports.fillLater = (array, callback) => crypto.randomFill(array, callback);
exports.pool = crypto.randomFillSync(new Uint8Array(256));
"""


class DrawsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rk-draws.")
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.write("node_modules/ids/index.js", LIBRARY)

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_program(self, text, *options):
        """What the program tells."""
        self.write("app.js", PROLOGUE + textwrap.dedent(text))
        ended = subprocess.run(["/usr/bin/node", *options, "app.js"], cwd=self.root, env={**os.environ, "HOOK": HOOK},
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def test_what_is_no_pool_stays_and_is_told(self):
        changed, told = self.run_program("""
            const ids = require('ids');
            const kept = {
              key: crypto.getRandomValues(new Uint8Array(128)),
              table: crypto.randomFillSync(new BigUint64Array(781)),
              ofLibraryButUsed: ids.fill(Buffer.alloc(4096)),
              shared: ids.fill(new Uint8Array(new SharedArrayBuffer(256))),
              memory: ids.fill(new Uint8Array(new WebAssembly.Memory({ initial: 1 }).buffer)),
              large: ids.fill(new Uint8Array(1 << 20)),
              resizable: ids.fill(new Uint8Array(new ArrayBuffer(256, { maxByteLength: 1024 }))),
            };
            kept.ofLibraryButUsed.write('the data of the program');
            const before = Object.fromEntries(Object.entries(kept).map(([name, array]) => [name, hex(array)]));
            const pool = hex(ids.pool);
            prepare()();
            const names = Object.keys(kept).filter((name) => hex(kept[name]) !== before[name]);
            if (hex(ids.pool) !== pool) names.push('pool');
            tell([names, texts()]);
            """)
        self.assertEqual(changed, ["pool"])
        self.assertEqual(told, ["app.js: getRandomValues", "app.js: randomFillSync", "app.js: randomFillSync by ids"])

    def test_a_pool_that_is_filled_later_is_seen_as_it_is_by_then(self):
        changed = self.run_program("""
            const ids = require('ids');
            const pool = new Uint8Array(256), used = new Uint8Array(256);
            ids.fillLater(pool, () => ids.fillLater(used, () => {
              used.fill(7);
              const before = hex(pool);
              prepare()();
              tell([hex(pool) !== before, used.every((byte) => byte === 7)]);
            }));
            """)
        self.assertEqual(changed, [True, True])

    def test_pools_beyond_the_limit_stay(self):
        refilled = self.run_program("""
            const ids = require('ids');
            const pools = [];
            for (let i = 0; i < 40; ++i) pools.push(ids.fill(Buffer.alloc(32768)));
            const before = pools.map(hex);
            prepare()();
            tell([pools.filter((pool, i) => hex(pool) !== before[i]).length * 32768, hex(pools[39]) === before[39]]);
            """)
        self.assertLessEqual(refilled[0], 1 << 20)
        self.assertGreater(refilled[0], 1 << 19)
        self.assertTrue(refilled[1])

    def test_keys_of_all_kinds_are_told(self):
        told = self.run_program("""
            crypto.createECDH('secp256k1').generateKeys();
            crypto.getDiffieHellman('modp14').generateKeys();
            crypto.createDiffieHellman(crypto.getDiffieHellman('modp14').getPrime()).generateKeys();
            crypto.generatePrimeSync(64);
            crypto.rng(16);
            crypto.prng(16);
            tell(texts());
            """)
        self.assertEqual(told, ["app.js: DiffieHellman.generateKeys", "app.js: DiffieHellmanGroup.generateKeys",
                                "app.js: ECDH.generateKeys", "app.js: generatePrimeSync", "app.js: prng", "app.js: rng"])

    def test_what_nodejs_draws_by_itself_counts(self):
        in_use = self.run_program("""
            URL.createObjectURL(new Blob(['x']));
            tell(draws.usesCrypto());
            """)
        self.assertTrue(in_use)

    def test_no_draw_fails_because_it_is_watched(self):
        gone = os.path.join(self.root, "gone")
        os.mkdir(gone)
        drawn, told = self.run_program("""
            process.chdir('gone');
            fs.rmdirSync('../gone');
            const bytes = crypto.randomBytes(4);
            Object.freeze(Error);
            tell([bytes.length + crypto.randomBytes(4).length, texts()]);
            """.replace("../gone", gone))
        self.assertEqual([drawn, told], [8, ["app.js: randomBytes", "somebody: randomBytes"]])
        self.assertEqual(self.run_program("tell(crypto.randomBytes(4).length);", "--frozen-intrinsics"), 4)

    def test_a_copy_is_watched_no_more(self):
        told = self.run_program("""
            crypto.randomBytes(4);
            const renew = prepare();
            crypto.randomInt(5);
            renew();
            crypto.randomUUID();
            tell(texts());
            """)
        self.assertEqual(told, ["app.js: randomBytes", "app.js: randomInt"])

    def test_what_is_not_looked_at_is_told_and_each_load_is(self):
        told = self.run_program("""
            for (let i = 0; i < 1001; ++i) crypto.randomBytes(1);
            draws.watch();
            crypto.randomInt(5);
            tell(texts());
            """)
        self.assertEqual(told, ["app.js: randomBytes", "app.js: randomInt",
                                "others: more than the 1000 draws that are looked at"])


if __name__ == "__main__":
    unittest.main()
