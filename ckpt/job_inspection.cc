#include "ckpt/job_inspection.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/major.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/capability.h"
#include "base/cgroup_folders.h"
#include "base/companion_program.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/process_stat.h"
#include "base/socket_descriptors.h"
#include "base/status.h"
#include "base/thread_stat.h"
#include "base/trace_rights.h"
#include "ckpt/held_job.h"
#include "ckpt/job_pipes.h"
#include "ckpt/kernel_workers.h"
#include "ckpt/outside_files.h"
#include "ckpt/upper_protocols.h"
#include "gpu_state/keeper_client.h"
#include "rekindle/v1/control_channel.h"

namespace rekindle::ckpt {
namespace {

// NR_PIPES_WITH_DATA of CRIU, which counts those without, too, that somebody reads from.
constexpr size_t kMostPipes = 1024;
// ".cr.1.ghost", with numbers of up to three digits.
constexpr size_t kLongestRemovedName = NAME_MAX - 13;

std::string ProcPath(pid_t pid, absl::string_view rest) { return absl::StrCat("/proc/", pid, "/", rest); }

// Of "/proc/PID" or something below; 0: it is nothing of the kind.
pid_t ProcessIn(absl::string_view path) {
  pid_t pid = 0;
  const bool is_one =
      absl::ConsumePrefix(&path, "/proc/") && absl::SimpleAtoi(path.substr(0, path.find('/')), &pid);
  return is_one ? pid : 0;
}

uint64_t LeadingNumber(absl::string_view text) {
  uint64_t value = 0;
  std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
  if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return 0;
  return value;
}

// Its main thread has ended: is that the end of it, since the others are ending as well?
bool OthersAreEnding(pid_t pid) {
  const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
  if (!threads.ok()) return true;  // they have gone since
  return std::all_of(threads->begin(), threads->end(), [pid](pid_t thread) {
    const absl::StatusOr<ProcessStat> stat = ReadThreadStat(pid, thread);
    return stat.ok() ? stat->ending() : absl::IsNotFound(stat.status());
  });
}

absl::Status CheckMayBeCaptured(const ProcessInfo& root, uid_t caller) {
  pid_t pid = root.pid;
  if (pid == 1) {
    return absl::InvalidArgumentError(
        "capturing process 1: it is the system's init, which can't be frozen; give the PID of one job");
  }
  if (root.kernel_thread) {
    return absl::InvalidArgumentError(absl::StrCat(
        "capturing process ", pid, " ", root.command,
        ": it is a thread of the kernel and has no memory of its own; give the PID of a program"));
  }
  if (root.state == 'Z' && root.threads > 1) {
    if (OthersAreEnding(root.pid)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", root.pid,
          ": it is just ending (killed, or by its exit), as the last of its threads are; there is "
          "nothing left to save"));
    }
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", pid,
        ": its main thread has ended while others go on (pthread_exit() in main), and CRIU can't "
        "capture such a process; have the main thread wait for the others (pthread_join())"));
  }
  if (root.state == 'Z' || root.state == 'X') {
    return absl::FailedPreconditionError(
        absl::StrCat("capturing process ", pid,
                     ": it has ended already (a zombie that its parent has not collected); "
                     "there is nothing left to save"));
  }
  if (caller != 0 && root.uid != caller) {
    return absl::PermissionDeniedError(absl::StrCat("capturing process ", pid, ": it belongs to uid ",
                                                    root.uid, " and you are uid ", caller,
                                                    "; ask its owner or root to capture it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMayHaveImageOf(absl::Span<const pid_t> pids, uid_t caller,
                                 const std::vector<gid_t>& caller_groups) {
  if (caller == 0) return absl::OkStatus();
  const Owner user{caller, caller_groups.empty() ? caller : caller_groups.back(), caller_groups};
  for (const pid_t pid : pids) {
    const absl::Status status = CheckMayTrace(pid, user);
    if (status.ok() || absl::IsNotFound(status)) continue;
    return WithMessage(
        status, absl::StrCat("capturing process ", pid, ": it ", status.message(), ", and you are uid ",
                             caller, "; end it first, or ask root to capture the job"));
  }
  return absl::OkStatus();
}

namespace {

// Programs of ours that work for jobs. None is a job: what hangs on it would not be in its image.
constexpr absl::string_view kHelpers[] = {"rekindled", "rekindle-pager", "rekindle-sandbox",
                                          "rekindle-gpu-helper"};

absl::Status CheckIsNoHelper(pid_t pid) {
  for (const absl::string_view helper : kHelpers) {
    const absl::StatusOr<std::string> program = FindCompanionProgram(helper);
    if (!program.ok() || !IsSameFile(absl::StrCat("/proc/", pid, "/exe"), *program)) continue;
    return absl::InvalidArgumentError(absl::StrCat("capturing process ", pid, ": it is Rekindle's own ",
                                                   helper,
                                                   ", which works for jobs and is none: 'rekindle ps' shows "
                                                   "jobs and copies"));
  }
  return absl::OkStatus();
}

absl::Status CheckNotOurselves(const std::vector<ProcessInfo>& tree, pid_t caller_pid) {
  for (const ProcessInfo& process : tree) {
    if (process.pid != ::getpid() && process.pid != caller_pid) continue;
    absl::string_view who = process.pid == ::getpid() ? "Rekindle itself" : "the command that asks for it";
    return absl::InvalidArgumentError(absl::StrCat(
        "capturing process ", tree[0].pid, ": its tree holds ", who, " (PID ", process.pid,
        "), which would have to freeze itself; give the PID of a job below, or run rekindle from "
        "another terminal. A supervised job asks for an image of itself by the hook's "
        "checkpoint_here(force=True)"));
  }
  return CheckIsNoHelper(tree[0].pid);
}

// Its four user or group IDs are the one that we have.
bool AreOurs(absl::string_view ids, uint32_t ours) {
  for (absl::string_view word : absl::StrSplit(ids, absl::ByAnyChar(" \t"), absl::SkipWhitespace())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(word, &id) || id != ours) return false;
  }
  return true;
}

// As prlimit() wants it, by which CRIU reads a process's limits.
absl::Status CheckMachineCan(const std::vector<ProcessInfo>& tree) {
  if (HasCapability(CAP_SYS_RESOURCE)) return absl::OkStatus();
  for (const ProcessInfo& process : tree) {
    auto status = ReadFile(ProcPath(process.pid, "status"));
    if (!status.ok()) continue;
    const bool our_user = process.uid == ::geteuid() && AreOurs(StatusField(*status, "Uid"), ::geteuid());
    if (our_user && AreOurs(StatusField(*status, "Gid"), ::getegid())) continue;
    const std::string gid = absl::StrCat(" in gid ", LeadingNumber(StatusField(*status, "Gid")));
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", process.pid, ": it runs as uid ", process.uid, our_user ? gid : "",
        " and CRIU needs the capability CAP_SYS_RESOURCE to capture another ", our_user ? "gid" : "uid",
        "'s process, which this machine does not grant; run Rekindle where root has it (outside this "
        "container or sandbox)"));
  }
  return absl::OkStatus();
}

