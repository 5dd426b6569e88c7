#include "daemon/node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cgroup_memory.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/permission_bits.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/capture.h"
#include "ckpt/capture_session.h"
#include "daemon/function_runtime.h"
#include "daemon/functions.h"
#include "daemon/supervisor.h"
#include "restore/hot_list.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

// Of each kind: as many as start at the same moment without waiting for one.
constexpr size_t kPooledSandboxes = 4;
// To let go of a job when nobody wants its image any more.
constexpr absl::Duration kCriuUsuallyTakes = absl::Seconds(2);

std::string FromEnvironment(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

// Seconds in the variable; nothing or nonsense: as it is.
void SetFromEnvironment(const char* name, absl::Duration* duration) {
  double seconds = 0;
  if (absl::SimpleAtod(FromEnvironment(name), &seconds) && seconds >= 0) *duration = absl::Seconds(seconds);
}

gpu::MoverOptions GpuOptions(const std::string& runtime_directory) {
  gpu::MoverOptions options;
  options.ledger_directory = absl::StrCat(runtime_directory, "/gpu");
  options.host_limits = [](pid_t pid) {
    std::vector<gpu::HostLimit> limits;
    for (const MemoryLimit& limit : MemoryLimitsOf(pid)) {
      limits.push_back({absl::StrCat("cgroup ", limit.folder), limit.left});
    }
    return limits;
  };
  SetFromEnvironment("REKINDLE_GPU_ROOM_TIMEOUT", &options.room_timeout);
  absl::Duration move_timeout = absl::InfiniteDuration();
  SetFromEnvironment("REKINDLE_GPU_MOVE_TIMEOUT", &move_timeout);
  if (move_timeout != absl::InfiniteDuration()) options.move_timeout = move_timeout;
  const auto context = ParseBytes(FromEnvironment("REKINDLE_GPU_CONTEXT_MEMORY"));
  if (context.ok()) options.context_bytes = *context;
  return options;
}

std::unique_ptr<ckpt::DirtyPages> OpenDirtyPages(bool wanted) {
  if (!wanted) return nullptr;
  absl::StatusOr<std::unique_ptr<ckpt::DirtyPages>> pages = ckpt::DirtyPages::Open();
  if (pages.ok()) return *std::move(pages);
  Log(LogLevel::kWarning, absl::StrCat("--track-dirty-pages has no effect: ", pages.status().message()));
  return nullptr;
}

// CRIU, the pager and jobs have working directories of their own.
NodeOptions WithAbsoluteFolders(NodeOptions options) {
  for (std::string* folder : {&options.store, &options.runtime_directory, &options.log_directory}) {
    if (!folder->empty()) *folder = std::filesystem::absolute(*folder);
  }
  return options;
}

}  // namespace

std::string DefaultRuntimeDirectory() {
  if (std::string set = FromEnvironment("REKINDLE_RUNTIME_DIR"); !set.empty()) return set;
  if (::geteuid() == 0) return "/run/rekindle";
  if (std::string set = FromEnvironment("XDG_RUNTIME_DIR"); !set.empty())
    return absl::StrCat(set, "/rekindle");
  return absl::StrCat("/tmp/rekindle-", ::geteuid());
}

std::string DefaultLogDirectory() {
  if (std::string set = FromEnvironment("REKINDLE_LOG_DIR"); !set.empty()) return set;
  if (::geteuid() == 0) return "/var/log/rekindle";
  if (std::string set = FromEnvironment("XDG_STATE_HOME"); !set.empty())
    return absl::StrCat(set, "/rekindle");
  std::string home = FromEnvironment("HOME");
  return home.empty() ? absl::StrCat("/tmp/rekindle-", ::geteuid(), "/log")
                      : absl::StrCat(home, "/.local/state/rekindle");
}

Node::Node(NodeOptions options)
    : options_(WithAbsoluteFolders(std::move(options))),
      policy_(::geteuid(), options_.admin_group),
      jobs_(absl::StrCat(options_.runtime_directory, "/jobs")),
      gpus_(GpuOptions(options_.runtime_directory)),
      dirty_pages_(OpenDirtyPages(options_.track_dirty_pages)),
      gpu_jobs_(&gpus_, options_.gpu_host_budget,
                absl::StrCat(options_.runtime_directory, "/gpu/leases.json")),
      clones_(options_.runtime_directory, options_.page_cache_bytes, options_.daemon ? kPooledSandboxes : 0,
              options_.daemon ? options_.standby_copies : 0, KeptFolders(options_)),
      no_functions_(
          absl::FailedPreconditionError("functions live in the daemon: start rekindled, and name it "
                                        "with --host if it is not at its usual socket")),
      supervisor_(std::make_unique<Supervisor>(*this)) {}

