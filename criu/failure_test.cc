#include "criu/failure.h"

#include <signal.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "criu/failure_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string ReadLog(const std::string& name) {
  absl::StatusOr<std::string> log = ReadFile(absl::StrCat(REKINDLE_CRIU_TESTDATA, "/", name, ".log"));
  EXPECT_TRUE(log.ok()) << log.status();
  return log.ok() ? *log : "";
}

// Logs of real failures (CRIU 4.2.1), shortened to the lines around errors and warnings, and what they must
// be taken for.
const std::map<std::string, std::string> kDumpLogs = {
    {"dump-bpf-prog", "bpf"},
    {"dump-clone-vm", "shared-memory-space"},
    {"dump-deep-path", "path-too-long"},
    {"dump-deleted-map-big", "ghost-too-large"},
    {"dump-device-fuse", "device"},
    {"dump-device-net-tun", "tun-device"},
    {"dump-ending-threads", "ending-threads"},
    {"dump-epoll-closed", "epoll-closed-file"},
    {"dump-file-locks", "file-locks"},
    {"dump-freeze-timeout", "freeze-timeout"},
    {"dump-ghost-large", "ghost-too-large"},
    {"dump-hidden-by-mount", "hidden-by-mount"},
    {"dump-inotify-proc", "inotify-path"},
    {"dump-io-uring", "io-uring"},
    {"dump-io-uring-mapped", "io-uring"},
    {"dump-landlock", "anonymous-object"},
    {"dump-link-remap", "link-remap"},
    {"dump-mapped-elsewhere", "mapped-elsewhere"},
    {"dump-memfd-secret", "secret-memory"},
    {"dump-mqueue", "other-mount-namespace"},
    {"dump-nested-pidns", "nested-pid-namespace"},
    {"dump-no-process", "no-such-process"},
    {"dump-no-space", "no-space"},
    {"dump-other-mntns-fd", "other-mount-namespace"},
    {"dump-other-user", "other-user"},
    {"dump-own-netns", "network-lock"},
    {"dump-perf-event", "perf-event"},
    {"dump-pidfd", "pidfd-outside"},
    {"dump-pipe-packet", "pipe-packet-mode"},
    {"dump-shell-job", "shell-job"},
    {"dump-sock-mptcp", "mptcp"},
    {"dump-sock-netlink", "netlink-data"},
    {"dump-sock-vsock", "socket-family"},
    {"dump-sock-xdp", "socket-family"},
    {"dump-sysv-shm", "sysv-shm"},
    {"dump-task-killed", "task-killed-in-dump"},
    {"dump-tcp-established", "tcp-established"},
    {"dump-tcp-lock", "network-lock"},
    {"dump-time-namespace", "time-namespace"},
    {"dump-traced", "not-traceable"},
    {"dump-track-mem", "soft-dirty"},
    {"dump-tty-session", "tty"},
    {"dump-unix-dgram", "unix-external"},
    {"dump-unix-half", "unix-external"},
    {"dump-unix-in-flight", "unix-in-flight"},
    {"dump-unix-pair", "unix-external"},
    {"dump-user-namespace", "user-namespace"},
    {"dump-userfaultfd", "userfaultfd"},
    {"dump-zombie", "not-traceable"},
};
const std::map<std::string, std::string> kRestoreLogs = {
    {"restore-address-gone", "address-missing"},
    {"restore-bad-magic", "image-damaged"},
    {"restore-core-missing", "image-damaged"},
    {"restore-core-truncated", "image-damaged"},
    {"restore-cpu-features", "cpu-features"},
    {"restore-cwd-gone", "cwd-missing"},
    {"restore-descriptors-high", "no-descriptors-left"},
    {"restore-epoll-file", "epoll-file"},
    {"restore-exe-build-id", "file-changed"},
    {"restore-exe-missing", "file-missing"},
    {"restore-file-missing", "file-missing"},
    {"restore-file-mode", "file-changed"},
    {"restore-file-size", "file-changed"},
    {"restore-image-version", "image-version"},
    {"restore-inotify-gone", "inotify-missing"},
    {"restore-killed-at-once", "task-killed"},
    {"restore-no-inventory", "image-damaged"},
    {"restore-pages-missing", "image-damaged"},
    {"restore-parent-missing", "file-missing"},
    {"restore-pid-in-use", "pid-in-use"},
    {"restore-port-in-use", "port-in-use"},
    {"restore-pty-taken", "terminal-in-use"},
    {"restore-socket-folder-gone", "socket-folder-missing"},
    {"restore-socket-relative-gone", "socket-folder-missing"},
    {"restore-tcp-no-option", "tcp-established"},
    {"restore-tty-missing", "tty-missing"},
    {"restore-tty-no-option", "tty"},
    {"restore-unix-peer-gone", "unix-peer-gone"},
    {"restore-user-bounds", "socket-not-the-users"},
};