absl::Status CheckNotTraced(const std::vector<ProcessInfo>& tree) {
  for (const ProcessInfo& process : tree) {
    const pid_t tracer = TracerOf(absl::StrCat(process.pid));
    // The watch over a parked GPU job lets go for us.
    if (tracer == 0 || gpu::ThreadKeeper::IsWatched(process.pid)) continue;
    if (IsCriuDump(tracer)) {
      return absl::AbortedError(absl::StrCat("capturing process ", process.pid,
                                             ": another checkpoint of it is under way; try again when that "
                                             "has ended"));
    }
    return absl::FailedPreconditionError(absl::StrCat("capturing process ", process.pid, ": process ", tracer,
                                                      " traces it (a debugger, strace); end that first"));
  }
  return absl::OkStatus();
}

// CRIU would wait for it as long as it lasts, and could not be told to give up.
absl::Status CheckNotFrozen(const std::vector<ProcessInfo>& tree) {
  for (const ProcessInfo& process : tree) {
    const std::string frozen = FrozenCgroupOf(process.pid);
    if (frozen.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "capturing process ", process.pid, ": its cgroup ", frozen,
        " is frozen (a paused container?), and a frozen process can't be captured; let it go on first "
        "(docker unpause, systemctl thaw)"));
  }
  return absl::OkStatus();
}

