#include "daemon/reopened_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/file_patterns.h"
#include "base/log.h"
#include "base/opened_files.h"
#include "base/parallel.h"
#include "base/path_below.h"
#include "base/process_stat.h"
#include "base/timed_await.h"
#include "base/timeline.h"
#include "base/unique_fd.h"
#include "restore/discarded_tail.h"

namespace rekindle::daemon {
namespace {

// In all, and of one folder: one with much in it (data) does not keep it from others.
constexpr size_t kMostNames = 20'000, kMostNamesOfFolder = 5'000;
constexpr int kDeepestLooked = 4;
// Of those that were written last.
constexpr size_t kMostOpened = 200, kMostCandidates = 50;
constexpr absl::Duration kLookingMayTake = absl::Seconds(5);
// The kernel tells the times of files by its ticks, and a death is seen a little later.
constexpr int64_t kSlackNanos = 1'000'000'000;
// To come to where it was the job needs about as long as before.
constexpr int64_t kTimesAsLong = 3, kAtLeastNanos = 600'000'000'000;
constexpr absl::string_view kOurFiles = ".rekindle-", kNfsFiles = ".nfs";
// TensorBoard's, which are no text.
constexpr absl::string_view kEventFiles = "events.out.tfevents.";

struct CloseListing {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

bool IsOnSomeDisk(absl::string_view path) {
  return absl::StartsWith(path, "/") && !IsBelow(path, "/proc") && !IsBelow(path, "/sys") &&
         !IsBelow(path, "/dev");
}

std::string FolderOfPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

std::string PathInside(const std::string& folder, const char* name) {
  return absl::StrCat(folder == "/" ? "" : folder, "/", name);
}

struct Candidate {
  std::string path;
  InodeIdentity identity;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  uint64_t ending = 0;  // FileEnding of `size` bytes; 0: not known
};

UniqueFd OpenToRead(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool IsEventFile(absl::string_view path) {
  return absl::StartsWith(path.substr(path.rfind('/') + 1), kEventFiles);
}

// "events.out.tfevents.SECONDS.HOST.PID.NUMBER", of which a host's name may have dots in it.
bool IsOfAnother(absl::string_view path, const std::set<int64_t>& pids) {
  if (!IsEventFile(path)) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(path.substr(path.rfind('/') + 1), '.');
  return std::none_of(parts.begin(), parts.end(), [&pids](absl::string_view part) {
    int64_t pid = 0;
    return absl::SimpleAtoi(part, &pid) && pids.contains(pid);
  });
}

// What a cut would not damage.
bool MayBeCut(int fd, absl::string_view path, uint64_t begin, uint64_t end) {
  return IsEventFile(path) || restore::LooksLikeText(fd, begin, end);
}

}  // namespace

struct ReopenedFiles::State {
  Options options;
  int64_t look_until_ns = 0;  // CLOCK_MONOTONIC

  absl::Mutex mutex;
  bool looked ABSL_GUARDED_BY(mutex) = false, looking ABSL_GUARDED_BY(mutex) = false;
  std::vector<Candidate> candidates ABSL_GUARDED_BY(mutex);
  Appended appended ABSL_GUARDED_BY(mutex);  // that nobody was told of yet
};

namespace {

// One look for files.
class CandidateSearch {
 public:
  explicit CandidateSearch(const ReopenedFiles::Options& options) : options_(options) {}

  std::vector<Candidate> Run() {
    for (const std::string& folder : options_.folders) places_.push_back({folder, 0, std::nullopt});
    while (!places_.empty() && names_ < kMostNames && !deadline_.passed()) {
      const Place place = std::move(places_.front());
      places_.pop_front();
      Look(place);
    }
    if (found_.empty()) return {};
    const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    std::set<std::string> tracked;
    VisitMatchingFiles(root.get(), options_.tracked, kMostNames, [&](const MatchingFile& file) {
      tracked.insert(file.path);
      return !deadline_.passed();
    });
    std::erase_if(found_, [&](const Candidate& file) { return tracked.contains(file.path); });
    std::sort(found_.begin(), found_.end(),
              [](const Candidate& a, const Candidate& b) { return a.modified_ns > b.modified_ns; });
    if (found_.size() > kMostOpened) found_.resize(kMostOpened);
    std::erase_if(found_, [&](Candidate& file) { return deadline_.passed() || !TakeEnding(&file); });
    if (found_.size() > kMostCandidates) found_.resize(kMostCandidates);
    return std::move(found_);
  }

