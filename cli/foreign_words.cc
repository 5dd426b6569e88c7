#include "cli/foreign_words.h"

#include "absl/strings/str_split.h"

namespace rekindle::cli {
namespace {

constexpr char kNoFolder[] =
    "images go into the store, under the name of -t NAME:TAG; 'rekindle export IMAGE --criu DIR' writes a "
    "folder of "
    "CRIU's";
constexpr char kFolderFirst[] =
    "an image is named, as 'rekindle ls' shows it; 'rekindle import --criu DIR -t NAME:TAG' takes in a "
    "folder of "
    "CRIU's";
constexpr char kFileFirst[] =
    "an image is named, as 'rekindle ls' shows it; 'rekindle import --file FILE' takes in what 'rekindle "
    "export "
    "--file' wrote";
constexpr char kPlace[] = "the folder of CRIU's files is given with --criu DIR";
constexpr char kAsItIs[] = "nor need for it: it is found out from the job";
constexpr char kRunsOn[] = "nor need for it: the job runs on, unless --stop is given";
constexpr char kStops[] = "--stop ends the job once its image is safe; without it the job runs on";
constexpr char kJobFirst[] = "the job comes without an option: its PID, or its name in 'rekindle ps'";
constexpr char kTracked[] =
    "nor need for it: only what changed since the parent is stored; 'rekindled --track-dirty-pages' also "
    "copies only that";
constexpr char kLogs[] =
    "CRIU's log is kept when it fails, and the error names it; -v shows each of its command lines";
constexpr char kReplaces[] = "--replace takes over a name that exists";
constexpr char kLazy[] = "'rekindle restore IMAGE --clone' gets its memory while it runs";
constexpr char kAsJson[] = "--json prints all of it, for scripts";
constexpr char kToggle[] =
    "'rekindle gpu park JOB' moves a job's device memory out, 'rekindle gpu resume JOB' back";
constexpr char kEnvironment[] = "a job has the environment of the command: env NAME=VALUE rekindle run …";
constexpr char kNoQuestion[] = "nor need for it: nothing is asked";

}  // namespace

const std::vector<ForeignCommand>& ForeignCommands() {
  static const auto* commands = new std::vector<ForeignCommand>{
      // CRIU
      {"", "dump", "ckpt", "It takes PID -t NAME:TAG, and the job runs on"},
      {"", "pre-dump", "ckpt", "An image before the last one makes that small; the job runs on"},
      {"", "lazy-pages", "restore --clone", "Its memory comes while it runs, without another program"},
      {"", "page-server", "copy", "It sends an image to another daemon"},
      {"", "check", "doctor", "The store is checked by 'rekindle fsck'"},
      {"", "cpuinfo", "doctor", "A restore compares the processors by itself"},
      {"", "decode", "inspect --objects", "What crit reads 'rekindle export IMAGE --criu DIR' writes"},
      {"", "crit", "inspect --objects", "What crit reads 'rekindle export IMAGE --criu DIR' writes"},
      // docker, podman
      {"", "checkpoint", "ckpt", ""},
      {"", "commit", "ckpt", ""},
      {"", "images", "ls", ""},
      {"", "image", "ls", ""},
      {"", "rmi", "rm", ""},
      {"", "load", "import --file", ""},
      {"", "save", "ckpt", "An image is written to a file by 'rekindle export --file'"},
      {"", "push", "copy", "It takes IMAGE --to PLACE"},
      {"", "pull", "copy", "It takes IMAGE --from PLACE"},
      {"", "history", "inspect", ""},
      {"", "create", "run", ""},
      {"", "exec", "run", ""},
      {"", "start", "run", ""},
      {"", "container", "ckpt",
       "A job in a container is captured by its PID, and comes back with 'restore --into'"},
      {"", "pause", "gpu park", "It frees a job's GPU; no other job is held for longer than its image takes"},
      {"", "unpause", "gpu resume", ""},
      {"", "system", "stats", ""},
      {"", "df", "stats", ""},
      {"", "du", "stats", ""},
      {"", "info", "inspect",
       "All of the store is shown by 'rekindle stats', the machine by 'rekindle doctor'"},
      // cuda-checkpoint
      {"", "lock", "gpu park", ""},
      {"", "unlock", "gpu resume", ""},
      {"", "toggle", "gpu park", "Its way back is 'rekindle gpu resume'"},
      // restic, borg, rclone
      {"", "backup", "ckpt", "A copy elsewhere is made by 'rekindle copy IMAGE --to PLACE'"},
      {"", "snapshots", "ls", ""},
      {"", "forget", "prune", "It takes the same --keep-last, --keep-daily and so on"},
      {"", "expire", "prune", ""},
      {"", "compact", "gc", ""},
      {"", "purge", "prune", "Its --gc, or 'rekindle gc', frees the space"},
      {"", "cleanup", "gc", ""},
      {"", "repair", "fsck --repair", ""},
      {"", "extract", "restore", "Into a folder of CRIU's: 'rekindle export IMAGE --criu DIR'"},
      {"", "find", "ls", ""},
      {"", "init", "", "nor need for it: the first 'rekindle ckpt', 'copy' or 'import' makes the store"},
      {"", "mount", "",
       "an image holds memory, not files; 'rekindle inspect --objects' and 'rekindle diff' look into it"},
      {"", "mirror", "copy --follow", ""},
      {"", "replicate", "copy --follow", ""},
      // What else is guessed
      {"", "snapshot", "ckpt", ""},
      {"", "freeze", "ckpt", ""},
      {"", "capture", "ckpt", ""},
      {"", "thaw", "restore", ""},
      {"", "unfreeze", "restore", ""},
      {"", "resume", "restore", "A parked job's GPU memory is put back by 'rekindle gpu resume'"},
      {"", "revive", "restore", ""},
      {"", "rollback", "restore --rollback append", ""},
      {"", "clone", "restore --clone", ""},
      {"", "fork", "template start", ""},
      {"", "supervise", "run --every 5m", ""},
      {"", "watch", "top", ""},
      {"", "monitor", "top", ""},
      {"", "list", "ls", "Jobs are listed by 'rekindle ps'"},
      {"", "jobs", "ps", ""},
      {"", "status", "ps", ""},
      {"", "kill", "stop", ""},
      {"", "end", "stop", ""},
      {"", "log", "logs", ""},
      {"", "follow", "logs --follow", ""},
      {"", "tail", "logs --follow", ""},
      {"", "delete", "rm", ""},
      {"", "remove", "rm", ""},
      {"", "show", "inspect", ""},
      {"", "describe", "inspect", ""},
      {"", "compare", "diff", ""},
      {"", "rename", "tag", "It gives an image a second name; 'rekindle rm' takes the first one"},
      {"", "label", "tag", "It takes --label KEY=VALUE"},
      {"", "alias", "tag", ""},
      {"", "cp", "copy", ""},
      {"", "sync", "copy --follow", ""},
      {"", "migrate", "copy",
       "The job is stopped by 'ckpt --stop' before, and brought back by 'restore' there"},
      {"", "upload", "copy", "It takes IMAGE --to PLACE"},
      {"", "download", "copy", "It takes IMAGE --from PLACE"},
      {"", "verify", "fsck --read", ""},
      {"", "scrub", "fsck --read", "The daemon does it by itself (rekindled --scrub-days)"},
      {"", "limit", "quota", ""},
      {"", "limits", "quota", ""},
      {"", "park", "gpu park", ""},
      {"", "lease", "gpu lease", ""},
      {"", "release", "gpu release", ""},
      {"", "swap", "gpu swap", ""},
      {"", "gpus", "gpu ps", ""},
      {"", "deploy", "fn deploy", ""},
      {"", "invoke", "fn invoke", ""},
      {"", "function", "fn", ""},
      {"", "functions", "fn", ""},
      {"", "lambda", "fn", ""},
      {"", "templates", "template", ""},
      {"", "groups", "group", ""},
      {"", "dependencies", "deps", ""},
      {"", "simulate", "sim", ""},
      {"", "daemon", "", "the daemon is a program of its own: rekindled"},
      {"", "serve", "", "the daemon is a program of its own: rekindled"},
      {"", "service", "", "the daemon is a program of its own: rekindled"},
      // Below others
      {"fn", "list", "fn ls", ""},
      {"fn", "list-functions", "fn ls", ""},
      {"fn", "ps", "fn ls", ""},
      {"fn", "get-function", "fn ls", ""},
      {"fn", "create", "fn deploy", ""},
      {"fn", "create-function", "fn deploy", ""},
      {"fn", "add", "fn deploy", ""},
      {"fn", "update-function-code", "fn set --code", ""},
      {"fn", "update-function-configuration", "fn set", ""},
      {"fn", "config", "fn set", ""},
      {"fn", "configure", "fn set", ""},
      {"fn", "update", "fn set", ""},
      {"fn", "call", "fn invoke", ""},
      {"fn", "run", "fn invoke", ""},
      {"fn", "delete", "fn rm", ""},
      {"fn", "delete-function", "fn rm", ""},
      {"fn", "remove", "fn rm", ""},
      {"fn", "log", "fn logs", ""},
      {"deps", "list", "deps ls", ""},
      {"deps", "create", "deps build", ""},
      {"deps", "delete", "deps rm", ""},
      {"deps", "remove", "deps rm", ""},
      {"group", "list", "group ls", ""},
      {"group", "ps", "group ls", ""},
      {"group", "checkpoint", "group ckpt", ""},
      {"group", "dump", "group ckpt", ""},
      {"group", "delete", "group rm", ""},
      {"group", "remove", "group rm", ""},
      {"template", "list", "template ls", ""},
      {"template", "ps", "template ls", ""},
      {"template", "create", "template up", ""},
      {"template", "stop", "template down", ""},
      {"template", "rm", "template down", ""},
      {"template", "remove", "template down", ""},
      {"template", "fork", "template start", ""},
      {"template", "run", "template start", ""},
      {"gpu", "list", "gpu ps", ""},
      {"gpu", "ls", "gpu ps", ""},
      {"gpu", "status", "gpu ps", ""},
      {"gpu", "checkpoint", "gpu park", ""},
      {"gpu", "lock", "gpu park", ""},
      {"gpu", "suspend", "gpu park", ""},
      {"gpu", "toggle", "gpu park", "Its way back is 'rekindle gpu resume'"},
      {"gpu", "restore", "gpu resume", ""},
      {"gpu", "unlock", "gpu resume", ""},
      {"gpu", "unpark", "gpu resume", ""},
      {"gpu", "unlease", "gpu release", ""},
      {"working-set", "rm", "working-set drop", ""},
      {"working-set", "show", "inspect", ""},
  };
  return *commands;
}

const std::vector<ForeignOption>& ForeignOptions() {
  static const auto* options = new std::vector<ForeignOption>{
      // CRIU
      {"ckpt,group ckpt", "--leave-running", kRunsOn},
      {"ckpt,group ckpt", "-R", kRunsOn},
      {"ckpt,group ckpt", "--leave-stopped", kStops},
      {"ckpt,group ckpt", "-s", kStops},
      {"ckpt", "--tree", kJobFirst},
      {"ckpt", "--pid", kJobFirst},
      {"ckpt", "-p", kJobFirst},
      {"ckpt,group ckpt", "--images-dir", kNoFolder},
      {"ckpt,group ckpt", "-D", kNoFolder},
      {"restore", "--images-dir", kFolderFirst},
      {"restore", "-D", kFolderFirst},
      {"export,import", "--images-dir", kPlace},
      {"export,import", "-D", kPlace},
      {"restore,export,import", "--shell-job",
       "nor need for it: a job that had a terminal gets that of the command"},
      {"restore,export,import", "-j", "nor need for it: a job that had a terminal gets that of the command"},
      {"restore", "--restore-detached", "--detach returns once the job runs"},
      {"restore", "--restore-sibling", "--detach returns once the job runs"},
      {"restore,group restore", "--tcp-established",
       "nor need for it: the connections of the image come back, unless --tcp-close is given"},
      {"restore", "--lazy-pages", kLazy},
      {"restore", "--external", kAsItIs},
      {"restore", "--inherit-fd", "--log FILE is where its output goes; other descriptors are made again"},
      {"restore", "--root", "--into PID brings it back in the container of that process"},
      {"restore", "--join-ns", "--into PID brings it back in the container of that process"},
      {"restore", "--exec-cmd", "--detach returns once the job runs"},
      {"", "--shell-job", kAsItIs},
      {"", "-j", kAsItIs},
      {"", "--tcp-established",
       "it is an option of 'rekindle ckpt'; connections are carried where there are any"},
      {"", "--ext-unix-sk", kAsItIs},
      {"", "--external", kAsItIs},
      {"", "--file-locks", kAsItIs},
      {"", "--link-remap", kAsItIs},
      {"", "--evasive-devices", kAsItIs},
      {"", "--ghost-limit",
       "nor need for it: deleted files that are open go into the image up to 1 GiB each"},
      {"", "--skip-in-flight", kAsItIs},
      {"", "--network-lock", kAsItIs},
      {"", "--manage-cgroups", "nor need for it: a job comes back in the control groups of who restores it"},
      {"", "--cpu-cap",
       "nor need for it: a restore compares the processors; --ignore-mismatch tries all the same"},
      {"", "--action-script",
       "there are none: what is to be done around it a script does around the command"},
      {"", "--track-mem", kTracked},
      {"", "--prev-images-dir", kTracked},
      {"", "--auto-dedup", "nor need for it: what is there already is not stored again"},
      {"", "--page-server", "'rekindle copy IMAGE --to HOST:PORT' sends an image to another daemon"},
      {"", "--stream", "nor need for it: memory goes to the store as a stream"},
      {"", "--display-stats", kAsJson},
      {"", "--work-dir", kLogs},
      {"", "-W", kLogs},
      {"", "--log-file", kLogs},
      {"", "-v4", kLogs},
      {"", "--unprivileged", "users work through the daemon (rekindled), as themselves"},
      // podman, docker
      {"ckpt", "--name", "-t NAME:TAG is the image's name; the job's name comes without an option"},
      {"ckpt", "-n", "-t NAME:TAG is the image's name; the job's name comes without an option"},
      {"ckpt", "--image", "-t NAME:TAG is the image's name"},
      {"ckpt", "--export", "'rekindle export IMAGE --file FILE' writes the image to a file"},
      {"ckpt", "-e", "'rekindle export IMAGE --file FILE' writes the image to a file"},
      {"ckpt", "--checkpoint-dir", kNoFolder},
      {"ckpt", "--pre-checkpoint", kTracked},
      {"ckpt", "--with-previous",
       "--parent IMAGE compares with an image; the newest of the job is taken by itself"},
      {"ckpt,restore", "--keep", "nor need for it: what CRIU wrote beside the image is kept where it failed"},
      {"ckpt,restore", "--print-stats", kAsJson},
      {"ckpt", "--ignore-rootfs",
       "nor need for it: files are not in an image, but for what --file-contents keeps"},
      {"ckpt", "--ignore-volumes",
       "nor need for it: files are not in an image, but for what --file-contents keeps"},
      {"ckpt", "--kill", kStops},
      {"ckpt", "--comment", "--label KEY=VALUE keeps words with the image"},
      {"restore", "--import", kFileFirst},
      {"restore", "-i", kFileFirst},
      {"restore", "--file", kFileFirst},
      {"restore", "--criu", kFolderFirst},
      {"restore", "--checkpoint", "the image comes without an option: 'rekindle restore IMAGE'"},
      {"restore", "--image", "the image comes without an option: 'rekindle restore IMAGE'"},
      {"restore", "-t", "the image comes without an option; --name is the job's name"},
      {"restore", "--tag", "the image comes without an option; --name is the job's name"},
      {"restore", "-n", "--name is the job's name"},
      {"restore", "--volume", "--bind HOST:PATH shows a clone another folder"},
      {"restore", "--mount", "--bind HOST:PATH shows a clone another folder"},
      {"restore", "--network", "--net is the network of a clone"},
      {"run", "--restart", "--restarts N brings it back at most so often"},
      {"run", "--retries", "--restarts N brings it back at most so often"},
      {"run", "--max-restarts", "--restarts N brings it back at most so often"},
      {"run", "--interval", "--every TIME takes an image so often"},
      {"run", "--env", kEnvironment},
      {"run", "-e", kEnvironment},
      {"run", "--env-file", kEnvironment},
      {"run", "--workdir", "a job has the working directory of the command: cd first"},
      {"run", "-w", "a job has the working directory of the command: cd first"},
      {"run", "--background", "--detach returns once it runs"},
      {"run", "--rm", "nor need for it: of a job that has ended nothing stays but its log and its images"},
      {"run", "-it", "a job has no terminal; its output is shown unless --detach is given"},
      {"run", "-i",
       "a job has no terminal; its standard input is /dev/null, or the file that the command's is"},
      {"run", "--interactive", "a job has no terminal; its output is shown unless --detach is given"},
      {"run", "--tty", "a job has no terminal; its output is shown unless --detach is given"},
      {"run", "--output", "--log FILE is where its output goes"},
      {"run", "-o", "--log FILE is where its output goes"},
      {"stop", "--time", "--grace TIME is from SIGTERM to SIGKILL"},
      {"stop", "-t", "--grace TIME is from SIGTERM to SIGKILL"},
      {"stop", "--timeout", "--grace TIME is from SIGTERM to SIGKILL"},
      {"stop", "--force", "--grace 0s kills it at once"},
      {"stop", "-f", "--grace 0s kills it at once"},
      {"stop", "--signal", "SIGTERM and, after --grace TIME, SIGKILL are sent"},
      {"rm,fn rm,deps rm,group rm,prune", "--force", kNoQuestion},
      {"rm,fn rm,deps rm,group rm,prune", "-f", kNoQuestion},
      {"rm,fn rm,deps rm,group rm,prune", "--yes", kNoQuestion},
      {"rm,fn rm,deps rm,group rm,prune", "-y", kNoQuestion},
      {"rm", "--all", "'rekindle prune --all' removes what no rule keeps"},
      {"ckpt,import,copy,tag", "--force", kReplaces},
      {"ckpt,import,copy,tag", "-f", kReplaces},
      {"ckpt,import,copy,tag", "--overwrite", kReplaces},
      {"export", "--output", "--file FILE is what is written, - for standard output"},
      {"export", "-o", "--file FILE is what is written, - for standard output"},
      {"import", "--input", "--file FILE is what is read, - for standard input"},
      {"import", "-i", "--file FILE is what is read, - for standard input"},
      {"import", "--name", "-t NAME:TAG is the image's name"},
      {"prune", "--keep-tag", "--keep-label KEY=VALUE keeps what has that label"},
      {"prune", "--prune", "--gc frees their space afterwards"},
      {"prune", "--group-by", "nor need for it: the images of each name and owner are judged by themselves"},
      {"prune", "--older-than", "--keep-within AGE keeps what is younger"},
      {"prune", "--max-age", "--keep-within AGE keeps what is younger"},
      {"prune", "--keep-days",
       "--keep-within 7d keeps all of so many days, --keep-daily 7 the newest of each"},
      {"prune", "--prefix", "names are given without an option and without tags, or --all"},
      {"prune", "--to", "--from PLACE removes copies there"},
      {"fsck", "--read-data-subset",
       "--read reads all; the daemon reads a part each day by itself (rekindled --scrub-days)"},
      {"fsck", "--verify-data", "--read verifies every stored byte"},
      {"restore,inspect", "--from", "'rekindle copy IMAGE --from PLACE' brings it here first"},
      {"copy", "--dest", "--to PLACE is where the copy is to be"},
      {"copy", "--delete",
       "--follow --keep N removes older copies, 'rekindle prune --from PLACE' by other rules"},
      {"copy", "--bwlimit", "RCLONE_BWLIMIT limits what goes to an object store"},
      {"copy", "--limit-upload", "RCLONE_BWLIMIT limits what goes to an object store"},
      {"ls", "--remote", "--from PLACE shows what is elsewhere"},
      {"ls", "--to", "--from PLACE shows what is elsewhere"},
      {"", "--repo", "--store DIR is the store"},
      {"", "-r", "--store DIR is the store"},
      {"prune", "--filter", "--keep-label KEY=VALUE keeps what has that label"},
      {"prune", "--keep", "--keep-last N keeps the newest of each name"},
      {"ls", "--filter", "names that contain a text are shown by 'rekindle ls TEXT'"},
      {"ls", "-a", "nor need for it: all are shown"},
      {"ls", "--all", "nor need for it: all are shown"},
      {"fsck", "--fix", "--repair mends what can be mended"},
      {"fsck", "--read-all", "--read verifies every stored byte"},
      {"wait", "-t", "--timeout TIME is how long it waits"},
      {"", "--format", kAsJson},
      {"", "--output-format", kAsJson},
      {"", "-q", kAsJson},
      {"", "--quiet", kAsJson},
      {"", "--socket", "--host unix:///PATH is the daemon's"},
      {"", "-H", "--host unix:///PATH or NAME:PORT is the daemon's"},
      {"", "--tlscacert", "--tls-ca FILE"},
      {"", "--tlscert", "--tls-cert FILE"},
      {"", "--tlskey", "--tls-key FILE"},
      // cuda-checkpoint
      {"", "--toggle", kToggle},
      {"", "--action", kToggle},
      {"", "--pid", kJobFirst},
      {"", "--get-state", "'rekindle gpu ps' shows which jobs are parked"},
      {"", "--device-map", "--gpu-map OLD=NEW is an option of 'rekindle restore' and 'rekindle gpu resume'"},
      {"gpu park,gpu swap", "--timeout", "--lock-timeout SECONDS is how long work under way may take to end"},
      // The AWS CLI
      {"fn deploy", "--role", "nor need for it: a function runs as the user who deployed it"},
      {"fn deploy", "--zip-file", "--code DIR is the folder with its code: unpack it there"},
      {"fn deploy", "--memory-size", "--memory SIZE, such as 512M"},
      {"fn deploy", "--environment", "--env NAME=VALUE, once for each"},
      {"fn deploy", "--layers", "--layer DIR, once for each"},
      {"fn deploy", "--concurrency", "--max-instances N is how many there are at the same time, at most"},
      {"fn deploy,fn invoke", "--function-name", "the name comes without an option"},
      {"fn invoke", "--invocation-type", "--async returns once it is queued, --dry-run only checks"},
      {"fn invoke", "--data", "--payload is the event"},
      {"fn invoke", "-d", "--payload is the event"},
      {"fn invoke", "--log-type", "--log-tail shows the end of its log"},
  };
  return *options;
}

const ForeignCommand* FindForeignCommand(absl::string_view above, absl::string_view word) {
  for (const ForeignCommand& command : ForeignCommands()) {
    if (command.above == above && command.word == word) return &command;
  }
  return nullptr;
}

std::string ForeignOptionNote(absl::string_view command, absl::string_view option) {
  std::string anywhere;
  for (const ForeignOption& line : ForeignOptions()) {
    if (line.option != option) continue;
    if (line.commands.empty()) {
      anywhere = std::string(line.note);
      continue;
    }
    for (absl::string_view one : absl::StrSplit(line.commands, ',')) {
      if (one == command) return std::string(line.note);
    }
  }
  return anywhere;
}

}  // namespace rekindle::cli