// CRIU takes an image of a thread with any policy, and restores those of these alone.
absl::Status CheckPolicies(const std::vector<ProcessInfo>& tree) {
  for (const ProcessInfo& process : tree) {
    const auto threads = ThreadsOf(process.pid);
    if (!threads.ok()) continue;
    for (const pid_t thread : *threads) {
      const int policy = ::sched_getscheduler(thread);
      if (policy < 0) continue;
      switch (policy & ~SCHED_RESET_ON_FORK) {
        case SCHED_OTHER:
        case SCHED_FIFO:
        case SCHED_RR:
        case SCHED_BATCH:
        case SCHED_IDLE:
          continue;
        default:
          return absl::FailedPreconditionError(absl::StrCat(
              "capturing process ", process.pid, ": its thread ", thread, " has scheduling policy ",
              policy & ~SCHED_RESET_ON_FORK,
              " (6: deadline, 7: ext), which CRIU can't restore; give it another first (chrt -o -p 0 ",
              thread, ")"));
      }
    }
  }
  return absl::OkStatus();
}

// CRIU takes an image of it that it can't restore.
absl::Status CheckProgram(pid_t pid) {
  const std::string program = ReadLink(ProcPath(pid, "exe")).value_or("");
  if (!absl::StartsWith(program, "/memfd:")) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "capturing process ", pid, ": the program that it runs is in memory alone (",
      absl::StripSuffix(program, kDeletedSuffix), "), which CRIU can't restore; start it from a file"));
}

struct TcpSocket {
  std::string local, remote;  // addresses and ports, as the kernel's tables have them
  uint64_t inode = 0;         // 0: nobody has accepted it yet
  bool listens = false;
};

// An IPv4 address in an IPv6 socket as the other table has it.
std::string PlainAddress(absl::string_view text) {
  absl::ConsumePrefix(&text, "0000000000000000FFFF0000");
  return std::string(text);
}

// Those of the process's network namespace that listen, have a peer or look for one.
std::vector<TcpSocket> TcpSockets(pid_t pid) {
  constexpr absl::string_view kClosed = "07", kListens = "0A";
  std::vector<TcpSocket> sockets;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    auto content = ReadFile(ProcPath(pid, table));
    if (!content.ok()) continue;
    for (absl::string_view line : absl::StrSplit(*content, '\n')) {
      std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      TcpSocket socket;
      if (f.size() < 10 || !absl::SimpleAtoi(f[9], &socket.inode) || f[3] == kClosed) continue;
      socket.local = PlainAddress(f[1]);
      socket.remote = PlainAddress(f[2]);
      socket.listens = f[3] == kListens;
      sockets.push_back(std::move(socket));
    }
  }
  return sockets;
}

// Which character devices are terminals, as the kernel's drivers have it: pseudo-terminals, virtual and
// serial consoles, those of hypervisors.
class Terminals {
 public:
  Terminals() {
    // NAME DEVICE MAJOR MINOR|FIRST-LAST TYPE
    const auto drivers = ReadFile("/proc/tty/drivers");
    for (absl::string_view line : absl::StrSplit(drivers.value_or(""), '\n')) {
      const std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      if (f.size() < 5 || f.back() == "pty:master") continue;
      const std::pair<absl::string_view, absl::string_view> minors = absl::StrSplit(f[f.size() - 2], '-');
      Range range;
      if (!absl::SimpleAtoi(f[f.size() - 3], &range.major) || !absl::SimpleAtoi(minors.first, &range.first) ||
          !absl::SimpleAtoi(minors.second.empty() ? minors.first : minors.second, &range.last)) {
        continue;
      }
      ranges_.push_back(range);
    }
    if (!drivers.ok()) ranges_ = {{TTY_MAJOR, 0, UINT32_MAX}, {TTYAUX_MAJOR, 1, 1}};
  }

  bool Has(const struct stat& info) const {
    if (!S_ISCHR(info.st_mode)) return false;
    if (IsPseudo(info)) return true;
    const unsigned device = major(info.st_rdev), number = minor(info.st_rdev);
    // Whoever opens /dev/tty has his own, and whoever opens /dev/ptmx a new one.
    if (device == TTYAUX_MAJOR && (number == 0 || number == 2)) return false;
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
      return range.major == device && range.first <= number && number <= range.last;
    });
  }

  // The side of a pseudo-terminal that has a number of its own.
  static bool IsPseudo(const struct stat& info) {
    return S_ISCHR(info.st_mode) && major(info.st_rdev) == UNIX98_PTY_SLAVE_MAJOR;
  }

 private:
  struct Range {
    unsigned major = 0, first = 0, last = 0;
  };
  std::vector<Range> ranges_;
};