Node::~Node() {
  gives_up_recovery_.store(true);
  if (recovery_.joinable()) recovery_.join();
}

absl::StatusOr<std::shared_ptr<Functions>> Node::functions() const {
  absl::MutexLock lock(&mutex_);
  if (functions_ == nullptr) return no_functions_;
  return functions_;
}

void Node::SetFunctions(std::shared_ptr<Functions> functions) {
  absl::MutexLock lock(&mutex_);
  counts_code_ = functions->CountsCode();
  functions_ = std::move(functions);
}

void Node::NoFunctions(absl::Status why) {
  std::shared_ptr<Functions> gone;  // ended without the lock
  absl::MutexLock lock(&mutex_);
  no_functions_ = std::move(why);
  gone = std::move(functions_);
}

absl::StatusOr<std::shared_ptr<store::Store>> Node::OpenStore(Access access) {
  std::shared_ptr<store::Store> known;
  {
    absl::MutexLock lock(&mutex_);
    known = store_;
  }
  // Without the lock: with its file system it may hang.
  bool away = known != nullptr && !known->CheckIsThere().ok();
  const bool removed = away && known->WasRemoved();
  absl::MutexLock lock(&mutex_);
  const bool had = store_ != nullptr;
  if (store_ != known) away = false;  // just opened, by another thread
  if (had && !away && (store_writable_ || access == Access::kRead)) return store_;
  store::StoreOptions options;
  options.path = options_.store;
  options.create = access == Access::kCreate && (!had || (away && removed));
  options.read_only = access == Access::kRead;
  options.rebuild_catalog = access == Access::kRepair;
  options.beside = [this](std::optional<uid_t> owner) {
    // Not of the functions themselves, whose threads write images too and can't be the last to let go of
    // them.
    const auto counts = [this] {
      absl::MutexLock counting(&mutex_);
      return counts_code_;
    }();
    return counts ? counts(owner) : 0;
  };
  absl::StatusOr<std::unique_ptr<store::Store>> opened = store::Store::Open(options);
  // Also of one that was removed: it may be put back from a copy. Whoever makes one says so.
  if (away && !options.create &&
      (absl::IsNotFound(opened.status()) || absl::IsFailedPrecondition(opened.status())))
    return store::StoreIsAway(options_.store);
  RK_RETURN_IF_ERROR(opened.status());
  if (away) {
    Log(LogLevel::kWarning, absl::StrCat("the store at ", options_.store,
                                         " is another one now, or is mounted anew: it was opened again"));
  }
  store_ = *std::move(opened);
  store_writable_ = !options.read_only;
  return store_;
}

absl::Status Node::CheckStoreIsThere() {
  const absl::Status opened = OpenStore(Access::kRead).status();
  return absl::IsUnavailable(opened) || absl::IsNotFound(opened) ? opened : absl::OkStatus();
}

absl::StatusOr<criu::Installation> Node::CriuIfAny() const {
  absl::StatusOr<criu::Installation> criu = Criu();
  if (!absl::IsUnimplemented(criu.status())) return criu;
  return absl::UnavailableError(criu.status().message());
}

std::vector<pid_t> Node::RecoverNow(const std::function<bool()>& gives_up) {
  std::vector<pid_t> left;
  absl::StatusOr<std::vector<pid_t>> freed = ckpt::RecoverInterruptedCaptures(
      options_.runtime_directory, [this](const std::vector<pid_t>& tree) { gpus_.WatchOut(tree); }, gives_up,
      &left);
  if (!freed.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("letting jobs of interrupted captures go on: ", freed.status().message()));
  } else if (!freed->empty()) {
    Log(LogLevel::kWarning, absl::StrCat("jobs that an interrupted capture had left stopped run again: PID ",
                                         absl::StrJoin(*freed, ", ")));
  }
  if (options_.daemon) gpus_.WatchAgain();
  // After the stopped ones run: the driver works through a thread of the job.
  freed = gpus_.Recover(left);
  if (!freed.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("putting back GPU memory that an interrupted move had left in host memory: ",
                     freed.status().message()));
  } else if (!freed->empty()) {
    Log(LogLevel::kWarning,
        absl::StrCat("GPU memory that an interrupted move had left in host memory is back: PID ",
                     absl::StrJoin(*freed, ", ")));
  }
  return left;
}