void ExpectDiagnosed(Operation operation, const std::string& log, const std::string& id) {
  Diagnosis diagnosis = Diagnose(operation, log);
  EXPECT_EQ(diagnosis.id, id) << diagnosis.sentence;
  EXPECT_THAT(diagnosis.sentence, Not(HasSubstr("$")));
  EXPECT_THAT(diagnosis.cure, Not(HasSubstr("$")));
  EXPECT_THAT(diagnosis.lines, Not(IsEmpty()));
  EXPECT_LE(diagnosis.lines.size(), 5u);
  for (const std::string& line : diagnosis.lines) {
    EXPECT_TRUE(absl::StartsWith(line, "Error ") || absl::StartsWith(line, "Warn ")) << line;
    EXPECT_THAT(line, Not(HasSubstr("RLIMIT_NOFILE")));
  }
}

// Lines of CRIU 4.2.1 in the logs of such jobs.
TEST(FailureTest, ObjectsThatJobsHold) {
  const std::pair<const char*, const char*> kLines[] = {
      {"(criu/pipes.c:416): OOM storing pipe", "pipes-too-many"},
      {"(criu/sk-queue.c:144): skqueue: Control messages in queue, not supported", "unix-credentials"},
      {"(criu/sk-inet.c:504): inet: Can't dump corked dgram socket 242e307", "udp-corked"},
      {"(soccr/soccr.c:371): \trecv failed (1, want 2): Input/output error", "tcp-unread"},
      {"(soccr/soccr.c:371): \trecv failed (3, want 10): Success", "tcp-unread"},
      {"(criu/pidfd.c:88): pidfd: PIDFD_THREAD flag is currently not supported", "pidfd-thread"},
      {"(criu/sockets.c:371): sockets: Can't get socket filter len: Permission denied", "socket-filter"}};
  for (const auto& [line, id] : kLines) {
    ExpectDiagnosed(Operation::kDump,
                    absl::StrCat("(00.004420) Error ", line,
                                 "\n(00.004431) Error (criu/cr-dump.c:1545): Dump files (pid: 70) failed "
                                 "with -1\n"),
                    id);
  }
}

// As a service has them that lacks CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
TEST(FailureTest, WhatRootMayNotOpen) {
  Diagnosis dump = Diagnose(Operation::kDump,
                            "(00.004420) Error (criu/files-reg.c:1457): Can't stat path: Permission denied\n"
                            "(00.004431) Error (criu/cr-dump.c:1702): Dump files (pid: 70) failed with -1\n");
  EXPECT_EQ(dump.id, "path-not-roots");
  EXPECT_THAT(dump.cure, HasSubstr("no_root_squash"));
  Diagnosis restore = Diagnose(Operation::kRestore,
                               "(00.010000)     70: Error (criu/files-reg.c:2344): Can't open file home/m on "
                               "restore: Permission denied\n"
                               "(00.010001)     70: Error (criu/files.c:1232): Unable to open fd=3 id=0x5\n");
  EXPECT_EQ(restore.id, "file-not-roots");
  EXPECT_THAT(restore.sentence, HasSubstr("/home/m,"));
  EXPECT_THAT(restore.cure, HasSubstr("no_root_squash"));
}