// What the descriptors of a tree say about how it must be dumped.
class DescriptorScan {
 public:
  absl::Status Add(const ProcessInfo& process, bool is_root) {
    auto names = ListDirectory(ProcPath(process.pid, "fd"));
    if (!names.ok()) return absl::OkStatus();  // it ended meanwhile; CRIU will say if that matters
    for (const std::string& name : *names) {
      OpenDescriptor descriptor;
      descriptor.pid = process.pid;
      if (!absl::SimpleAtoi(name, &descriptor.fd)) continue;
      descriptor.target = ReadLink(ProcPath(process.pid, absl::StrCat("fd/", name))).value_or("");
      RK_RETURN_IF_ERROR(Classify(descriptor));
      if (is_root && descriptor.fd <= 2) AddStdio(descriptor);
    }
    return absl::OkStatus();
  }

  // FailedPrecondition: the hook holds several processes, or a connection can't be saved.
  absl::Status Finish(JobInspection& job) {
    for (const auto& [resource, index] : terminals_used_) {
      if (!masters_.contains(index)) job.external_ttys.push_back(resource);
    }
    // A terminal whose other side is in the job comes back with the job.
    for (StdioDescriptor& slot : stdio_) {
      bool external = std::find(job.external_ttys.begin(), job.external_ttys.end(), slot.resource) !=
                      job.external_ttys.end();
      if (slot.kind == "tty" && !external) slot.resource.clear();
    }
    pipes_.Sort(job.processes[0].pid, &stdio_);
    job.stdio = std::move(stdio_);
    RK_RETURN_IF_ERROR(FindHeld(job));
    job.device_users.assign(device_users_.begin(), device_users_.end());
    SumUpTcp(job);
    RK_RETURN_IF_ERROR(CheckPipes(job));
    return CheckUpperProtocols();
  }