void Node::RecoverJobs() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(recovered_, true)) return;
  // There is nothing, or nothing of ours.
  if (::access(absl::StrCat(options_.runtime_directory, "/.").c_str(), R_OK | W_OK | X_OK) != 0) return;
  if (!options_.daemon) {
    RecoverNow(nullptr);
  } else if (!RecoverNow([soon = Deadline(kCriuUsuallyTakes)] { return soon.passed(); }).empty()) {
    const absl::Status begun = CatchNoMoreThreads([this] {
      recovery_ = std::thread([this] { RecoverNow([this] { return gives_up_recovery_.load(); }); });
      return absl::OkStatus();
    });
    if (!begun.ok()) RecoverNow(nullptr);
  }
  if (options_.daemon) gpu_jobs_.InheritLeases();
  restore::RemoveDeadRestores(options_.runtime_directory);
}

void Node::WarmUp() {
  auto warm = [this]() -> absl::Status {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, OpenStore(Access::kRead));
    const bool runs = clones_.ConnectToRunningPager(*store).ok();
    RK_ASSIGN_OR_RETURN(bool known, store->HasNotes(store::kWorkingSetNote));
    if (!runs && !known && !restore::HasHotList(store->path())) return absl::OkStatus();
    absl::Status pager = clones_.ConnectToPager(*store).status();
    RK_ASSIGN_OR_RETURN(criu::Installation criu, Criu());
    RK_RETURN_IF_ERROR(clones_.MakeSandboxAhead(criu));
    return pager;
  };
  if (absl::Status status = warm(); !status.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("what clones need is not started ahead of time: ", status.message()));
  }
}

absl::Status Node::CheckTakesWork() const {
  if (!ending_.load()) return absl::OkStatus();
  return absl::UnavailableError("the daemon is ending: try again when it is there again");
}

absl::Status Node::CheckRuntimeDirectory() const {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1 - ckpt::kLongestSocket.size();
  if (options_.runtime_directory.size() <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the runtime folder ", options_.runtime_directory, " has a path of ",
                   options_.runtime_directory.size(), " bytes, and with more than ", kMost,
                   " no socket can be made in it: name a shorter one (--runtime-dir of rekindled, "
                   "$REKINDLE_RUNTIME_DIR)"));
}

absl::Status Node::MakeRuntimeDirectory() const {
  RK_RETURN_IF_ERROR(CheckRuntimeDirectory());
  // The socket in it is for everybody; what else is in it is for the service's user alone.
  RK_RETURN_IF_ERROR(MakeDirectories(options_.runtime_directory, 0755));
  // In /tmp others can put a link under its name, to a folder that is ours.
  struct stat info;
  const std::string& path = options_.runtime_directory;
  const bool is_link = ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  const bool is_trusted = is_link && (info.st_uid == 0 || info.st_uid == ::geteuid());
  const UniqueFd folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_trusted ? 0 : O_NOFOLLOW)));
  if (!folder.valid() && is_link && !is_trusted) {
    return absl::PermissionDeniedError(
        absl::StrCat("the runtime directory ", path, " is a symbolic link of uid ", info.st_uid,
                     ": remove it, or name another with REKINDLE_RUNTIME_DIR"));
  }
  if (!folder.valid() || ::fstat(folder.get(), &info) != 0)
    return ErrnoStatus(errno, absl::StrCat("opening the runtime directory ", path));
  if (info.st_uid == ::geteuid()) {
    // Whoever needed a folder in it first has made it for himself alone: the doctor, a capture without a
    // daemon.
    constexpr mode_t kForEverybody = 0055;
    if ((info.st_mode & kForEverybody) != kForEverybody &&
        ::fchmod(folder.get(), (info.st_mode & kPermissionBits) | kForEverybody) != 0) {
      return ErrnoStatus(errno, absl::StrCat("opening the runtime directory ", options_.runtime_directory,
                                             " to those who call the service"));
    }
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat("the runtime directory ", options_.runtime_directory,
                                                  " belongs to uid ", info.st_uid, ", not to uid ",
                                                  ::geteuid(), ": name another with REKINDLE_RUNTIME_DIR"));
}

std::optional<RunAs> Node::UserOf(const Caller& caller) {
  if (caller.kind == Caller::Kind::kSelf || caller.uid == ::geteuid()) return std::nullopt;
  return RunAs{caller.uid, caller.gid, caller.groups};
}

}  // namespace rekindle::daemon