TEST(FailureTest, RealDumpLogs) {
  for (const auto& [name, id] : kDumpLogs) {
    SCOPED_TRACE(name);
    ExpectDiagnosed(Operation::kDump, ReadLog(name), id);
  }
}

TEST(FailureTest, RealRestoreLogs) {
  for (const auto& [name, id] : kRestoreLogs) {
    SCOPED_TRACE(name);
    ExpectDiagnosed(Operation::kRestore, ReadLog(name), id);
  }
}

// Failures that could not be brought about on the machine where the logs above were made (no GPU, no FUSE
// server, no second CPU type, a root that holds its capabilities): the wording is that of the messages in
// CRIU's program.
TEST(FailureTest, WordingTakenFromTheProgram) {
  const struct {
    Operation operation;
    const char* line;
    const char* id;
  } cases[] = {
      {Operation::kDump, "Error (criu/files-ext.c:94): Can't dump file 5 of that type [20666] (chr 195:255)",
       "nvidia-device"},
      {Operation::kDump,
       "Error (criu/cr-dump.c:1): handle_device_vma plugin failed: No such file or directory", "device"},
      {Operation::kDump, "Error (criu/mount.c:1): /mnt/data is a fuse mount but not external", "fuse-mount"},
      {Operation::kDump, "Error (criu/mount.c:1): mnt: FS mnt ./mnt dev 0x3b root / unsupported id 63",
       "unsupported-mount"},
      {Operation::kDump,
       "Error (criu/cr-dump.c:1): The root process 77 is not a session leader. Consider using "
       "--shell-job option",
       "shell-job"},
      {Operation::kDump, "Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 3a5f", "in-flight"},
      {Operation::kDump,
       "Error (criu/seccomp.c:1): Dumping seccomp filters not supported: Operation not permitted", "seccomp"},
      {Operation::kDump, "Error (criu/rseq.c:1): 77 has rseq but kernel lacks get_rseq_conf feature",
       "kernel-feature"},
      {Operation::kDump,
       "Error (criu/kerndat.c:732): Unable to connect a socket: Network is unreachable\n"
       "Error (criu/crtools.c:280): Could not initialize kernel features detection.",
       "loopback-down"},
      {Operation::kRestore, "Error (criu/cpu.c:1): cpu: CPU instruction capabilities do not match run time",
       "cpu-features"},
      {Operation::kRestore, "Error (criu/cr-restore.c:1): Pid 80 do not match expected 77", "pid-in-use"},
      {Operation::kRestore, "Error (criu/pie/restorer.c:2185): Unable to create a thread: -17",
       "thread-id-in-use"},
      {Operation::kRestore,
       "Error (criu/namespaces.c:1): Can't unshare net-namespace: Operation not permitted", "not-permitted"},
      {Operation::kRestore, "Error (criu/cr-restore.c:1): Can't fork for 77: Operation not permitted",
       "not-permitted"},
      {Operation::kRestore,
       "Error (criu/sk-unix.c:1651): unix: Can't bind id 0xb ino 17 addr /tmp/d/s: Address already in use",
       "socket-name-in-use"},
      {Operation::kRestore,
       "Error (criu/lsm.c:1): apparmor LSM specified but apparmor not supported by kernel", "lsm"},
      {Operation::kRestore, "Error (criu/mem.c:1): Unable to map: Cannot allocate memory", "out-of-memory"},
      {Operation::kRestore,
       "Error (criu/pie/restorer.c:1883): Can't restore 0x7f04c2200000 mapping with 0xfffffffffffffff4",
       "out-of-memory"},
      {Operation::kDump,
       "Error (criu/cr-dump.c:1528): A session leader of 9233(9233) is outside of its pid namespace",
       "session-outside"},
      {Operation::kRestore, "Error (criu/util.c:1): fork: Resource temporarily unavailable",
       "out-of-processes"},
      {Operation::kRestore,
       "Error (criu/cr-restore.c:1): Can't fork for 77: Resource temporarily unavailable",
       "out-of-processes"},
      {Operation::kRestore, "Error (criu/pstree.c:969): Can't restore sub-task in NS (cflags 20000)",
       "nested-namespace"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file tmp/r on restore: Operation not permitted",
       "file-attribute"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file tmp/r on restore: Too many levels of symbolic links",
       "file-behind-link"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file proc/28240/status on restore: No such file or "
       "directory",
       "process-missing"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file proc/28240/task/28241/stat on restore: No such file "
       "or "
       "directory",
       "thread-missing"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file proc/driver/nvidia/params on restore: No such file or "
       "directory",
       "file-missing"},
      {Operation::kRestore,
       "Error (criu/files-reg.c:2353): Can't open file srv/proc/data on restore: No such file or directory",
       "file-missing"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.line);
    ExpectDiagnosed(test.operation, absl::StrCat("(00.001234) ", test.line, "\n"), test.id);
  }
}