 private:
  absl::Status FindHeld(JobInspection& job) {
    for (auto& [pid, sockets] : control_) {
      // What it has forked since has its channel, too.
      if (sockets.size() != 2 || sockets == job.control_sockets || !IsHeld(pid)) continue;
      if (job.hook_process != 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "processes ", job.hook_process, " and ", pid,
            " both wait in ready(), and an image lets one go on only, in each copy, too: call ready() in one "
            "process of the job, before it starts others that would (docs/hook.md)"));
      }
      job.control_sockets = std::move(sockets);
      job.hook_process = pid;
    }
    return absl::OkStatus();
  }

  absl::Status Classify(const OpenDescriptor& d) {
    auto refuse = [&](absl::string_view what, absl::string_view cure) {
      return absl::FailedPreconditionError(absl::StrCat("capturing process ", d.pid, ": its descriptor ",
                                                        d.fd, " is ", what, ", which CRIU can't save; ",
                                                        cure));
    };
    if (d.target == "anon_inode:[io_uring]") {
      return refuse("an io_uring",
                    "start the job without io_uring (Node.js: UV_USE_IO_URING=0; MariaDB: "
                    "innodb_use_native_aio=0)");
    }
    if (d.target == "anon_inode:[userfaultfd]") {
      return refuse(
          "a userfaultfd",
          "if the job was restored lazily wait until all its memory is there; otherwise it can't be saved");
    }
    if (IsMessageQueue(d)) {
      return refuse(absl::StrCat("the POSIX message queue ", absl::StripSuffix(d.target, kDeletedSuffix)),
                    "let the job close it first, or communicate by something else (a pipe, a Unix socket)");
    }
    // Who has it serves files. Another of the job that has to do with them would be looked at first, and CRIU
    // wait for the frozen one's answer for ever.
    if (d.target == "/dev/fuse") {
      return refuse("a FUSE file system's",
                    "mount it outside the job, so that its server (sshfs, gcsfuse, rclone) is not one of the "
                    "processes to freeze");
    }
    // Ahead of all that would be undone again: moving a GPU's memory takes seconds.
    if (absl::StartsWith(d.target, "/dev/infiniband/")) {
      return refuse(absl::StrCat("an InfiniBand device (", d.target, ")"),
                    "start the job without it (NCCL: NCCL_IB_DISABLE=1, UCX: UCX_TLS=^ib)");
    }
    if (d.target == "/dev/gdrdrv") {
      return refuse("GDRCopy's device (/dev/gdrdrv)",
                    "start the job without it (NVSHMEM_DISABLE_GDRCOPY=1, UCX_TLS=^gdr_copy, "
                    "NCCL_GDRCOPY_ENABLE=0)");
    }
    if (absl::StartsWith(d.target, "/dev/nvidia")) device_users_.insert(d.pid);
    if (absl::StartsWith(d.target, "/dev/") && !absl::StartsWith(d.target, "/dev/shm/")) AddTerminal(d);
    RK_RETURN_IF_ERROR(CheckRemovedName(d));
    if (d.target == "/dev/ptmx" || d.target == "/dev/pts/ptmx") AddMaster(d);
    if (absl::StartsWith(d.target, "pipe:[")) pipes_.Add(d.pid, d.fd, d.target);
    if (absl::StartsWith(d.target, "socket:[")) {
      NoteSocket(d);
      if (d.fd == v1::kControlDescriptor || d.fd == v1::kControlPeer) control_[d.pid].push_back(d.target);
    }
    return absl::OkStatus();
  }

  // mq_open() gives one of a mount that has no place, so that it seems to be in the root folder. So does what
  // is on a file system that was unmounted lazily, whose server may not answer any more: only what looks like
  // a queue (FILENT_SIZE) without anybody being asked is asked for its file system.
  static bool IsMessageQueue(const OpenDescriptor& d) {
    constexpr uint64_t kQueues = 0x19800202;  // MQUEUE_MAGIC
    constexpr uint64_t kBytesOfQueue = 80;
    if (d.target.rfind('/') != 0 || absl::StartsWith(d.target, "/memfd:")) return false;
    const std::string link = ProcPath(d.pid, absl::StrCat("fd/", d.fd));
    struct statx seen;
    if (::statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE | STATX_BLOCKS, &seen) !=
            0 ||
        !S_ISREG(seen.stx_mode) || seen.stx_size != kBytesOfQueue || seen.stx_blocks != 0) {
      return false;
    }
    struct statfs info;
    return ::statfs(link.c_str(), &info) == 0 && static_cast<uint64_t>(info.f_type) == kQueues;
  }

  // What was removed CRIU makes again for a moment, with a suffix to its name.
  absl::Status CheckRemovedName(const OpenDescriptor& d) const {
    absl::string_view path = d.target;
    if (!absl::ConsumeSuffix(&path, kDeletedSuffix) || absl::StartsWith(path, "/memfd:"))
      return absl::OkStatus();
    const size_t bytes = path.size() - (path.rfind('/') + 1);
    struct stat info;
    if (bytes <= kLongestRemovedName ||
        ::stat(ProcPath(d.pid, absl::StrCat("fd/", d.fd)).c_str(), &info) != 0 || info.st_nlink != 0) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "capturing process ", d.pid, ": its descriptor ", d.fd, " is ", path,
        ", which was removed and has a name of ", bytes,
        " bytes: it could not be made again, for which CRIU adds ", NAME_MAX - kLongestRemovedName,
        " to it; have the job give its temporary files names of at most ", kLongestRemovedName,
        " bytes, or close it"));
  }

  void AddTerminal(const OpenDescriptor& d) {
    struct stat info;
    if (::stat(ProcPath(d.pid, absl::StrCat("fd/", d.fd)).c_str(), &info) != 0 || !terminals_.Has(info))
      return;
    terminals_used_[TtyResource(info)] =
        Terminals::IsPseudo(info) ? static_cast<int>(minor(info.st_rdev)) : kNoOtherSide;
  }

  static std::string TtyResource(const struct stat& info) {
    return absl::StrFormat("tty[%x:%x]", info.st_rdev, info.st_dev);
  }

  void AddMaster(const OpenDescriptor& d) {
    auto fdinfo = ReadFile(ProcPath(d.pid, absl::StrCat("fdinfo/", d.fd)));
    int index = 0;
    if (fdinfo.ok() && absl::SimpleAtoi(StatusField(*fdinfo, "tty-index"), &index)) masters_.insert(index);
  }

  void NoteSocket(const OpenDescriptor& d) {
    if (!tcp_read_) {
      tcp_ = TcpSockets(d.pid);
      tcp_read_ = true;
    }
    if (const auto inode = SocketInode(d.target)) sockets_.emplace(*inode, DescriptorOfProcess(d.pid, d.fd));
  }

  absl::Status CheckPipes(const JobInspection& job) const {
    if (pipes_.read() <= kMostPipes) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", job.processes[0].pid, ": the job reads from ", pipes_.read(),
                     " pipes, and CRIU can't save more than ", kMostPipes,
                     "; have it close some, or use Unix sockets in their place (socketpair()), or give the "
                     "PID of a process below which there are fewer"));
  }

  void SumUpTcp(JobInspection& job) const {
    absl::flat_hash_set<std::pair<std::string, std::string>>
        ends;  // of connections that may be the job's own
    for (const TcpSocket& socket : tcp_) {
      const bool ours = sockets_.contains(socket.inode);
      if (ours && socket.listens) job.listens_on_tcp = true;
      if (ours && !socket.listens) ++job.tcp_connections;
      if (!socket.listens && (ours || socket.inode == 0)) ends.emplace(socket.local, socket.remote);
    }
    for (const TcpSocket& socket : tcp_) {
      if (socket.listens || !sockets_.contains(socket.inode)) continue;
      job.connected_to_itself |= ends.contains(std::make_pair(socket.remote, socket.local));
    }
  }

  absl::Status CheckUpperProtocols() const {
    std::vector<DescriptorOfProcess> connections;
    for (const TcpSocket& socket : tcp_) {
      const auto own = sockets_.find(socket.inode);
      if (!socket.listens && own != sockets_.end()) connections.push_back(own->second);
    }
    return CheckNoUpperProtocol(connections);
  }

  void AddStdio(const OpenDescriptor& d) {
    StdioDescriptor slot;
    slot.fd = d.fd;
    slot.path = d.target;
    std::string link = ProcPath(d.pid, absl::StrCat("fd/", d.fd));
    struct stat info;
    if (::stat(link.c_str(), &info) != 0) return;
    struct stat link_info;
    slot.writable = ::lstat(link.c_str(), &link_info) == 0 && (link_info.st_mode & S_IWUSR) != 0;
    if (terminals_.Has(info)) {
      slot.kind = "tty";
      slot.resource = TtyResource(info);
    } else if (S_ISFIFO(info.st_mode) && absl::StartsWith(d.target, "pipe:")) {
      slot.kind = "pipe";
      slot.resource = absl::StrCat("pipe:[", info.st_ino, "]");
    } else if (d.target == "/dev/null") {
      slot.kind = "null";
    } else if (S_ISSOCK(info.st_mode)) {
      slot.kind = "socket";
    } else if (S_ISREG(info.st_mode)) {
      slot.kind = "file";
    } else {
      slot.kind = "other";
    }
    if (slot.resource.empty() && absl::StartsWith(d.target, "/")) LookWhetherOutside(d, info.st_ino, &slot);
    stdio_.push_back(std::move(slot));
  }

  static void LookWhetherOutside(const OpenDescriptor& d, ino_t inode, StdioDescriptor* slot) {
    const auto fdinfo = ReadFile(ProcPath(d.pid, absl::StrCat("fdinfo/", d.fd)));
    const auto mounts = ReadFile(ProcPath(d.pid, "mountinfo"));
    uint32_t mount = 0;
    if (!fdinfo.ok() || !mounts.ok() || !absl::SimpleAtoi(StatusField(*fdinfo, "mnt_id"), &mount)) return;
    const std::string line = absl::StrCat(mount, " ");
    if (absl::StartsWith(*mounts, line) || absl::StrContains(*mounts, "\n" + line)) return;
    slot->outside = true;
    slot->resource = absl::StrCat("file[", absl::Hex(mount), ":", absl::Hex(inode), "]");
  }

  std::vector<StdioDescriptor> stdio_;
  std::map<pid_t, std::vector<std::string>> control_;
  // By the index of its other side, which a process could have.
  static constexpr int kNoOtherSide = -1;
  const Terminals terminals_;
  std::map<std::string, int> terminals_used_;
  std::set<int> masters_;
  std::set<pid_t> device_users_;
  JobPipes pipes_;
  std::vector<TcpSocket> tcp_;                                  // of its network namespace
  absl::flat_hash_map<uint64_t, DescriptorOfProcess> sockets_;  // its own, of any kind, by inode
  bool tcp_read_ = false;
};