 private:
  struct Place {
    std::string path;
    int depth;
    std::optional<dev_t> device;  // that of the folder above
  };

  void Look(const Place& place) {
    if (!IsOnSomeDisk(place.path) || !seen_.insert(place.path).second || IsIgnored(place.path)) return;
    // The first one may have been named by a link.
    UniqueFd folder(::open(place.path.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC |
                                                   (place.device ? O_NOFOLLOW : 0)));
    struct stat info;
    if (!folder.valid() || ::fstat(folder.get(), &info) != 0 ||
        (place.device && info.st_dev != *place.device))
      return;
    const std::unique_ptr<DIR, CloseListing> listing(::fdopendir(folder.get()));
    if (listing == nullptr) return;
    const int at = folder.Release();  // `listing` closes it
    size_t of_folder = 0;
    while (const dirent* entry = ::readdir(listing.get())) {
      if (++names_ >= kMostNames || ++of_folder >= kMostNamesOfFolder || deadline_.passed()) return;
      // What is hidden is of programs, not of the job's user.
      if (entry->d_name[0] == '.' || absl::StrContains(entry->d_name, kOurFiles)) continue;
      const std::string path = PathInside(place.path, entry->d_name);
      if (entry->d_type == DT_DIR) {
        if (place.depth < kDeepestLooked) places_.push_back({path, place.depth + 1, info.st_dev});
        continue;
      }
      if (entry->d_type != DT_REG && entry->d_type != DT_UNKNOWN) continue;
      struct stat file;
      if (::fstatat(at, entry->d_name, &file, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (S_ISDIR(file.st_mode) && place.depth < kDeepestLooked)
        places_.push_back({path, place.depth + 1, info.st_dev});
      if (S_ISREG(file.st_mode)) Take(at, entry->d_name, path, file);
    }
  }

  void Take(int folder, const char* name, const std::string& path, const struct stat& info) {
    const int64_t modified_ns = Nanos(info.st_mtim);
    if (info.st_uid != options_.user.uid || info.st_size == 0 || modified_ns <= options_.image_unix_ns ||
        modified_ns > options_.ended_unix_ns + kSlackNanos || !DatabaseBeside(path).empty() ||
        absl::StartsWith(name, kNfsFiles) || options_.in_image.contains(path) ||
        IsOfAnother(path, options_.pids) || IsIgnored(path) || !files_.insert(path).second)
      return;
    Candidate file;
    file.path = path;
    file.identity.device = info.st_dev;
    file.identity.inode = info.st_ino;
    file.identity.born_ns = BornUnixNanos(folder, name, AT_SYMLINK_NOFOLLOW);
    if (options_.inodes_in_image.contains({file.identity.inode, file.identity.born_ns})) return;
    file.size = static_cast<uint64_t>(info.st_size);
    file.modified_ns = modified_ns;
    found_.push_back(std::move(file));
  }

  static bool TakeEnding(Candidate* file) {
    const UniqueFd fd = OpenToRead(file->path);
    struct stat info;
    // The job may be back by then.
    const auto is_as_it_was = [&] {
      return ::fstat(fd.get(), &info) == 0 && info.st_ino == file->identity.inode &&
             static_cast<uint64_t>(info.st_size) == file->size && Nanos(info.st_mtim) == file->modified_ns;
    };
    if (!fd.valid() || !is_as_it_was() || !MayBeCut(fd.get(), file->path, 0, file->size)) return false;
    file->ending = FileEnding(fd.get(), file->size).value_or(0);
    return file->ending != 0 && is_as_it_was();
  }

  bool IsIgnored(absl::string_view path) const {
    return std::any_of(options_.ignored.begin(), options_.ignored.end(),
                       [&](const std::string& folder) { return IsBelow(path, folder); });
  }

  const ReopenedFiles::Options& options_;
  const Deadline deadline_{kLookingMayTake};
  std::deque<Place> places_;
  std::set<std::string> seen_, files_;
  size_t names_ = 0;
  std::vector<Candidate> found_;
};

enum class Became { kNothing, kAppended, kWrittenAnew };

// Up to so many bytes of the file; fewer where it can't be read.
std::string ReadPart(int fd, uint64_t begin, uint64_t end) {
  std::string text(end - begin, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), static_cast<off_t>(begin));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Is one of the last lines before `size`, where it is once, there again behind it, of `now` bytes?
bool RepeatsALine(int fd, uint64_t size, uint64_t now) {
  constexpr uint64_t kLookedAt = 64 << 10, kShortest = 3;
  const std::string before = ReadPart(fd, size - std::min(size, kLookedAt), size);
  const std::string since = ReadPart(fd, size, std::min(now, size + 4 * kLookedAt));
  std::map<absl::string_view, int> lines;
  for (const absl::string_view line : absl::StrSplit(before, '\n')) {
    if (line.size() >= kShortest) ++lines[line];
  }
  // What a part begins or ends with need not be a whole line.
  const std::vector<absl::string_view> again = absl::StrSplit(since, '\n');
  return std::any_of(again.begin(), again.end(), [&lines](absl::string_view line) {
    const auto it = lines.find(line);
    return it != lines.end() && it->second == 1;
  });
}

// What has become of it: the first change since the job went back tells, once it tells anything.
Became WhatBecameOf(const Candidate& file) {
  const UniqueFd fd = OpenToRead(file.path);
  struct stat info;
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || info.st_ino != file.identity.inode ||
      info.st_dev != file.identity.device)
    return Became::kWrittenAnew;
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size == file.size && Nanos(info.st_mtim) == file.modified_ns) return Became::kNothing;
  if (size <= file.size || FileEnding(fd.get(), file.size).value_or(0) != file.ending ||
      !MayBeCut(fd.get(), file.path, file.size, size) ||
      (!IsEventFile(file.path) && !RepeatsALine(fd.get(), file.size, size)))
    return Became::kWrittenAnew;
  return Became::kAppended;
}

// `work` with the rights of `user`, on a thread that nobody waits for. Where there are no such rights to be
// had, or no thread, `instead`.
void BeginWith(const Owner& user, std::function<void()> work, const std::function<void()>& instead) {
  const absl::Status begun = CatchNoMoreThreads([&] {
    std::thread([user, work = std::move(work), instead] {
      const absl::Status done = WithFileRightsOf(user, [&work] {
        work();
        return absl::OkStatus();
      });
      if (done.ok()) return;
      Log(LogLevel::kWarning, absl::StrCat("what a job of uid ", user.uid,
                                           " appends to files that it opens again "
                                           "can't be looked for, and may be there twice: ",
                                           done.message()));
      instead();
    }).detach();
    return absl::OkStatus();
  });
  if (!begun.ok()) instead();
}

}  // namespace

std::shared_ptr<ReopenedFiles::State> ReopenedFiles::Current() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

void ReopenedFiles::LookFor(Options options) {
  auto state = std::make_shared<State>();
  state->options = std::move(options);
  // What is written from now on others write, or the job, which may be back before its files are looked at.
  state->options.ended_unix_ns = std::min(state->options.ended_unix_ns, UnixNanos() - kSlackNanos);
  {
    absl::MutexLock lock(&mutex_);
    state_ = state->options.folders.empty() ? nullptr : state;
  }
  if (state->options.folders.empty()) return;
  const auto look = [state] {
    std::vector<Candidate> found = CandidateSearch(state->options).Run();
    int64_t last_ns = state->options.image_unix_ns;
    for (const Candidate& file : found) last_ns = std::max(last_ns, file.modified_ns);
    const int64_t lost_ns = last_ns - state->options.image_unix_ns;
    absl::MutexLock lock(&state->mutex);
    state->look_until_ns = MonotonicNanos() + kTimesAsLong * lost_ns + kAtLeastNanos;
    state->candidates = std::move(found);
    state->looked = true;
  };
  BeginWith(state->options.user, look, [state] {
    absl::MutexLock lock(&state->mutex);
    state->looked = true;
  });
}

std::vector<std::string> ReopenedFiles::Candidates(absl::Duration patience) {
  const std::shared_ptr<State> state = Current();
  std::vector<std::string> paths;
  if (state == nullptr) return paths;
  absl::MutexLock lock(&state->mutex);
  AwaitUntil(state->mutex, absl::Condition(&state->looked), Deadline(patience));
  for (const Candidate& file : state->candidates) paths.push_back(file.path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

ReopenedFiles::Appended ReopenedFiles::AppendedAgain() {
  const std::shared_ptr<State> state = Current();
  if (state == nullptr) return {};
  Appended appended;
  std::vector<Candidate> candidates;
  {
    absl::MutexLock lock(&state->mutex);
    appended.swap(state->appended);
    if (!state->looked || state->looking || state->candidates.empty() ||
        MonotonicNanos() > state->look_until_ns)
      return appended;
    state->looking = true;
    candidates = state->candidates;
  }
  const auto look = [state, candidates = std::move(candidates)]() mutable {
    Appended found;
    std::erase_if(candidates, [&](const Candidate& file) {
      const Became since = WhatBecameOf(file);
      if (since == Became::kAppended) found[file.path] = file.identity.born_ns > state->options.image_unix_ns;
      return since != Became::kNothing;
    });
    absl::MutexLock lock(&state->mutex);
    state->candidates = std::move(candidates);
    state->appended.merge(found);
    state->looking = false;
  };
  BeginWith(state->options.user, look, [state] {
    absl::MutexLock lock(&state->mutex);
    state->looking = false;
  });
  return appended;
}

ReopenedFiles::Options PlacesOf(const v1::JobManifest& manifest, const v1::Rollback& rollback) {
  ReopenedFiles::Options options;
  options.ignored.assign(rollback.ignore_paths().begin(), rollback.ignore_paths().end());
  options.tracked.assign(manifest.track_paths().begin(), manifest.track_paths().end());
  if (rollback.mode() == v1::Rollback::NONE || manifest.tracks_own_mounts()) return options;
  std::vector<std::string>& folders = options.folders;
  const auto add = [&](const std::string& folder) {
    if (IsOnSomeDisk(folder) && std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  };
  add(manifest.working_directory());
  for (const v1::JobProcess& process : manifest.processes()) options.pids.insert(process.pid());
  for (const v1::WrittenFile& file : manifest.written_files()) {
    options.in_image.insert(file.path());
    options.inodes_in_image.emplace(file.inode(), file.born_ns());
    if (file.shared_memory()) continue;
    // Their names mean something else here.
    if (file.in_own_mounts()) return ReopenedFiles::Options();
    add(FolderOfPath(file.path()));
  }
  return options;
}

namespace {

// A child that we have forked, and that has not begun its program yet: it has what we have open.
bool IsAboutToBecomeAnother(pid_t pid) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  return stat.ok() && stat->parent == ::getpid() &&
         IsSameFile(absl::StrCat("/proc/", pid, "/exe"), "/proc/self/exe");
}

}  // namespace

std::map<std::string, pid_t> WrittenByOthers(const std::set<std::string>& paths,
                                             const std::vector<pid_t>& job, NamesOfFiles names) {
  std::map<std::string, pid_t> written;
  for (const pid_t pid : ListProcesses()) {
    if (std::find(job.begin(), job.end(), pid) != job.end()) continue;
    for (const ForeignDescriptor& descriptor :
         ForeignDescriptorsOf(pid).value_or(std::vector<ForeignDescriptor>())) {
      const std::string link = descriptor.link();
      const std::string path = ReadLink(link).value_or("");
      if (!paths.contains(path) || written.contains(path)) continue;
      const absl::StatusOr<int> access = AccessToldBy(descriptor.fdinfo());
      if (access.ok() && (*access & W_OK) != 0 &&
          (names == NamesOfFiles::kTrusted || IsSameFile(link, path)) && !IsAboutToBecomeAnother(pid))
        written[path] = pid;
    }
  }
  return written;
}

}  // namespace rekindle::daemon
