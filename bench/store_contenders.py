"""The stores that are compared, behind one shape: take in folders one after the other, give them back."""

import os
import shutil
import subprocess

from harness import cli


class Contender:
    """One tool and its repository, a folder that holds all that it keeps and nothing else."""

    name = ""
    deduplicates = True

    def __init__(self, directory):
        """`directory`: where its repository and what else it needs (caches, passwords) go."""
        self.directory = os.path.join(directory, self.name.replace(" ", "-").replace("|", "-"))
        self.repository = os.path.join(self.directory, "repository")

    def fresh(self):
        """An empty repository, and nothing remembered."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)
        self._make_repository()

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_repository(self):
        os.mkdir(self.repository)

    def environment(self):
        return {}

    def version(self):
        """As it says itself."""
        raise NotImplementedError

    def take_in(self, name, folder, previous):
        """`previous`: the image taken in before, where this one is a successor of it."""
        raise NotImplementedError

    def give_back(self, name, target):
        """Into `target`, which does not exist."""
        raise NotImplementedError

    def run(self, argv, folder=None):
        """What it prints; an error when it fails."""
        environment = {**cli.environment(), **self.environment()}
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}\n  exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout


class Rekindle(Contender):
    """The command without a daemon: starting and opening the store is in every figure."""

    name = "Rekindle"

    def _make_repository(self):
        """The first import makes it."""

    def environment(self):
        return {"REKINDLE_RUNTIME_DIR": os.path.join(self.directory, "run")}

    def _rekindle(self, *arguments):
        self.run([cli.binary("rekindle"), "--no-daemon", "--store", self.repository, *arguments])

    def version(self):
        return "rekindle " + self.run([cli.binary("rekindle"), "version"]).split("\n")[0].split(" ")[-1]

    def take_in(self, name, folder, previous):
        parent = ["--parent", previous] if previous else []
        self._rekindle("import", "--criu", folder, "-t", name, *parent)

    def give_back(self, name, target):
        self._rekindle("export", name, "--criu", target)


class Restic(Contender):
    name = "restic"

    def _make_repository(self):
        with open(os.path.join(self.directory, "password"), "w", encoding="ascii") as file:
            file.write("bench\n")
        self.run(["restic", "-q", "init"])

    def environment(self):
        return {
            "HOME": self.directory,
            "RESTIC_REPOSITORY": self.repository,
            "RESTIC_PASSWORD_FILE": os.path.join(self.directory, "password"),
            "RESTIC_CACHE_DIR": os.path.join(self.directory, "cache"),
        }

    def version(self):
        return " ".join(self.run(["restic", "version"]).split(" ")[:2])

    def take_in(self, name, folder, previous):
        self.run(["restic", "-q", "backup", "--tag", name, "."], folder)

    def give_back(self, name, target):
        self.run(["restic", "-q", "restore", "latest", "--tag", name, "--target", target])


class Borg(Contender):
    name = "borg"
    compression = "lz4"

    def _make_repository(self):
        self.run(["borg", "init", "-e", "none", self.repository])

    def environment(self):
        return {
            "BORG_BASE_DIR": os.path.join(self.directory, "base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        }

    def version(self):
        return self.run(["borg", "--version"]).strip()

    def take_in(self, name, folder, previous):
        self.run(["borg", "create", "-C", self.compression, f"{self.repository}::{name}", "."], folder)

    def give_back(self, name, target):
        os.mkdir(target)
        self.run(["borg", "extract", f"{self.repository}::{name}"], target)


class BorgZstd(Borg):
    name = "borg zstd,3"
    compression = "zstd,3"


class Casync(Contender):
    name = "casync"

    def version(self):
        return self.run(["casync", "--version"]).strip()

    def _arguments(self, name):
        return [
            f"--store={os.path.join(self.repository, 'chunks.castr')}",
            os.path.join(self.repository, f"{name}.caidx"),
        ]

    def take_in(self, name, folder, previous):
        self.run(["casync", "make", "--with=unix", *self._arguments(name), folder])

    def give_back(self, name, target):
        self.run(["casync", "extract", *self._arguments(name), target])


class TarZstd(Contender):
    """Knows nothing of what it took in before: no yardstick, but everybody has it."""

    name = "tar | zstd -1 -T0"
    deduplicates = False

    def version(self):
        return "zstd " + self.run(["zstd", "--version"]).split(" v")[1].split(",")[0]

    def _archive(self, name):
        return os.path.join(self.repository, f"{name}.tar.zst")

    def _pipe(self, script, *arguments):
        self.run(["bash", "-c", f"set -o pipefail; {script}", "bash", *arguments])

    def take_in(self, name, folder, previous):
        self._pipe('tar -C "$1" -cf - . | zstd -q -1 -T0 >"$2"', folder, self._archive(name))

    def give_back(self, name, target):
        os.mkdir(target)
        self._pipe('zstd -q -d -c "$2" | tar -C "$1" -xf -', target, self._archive(name))


class Copy(Contender):
    """A plain `cp`."""

    name = "cp"
    deduplicates = False

    def version(self):
        return self.run(["cp", "--version"]).split("\n")[0]

    def take_in(self, name, folder, previous):
        self.run(["cp", "-r", folder, os.path.join(self.repository, name)])

    def give_back(self, name, target):
        self.run(["cp", "-r", os.path.join(self.repository, name), target])


CONTENDERS = [Rekindle, Restic, Borg, BorgZstd, Casync, TarZstd, Copy]


def disk_use(folder):
    """(allocated, apparent) bytes of all that lies there, folders included."""

    def count(*options):
        done = subprocess.run(["du", "-s", *options, folder], stdout=subprocess.PIPE, text=True, check=True)
        return int(done.stdout.split("\t")[0])

    return count("-B1"), count("-B1", "--apparent-size")