// Of the other processes of the machine nothing is read but their stat, if that: most else waits for who
// holds their memory's lock, which one that hangs in a page fault or a driver may do for ever. An image has
// zombies too.
std::vector<ProcessInfo> ReadTree(const ProcessInfo& root) {
  std::vector<ProcessInfo> tree = {root};
  std::set<pid_t> pids = {root.pid};
  for (const pid_t pid : ProcessTree(root.pid, Zombies::kToo)) {
    if (pid == root.pid) continue;
    auto info = ReadProcess(pid);
    // Where it has ended meanwhile its number may be another's, which is no part of the tree.
    if (!info.ok() || !pids.contains(info->parent)) continue;
    pids.insert(pid);
    tree.push_back(*std::move(info));
  }
  return tree;
}

}  // namespace

bool IsCriuDump(pid_t pid) {
  const std::string line = CommandLineOf(pid);
  return absl::StrContains(line, "criu") && absl::StrContains(line, " dump ");
}

absl::StatusOr<ProcessInfo> ReadProcess(pid_t pid) {
  auto missing = [&] {
    return absl::NotFoundError(
        absl::StrCat("there is no process ", pid, "; `rekindle ps` and `ps` list those there are"));
  };
  if (pid <= 0) return missing();
  auto stat = ReadProcessStat(pid);
  auto status = ReadFile(ProcPath(pid, "status"));
  if (absl::IsInternal(stat.status())) return stat.status();
  if (!stat.ok() || !status.ok()) return missing();
  // A PID that names a thread has a /proc entry too, but is no process.
  if (LeadingNumber(StatusField(*status, "Tgid")) != static_cast<uint64_t>(pid)) return missing();

  ProcessInfo info;
  info.pid = pid;
  info.state = stat->state;
  info.parent = stat->parent;
  info.session = stat->session;
  info.threads = stat->threads;
  info.start_ticks = stat->start_ticks;
  info.kernel_thread = stat->kernel_thread();
  info.uid = static_cast<uid_t>(LeadingNumber(StatusField(*status, "Uid")));
  info.private_bytes = 1024 * (LeadingNumber(StatusField(*status, "RssAnon")) +
                               LeadingNumber(StatusField(*status, "RssShmem")) +
                               LeadingNumber(StatusField(*status, "VmSwap")));
  info.command = CommandLineOf(pid);
  return info;
}