TEST(FailureTest, DetailsReachTheSentence) {
  Diagnosis diagnosis = Diagnose(Operation::kDump, ReadLog("dump-ghost-large"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/tmp/job/g"));
  diagnosis = Diagnose(Operation::kDump, ReadLog("dump-mapped-elsewhere"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/usr/bin/python3.11, by"));
  diagnosis = Diagnose(Operation::kRestore, ReadLog("restore-pty-taken"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/dev/pts/0,"));
  diagnosis = Diagnose(Operation::kRestore, ReadLog("restore-socket-folder-gone"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/tmp/pymp-mj4wugnr/listener-vyty38jn is"));
  diagnosis = Diagnose(Operation::kRestore, ReadLog("restore-socket-relative-gone"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/tmp/job/f,"));
  diagnosis = Diagnose(Operation::kRestore, ReadLog("restore-file-size"));
  EXPECT_THAT(diagnosis.sentence, HasSubstr("/tmp/job/rf"));
  EXPECT_THAT(diagnosis.lines.front(), HasSubstr("bad size 3 (expect 5)"));
  diagnosis = Diagnose(Operation::kDump,
                       "(00.01) Error (criu/mount.c:1): /mnt/data is a fuse mount but not external\n");
  EXPECT_THAT(diagnosis.sentence, HasSubstr("FUSE mount /mnt/data,"));
}

// Every entry of the table is of use: complete, with patterns that say something.
TEST(FailureTest, TableIsComplete) {
  std::set<std::string> ids;
  for (const KnownFailure& failure : KnownFailures()) {
    SCOPED_TRACE(failure.id);
    ids.insert(failure.id);
    EXPECT_NE(failure.operations, 0);
    EXPECT_THAT(failure.patterns, Not(IsEmpty()));
    for (const char* pattern : failure.patterns) EXPECT_GT(std::string(pattern).size(), 5u);
    EXPECT_TRUE(absl::EndsWith(failure.sentence, "."));
    EXPECT_TRUE(absl::EndsWith(failure.cure, "."));
    EXPECT_NE(failure.code, absl::StatusCode::kOk);
  }
  EXPECT_GE(ids.size(), 40u);
}

TEST(FailureTest, UnknownErrorsAreShownAsTheyAre) {
  Diagnosis diagnosis = Diagnose(Operation::kDump,
                                 "(00.1) Warn  (criu/a.c:1): odd\n(00.2) Error (criu/b.c:2): something new\n"
                                 "(00.3) 17: Error (criu/c.c:3): and more\n");
  EXPECT_EQ(diagnosis.id, "");
  EXPECT_EQ(diagnosis.code, absl::StatusCode::kInternal);
  EXPECT_THAT(diagnosis.lines,
              ::testing::ElementsAre("Error (criu/b.c:2): something new", "Error (criu/c.c:3): and more"));
}

// As the logs of restores were of which a process was killed at one moment or another.
TEST(FailureTest, AKilledProcessIsNotTakenForAnythingElse) {
  constexpr absl::string_view kLast = "(00.9) Error (criu/cr-restore.c:2331): Restoring FAILED.\n";
  constexpr absl::string_view kKills =
      "(00.8) Error (criu/cr-restore.c:2304): Killing processes because of failure on restore.\nThe Network "
      "was unlocked so some data or a connection may have been lost.\n";
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {"(00.1) Error (criu/cr-restore.c:1924): Unable to detach 70: No such process\n", "task-killed"},
      {"(00.1) Error (criu/cr-restore.c:1281): 70 stopped by signal 19: Stopped (signal)\n", "task-ended"},
      {"", "task-ended"},
      {"(00.1) Error (criu/cr-restore.c:1924): Unable to detach 70: No locks available\n", "lock-lost"},
      {"(00.1) Error (criu/a.c:1): something new\n", ""}};
  for (const auto& [line, id] : cases) {
    for (const absl::string_view kills : {absl::string_view(), kKills}) {
      const Diagnosis diagnosis = Diagnose(Operation::kRestore, absl::StrCat(line, kills, kLast));
      EXPECT_EQ(diagnosis.id, id) << line;
      EXPECT_EQ(diagnosis.code == absl::StatusCode::kAborted, absl::StartsWith(id, "task-")) << line;
    }
  }
}

TEST(FailureTest, WhatCriuKillsItselfIsNotTheCause) {
  Diagnosis diagnosis = Diagnose(Operation::kRestore,
                                 "Error (criu/a.c:1): something new\nError (criu/cr-restore.c:1): Restoring "
                                 "FAILED.\nError (criu/cr-restore.c:2): 10128 killed by signal 9: Killed\n");
  EXPECT_EQ(diagnosis.id, "");
  EXPECT_THAT(diagnosis.lines.front(), HasSubstr("something new"));
}

TEST(FailureTest, EmptyAndEndlessLogs) {
  EXPECT_EQ(Diagnose(Operation::kDump, "").id, "");
  EXPECT_FALSE(Diagnose(Operation::kRestore, "(00.1) fine\n").sentence.empty());
  std::string endless(1 << 20, 'x');
  EXPECT_THAT(Diagnose(Operation::kDump, "Error (" + endless).lines, SizeIs(1));
  EXPECT_LT(Diagnose(Operation::kDump, "Error (" + endless).lines[0].size(), 1000u);
}

TEST(FailureTest, StatusSaysAll) {
  ExitState exit;
  exit.code = 1;
  absl::Status status =
      FailureStatus(Operation::kRestore, exit, ReadLog("restore-pid-in-use"), "/var/log/x/restore.log");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(DiagnosisId(status), "pid-in-use");
  EXPECT_EQ(DiagnosisId(absl::AlreadyExistsError("else")), "");
  EXPECT_FALSE(IsUnknownFailure(status));
  EXPECT_FALSE(IsUnknownFailure(absl::AlreadyExistsError("else")));
  EXPECT_TRUE(IsUnknownFailure(
      FailureStatus(Operation::kRestore, exit, "Error (criu/b.c:2): something new\n", "/restore.log")));
  std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("is taken"));
  EXPECT_THAT(message, HasSubstr("File exists"));
  EXPECT_THAT(message, HasSubstr("/var/log/x/restore.log"));
  EXPECT_THAT(message, HasSubstr("exit status 1"));

  exit.code = 0;
  exit.signal = 9;
  status = FailureStatus(Operation::kDump, exit, "(00.1) fine\n", "/l");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("signal 9"));

  exit.signal = SIGXFSZ;
  status = FailureStatus(Operation::kDump, exit, "(00.1) fine\n", "/l");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -f"));
}

}  // namespace
}  // namespace rekindle::criu