std::string JobId(const std::string& boot_id, const ProcessInfo& root) {
  return absl::StrCat(boot_id, "/", root.pid, "/", root.start_ticks);
}

std::vector<pid_t> JobInspection::pids() const {
  std::vector<pid_t> result;
  for (const ProcessInfo& process : processes) result.push_back(process.pid);
  return result;
}

uint64_t JobInspection::private_bytes() const {
  uint64_t sum = 0;
  for (const ProcessInfo& process : processes) sum += process.private_bytes;
  return sum;
}

uint32_t JobInspection::threads() const {
  uint32_t sum = 0;
  for (const ProcessInfo& process : processes) sum += process.threads;
  return sum;
}

absl::StatusOr<JobInspection> InspectJob(pid_t pid, uid_t caller, pid_t caller_pid,
                                         const std::vector<gid_t>& caller_groups) {
  RK_ASSIGN_OR_RETURN(ProcessInfo root, ReadProcess(pid));
  RK_RETURN_IF_ERROR(CheckMayBeCaptured(root, caller));
  JobInspection job;
  job.processes = ReadTree(root);
  RK_RETURN_IF_ERROR(CheckMayHaveImageOf(job.pids(), caller, caller_groups));
  RK_RETURN_IF_ERROR(CheckNotOurselves(job.processes, caller_pid));
  RK_RETURN_IF_ERROR(CheckMachineCan(job.processes));
  RK_RETURN_IF_ERROR(CheckNotTraced(job.processes));
  RK_RETURN_IF_ERROR(CheckNotFrozen(job.processes));
  RK_RETURN_IF_ERROR(CheckPolicies(job.processes));

  std::set<pid_t> members;
  for (const ProcessInfo& process : job.processes) members.insert(process.pid);
  // In its own PID namespace.
  const auto has_number = [&job](pid_t number) {
    return std::any_of(job.processes.begin(), job.processes.end(), [&](const ProcessInfo& process) {
      const std::vector<pid_t> numbers = NamespaceNumbers(absl::StrCat(process.pid));
      return !numbers.empty() && numbers.back() == number;
    });
  };
  job.session_outside = !members.contains(root.session);
  job.working_directory = ReadLink(ProcPath(pid, "cwd")).value_or("");
  DescriptorScan scan;
  for (const ProcessInfo& process : job.processes) {
    std::string directory = ReadLink(ProcPath(process.pid, "cwd")).value_or("");
    if (absl::EndsWith(directory, kDeletedSuffix)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", process.pid, ": its working directory ",
          absl::StripSuffix(directory, kDeletedSuffix),
          " has been removed, so it could not come back there; start the job in a folder that stays"));
    }
    // Of another process it is there as long as that is; but CRIU garbles the name of its very folder.
    const pid_t owner = ProcessIn(directory);
    const bool is_garbled = absl::EndsWith(directory, absl::StrCat("/", owner));
    if (owner != 0 &&
        (is_garbled || has_number(owner) || ::access(ProcPath(process.pid, "cwd/.").c_str(), F_OK) != 0)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", process.pid, ": its working directory ", directory,
          " is a process's, which is not there yet when the job comes back, or not any more; let it work in "
          "another folder"));
    }
    RK_RETURN_IF_ERROR(CheckProgram(process.pid));
    RK_RETURN_IF_ERROR(scan.Add(process, process.pid == pid));
  }
  RK_RETURN_IF_ERROR(scan.Finish(job));
  RK_RETURN_IF_ERROR(CheckNoKernelWorkers(job.pids()));  // a descriptor says more
  job.files_outside = FilesOfOutsideMounts(job.pids());
  for (StdioDescriptor& slot : job.stdio) {
    if (!slot.outside || !job.files_outside.contains(slot.resource)) continue;
    slot.outside = false;  // for others: it comes back by its path
    slot.resource.clear();
  }
  return job;
}

std::string OnNvidiaDevices(const std::vector<pid_t>& pids) {
  constexpr absl::string_view kDevices = "/dev/nvidia";
  std::vector<std::string> found;
  for (pid_t pid : pids) {
    std::vector<std::string> of_process;
    auto descriptors = ListDirectory(ProcPath(pid, "fd"));
    if (descriptors.ok()) {
      for (const std::string& number : *descriptors) {
        const std::string target = ReadLink(ProcPath(pid, absl::StrCat("fd/", number))).value_or("");
        if (!absl::StartsWith(target, kDevices)) continue;
        of_process.push_back(absl::StrCat("descriptor ", number, " ", target));
      }
    }
    std::map<std::string, int> mapped;
    auto areas = ReadFile(ProcPath(pid, "maps"));
    if (areas.ok()) {
      for (absl::string_view line : absl::StrSplit(*areas, '\n')) {
        const size_t name = line.find(kDevices);
        if (name != absl::string_view::npos) ++mapped[std::string(line.substr(name))];
      }
    }
    for (const auto& [device, times] : mapped) {
      of_process.push_back(absl::StrCat(times, times == 1 ? " mapping of " : " mappings of ", device));
    }
    if (of_process.empty()) continue;
    found.push_back(absl::StrCat("process ", pid, ": ", absl::StrJoin(of_process, ", ")));
  }
  return absl::StrJoin(found, "; ");
}

namespace {

bool IsServed(pid_t pid) {
  auto areas = ReadFile(ProcPath(pid, "smaps"));
  if (!areas.ok()) return false;  // it has ended
  for (absl::string_view line : absl::StrSplit(*areas, '\n')) {
    if (absl::StartsWith(line, "VmFlags:") && absl::StrContains(line, " um ")) return true;
  }
  return false;
}

}  // namespace

absl::Status WaitUntilMemoryIsThere(const JobInspection& job, absl::Duration patience) {
  constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
  const Deadline deadline(patience);
  for (const ProcessInfo& process : job.processes) {
    // Nothing tells when the last holder of a userfaultfd has let go of it.
    while (IsServed(process.pid)) {
      if (deadline.passed()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "capturing process ", process.pid,
            ": it is a copy whose memory is still being brought in; try again when it is there"));
      }
      absl::SleepFor(kLookAgain);
    }
  }
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
