#include "restore/compatibility.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/capability.h"
#include "base/cgroup_memory.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/path_below.h"
#include "base/process_stat.h"
#include "base/shown_command.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/database_rollback.h"
#include "restore/job_logs.h"

namespace rekindle::restore {
namespace {

constexpr char kFilesUrl[] = "rekindle/files-not-as-left";  // of a status's payload

// Flags of /proc/cpuinfo that mean instructions or register state a program may have found and chosen code
// by; the others (power management, mitigations, virtualisation) do not show in a process.
bool MattersToCode(absl::string_view flag) {
  static constexpr absl::string_view kPrefixes[] = {"sse",  "ssse", "avx",  "amx",  "bmi",    "fma",  "aes",
                                                    "vaes", "sha",  "gfni", "vpcl", "pclmul", "f16c", "adx"};
  // Not xsaves, which is the kernel's alone; nor erms and fsrm, which tell what is fast.
  static constexpr absl::string_view kExact[] = {"xsave",   "xsaveopt",  "xsavec",   "popcnt",     "movbe",
                                                 "abm",     "lzcnt",     "rdrand",   "rdseed",     "pku",
                                                 "ospke",   "rdtscp",    "cx16",     "clflushopt", "clwb",
                                                 "movdiri", "movdir64b", "fsgsbase", "lahf_lm"};
  for (absl::string_view prefix : kPrefixes) {
    if (absl::StartsWith(flag, prefix)) return true;
  }
  return std::find(std::begin(kExact), std::end(kExact), flag) != std::end(kExact);
}

// "6.18.44-x" -> 6018; 0 when it is no version.
int KernelNumber(const std::string& release) {
  int major = 0, minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2) return 0;
  return major * 1000 + minor;
}

criu::Version ParseVersion(const std::string& text) {
  criu::Version version;
  std::sscanf(text.c_str(), "%d.%d.%d", &version.major, &version.minor, &version.patch);
  return version;
}

// Nothing tells when somebody else's process is reaped, so one looks again, less and less often.
constexpr int kFirstPollMs = 2;
constexpr int kLastPollMs = 50;

constexpr size_t kMostUsersTold = 3;

struct Holder {
  pid_t id;       // of the image
  pid_t process;  // that has it, or that belongs to the group or session of that number
  bool ending;    // it is exiting, or waits for its parent to reap it
  bool zombie;    // the latter
};

// Everybody who keeps one of the image's PIDs from being used. A number stays taken as long as a process
// group or session of that number has a member, a zombie counts too.
std::vector<Holder> HoldersOf(const std::set<pid_t>& ids) {
  std::vector<Holder> holders;
  for (pid_t id : ids) {
    if (auto stat = ReadProcessStat(id); stat.ok())
      holders.push_back({id, id, stat->ending(), stat->state == 'Z'});
  }
  for (pid_t pid : ListProcesses()) {
    if (ids.contains(pid)) continue;
    // Of the thousands that a machine may have hardly one is.
    const pid_t session = ::getsid(pid), group = ::getpgid(pid);
    if (session >= 0 && group >= 0 && !ids.contains(session) && !ids.contains(group)) continue;
    auto stat = ReadProcessStat(pid);
    if (!stat.ok()) continue;
    if (ids.contains(stat->session)) {
      holders.push_back({stat->session, pid, stat->ending(), stat->state == 'Z'});
    } else if (ids.contains(stat->group)) {
      holders.push_back({stat->group, pid, stat->ending(), stat->state == 'Z'});
    }
  }
  return holders;
}

std::string Describe(const Holder& holder) {
  std::string command = ShownCommandOf(holder.process);
  if (command.empty()) command = "a process that just ended";
  std::string text = absl::StrCat(holder.id, " (", command);
  if (holder.process != holder.id) {
    absl::StrAppend(&text, ", PID ", holder.process, ", which belongs to its process group or session");
  }
  auto stat = ReadProcessStat(holder.process);
  if (stat.ok() && stat->state == 'Z') {
    absl::StrAppend(&text, ", a zombie: it has ended, but its parent ", stat->parent, " (",
                    ShownCommandOf(stat->parent), ") has not taken its exit status");
  }
  return text + ")";
}

}  // namespace

absl::Status CheckMachine(const v1::JobManifest& manifest, const Machine& machine,
                          const criu::Version& criu) {
  std::vector<std::string> reasons;
  if (!manifest.machine().empty() && manifest.machine() != machine.architecture) {
    reasons.push_back(absl::StrCat("it was taken on a ", manifest.machine(), " machine and this one is ",
                                   machine.architecture));
  }
  std::vector<std::string> needed(manifest.cpu_features().begin(), manifest.cpu_features().end()), missing;
  std::sort(needed.begin(), needed.end());
  std::set_difference(needed.begin(), needed.end(), machine.cpu_features.begin(), machine.cpu_features.end(),
                      std::back_inserter(missing));
  std::erase_if(missing, [](const std::string& flag) { return !MattersToCode(flag); });
  if (!missing.empty()) {
    reasons.push_back(absl::StrCat("this processor lacks ", absl::StrJoin(missing, ", "),
                                   ", which the job may have started to use"));
  }
  if (KernelNumber(manifest.kernel()) > KernelNumber(machine.kernel)) {
    reasons.push_back(absl::StrCat("it was taken on kernel ", manifest.kernel(), " and this one is older (",
                                   machine.kernel, ")"));
  }
  if (!manifest.criu_version().empty()) {
    criu::Version taken_with = ParseVersion(manifest.criu_version());
    if (std::pair(taken_with.major, taken_with.minor) > std::pair(criu.major, criu.minor)) {
      reasons.push_back(absl::StrCat("it was taken with CRIU ", manifest.criu_version(), " and this one is ",
                                     criu.ToString()));
    }
  }
  if (reasons.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kDoesNotFit, ": ", absl::StrJoin(reasons, "; "),
      ". Restore it on a machine like the one it came from, or try `rekindle restore --ignore-mismatch`"));
}

absl::Status CheckIsNoFirstProcess(const store::ImageInfo& image,
                                   const std::vector<criu::PstreeEntry>& tree) {
  if (tree.empty() || tree[0].pid != 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "restoring ", image.digest,
      ": it is an image of the first process of a PID namespace (a container's), which only CRIU itself can "
      "restore, or "
      "the container's engine, which has its files and namespaces: `rekindle export ",
      image.digest,
      " --criu DIR`, then `criu restore --images-dir DIR`; of podman's `podman container restore`"));
}

absl::Status CheckIdsAreFree(const std::vector<criu::PstreeEntry>& tree, int cancel_fd,
                             absl::Duration patience) {
  std::set<pid_t> ids;
  for (const criu::PstreeEntry& process : tree) {
    ids.insert(process.pid);
    ids.insert(process.threads.begin(), process.threads.end());
  }
  const Deadline deadline(patience);
  std::vector<Holder> holders;
  for (int interval_ms = kFirstPollMs;; interval_ms = std::min(interval_ms * 2, kLastPollMs)) {
    holders = HoldersOf(ids);
    if (holders.empty()) return absl::OkStatus();
    // While the root lives on the job still runs, or somebody else has its PID. Otherwise these are the
    // leftovers of a job that was just killed.
    bool hopeless = !tree.empty() && std::any_of(holders.begin(), holders.end(), [&](const Holder& holder) {
      return holder.process == tree[0].pid && !holder.ending;
    });
    if (hopeless || deadline.passed()) break;
    pollfd cancelled{cancel_fd, POLLIN, 0};
    if (::poll(&cancelled, 1, interval_ms) > 0) return absl::CancelledError("the restore was cancelled");
  }
  const size_t count = holders.size();
  std::vector<std::string> taken;
  for (size_t i = 0; i < std::min(count, kMostUsersTold); ++i) taken.push_back(Describe(holders[i]));
  bool all_zombies =
      std::all_of(holders.begin(), holders.end(), [](const Holder& holder) { return holder.zombie; });
  return absl::FailedPreconditionError(absl::StrCat(
      kIdsInUse, ", and ", count == 1 ? "one is" : absl::StrCat(count, " are"),
      " in use: ", absl::StrJoin(taken, ", "), count > kMostUsersTold ? ", …" : "",
      all_zombies
          ? ". What has ended keeps its PID until its parent takes the exit status: make the parent do so "
            "or end it, then restore again"
          : ". If that is the job itself, it still runs; otherwise end what holds them, then restore again"));
}

namespace {

// What programs compile or fetch for themselves there, and clean away, nobody puts back.
bool IsInCacheOfPrograms(absl::string_view path) {
  return absl::StrContains(path, "/.cache/") || absl::StrContains(path, "/.triton/");
}

// What is to be said of a folder on the way to `path` that is gone; empty: none is.
std::string MissingFolder(const std::string& path) {
  if (IsInCacheOfPrograms(path)) return "";
  std::string folder = path;
  for (bool missing = false;; missing = true) {
    const size_t slash = folder.rfind('/');
    folder = slash == 0 || slash == std::string::npos ? "/" : folder.substr(0, slash);
    const UniqueFd found(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (found.valid()) return missing && MayComeBack(found.get()) ? kMakeFolder : "";
    if ((errno != ENOENT && errno != ENOTDIR) || folder == "/") return "";
  }
}

UniqueFd OpenNeeded(const v1::NeededFile& file) {
  const auto place = OpenInRoot("/", file.path());
  if (!place.ok()) return UniqueFd();
  auto fd = OpenFileAt(place->get());
  return fd.ok() ? *std::move(fd) : UniqueFd();
}

// Has it only been appended to?
bool BeginsAsBefore(const v1::NeededFile& file) {
  if (file.beginning() == 0) return false;
  const UniqueFd fd = OpenNeeded(file);
  if (!fd.valid()) return false;
  const auto beginning = FileBeginning(fd.get(), file.size());
  return beginning.ok() && *beginning == file.beginning();
}

// What others write all the time, in place, and readers expect to change: caches of system services, which
// the C library maps, and databases with locks of their own.
bool IsChangedUnderReaders(const std::string& path, int fd) {
  for (const char* folder : {"/run/", "/var/run/", "/var/cache/", "/var/lib/sss/", "/var/db/nscd/"}) {
    if (absl::StartsWith(path, folder)) return true;
  }
  return fd >= 0 && BeginsAsDatabase(fd);
}

// One that the job only reads and that is as long as it was.
enum class Content { kSame, kOther, kMayBeOther, kUnknown };

Content ContentOf(const v1::NeededFile& file, const struct stat& now) {
  const int64_t modified = Nanos(now.st_mtim);
  const bool has_stamp = file.inode() != 0;
  const bool same_time = has_stamp && modified == file.modified_ns();
  if (same_time && now.st_ino == file.inode()) return Content::kSame;
  // Of an older version, or written to while the image was taken.
  if (!has_stamp && file.middle() == 0) return Content::kSame;
  if (file.beginning() == 0) return has_stamp && !same_time ? Content::kUnknown : Content::kSame;
  const UniqueFd fd = OpenNeeded(file);
  if (IsChangedUnderReaders(file.path(), fd.get())) return Content::kSame;
  // What the restore can't read, the job's user can't have changed either.
  if (!fd.valid()) return Content::kSame;
  const auto beginning = FileBeginning(fd.get(), file.size()), middle = FileMiddle(fd.get(), file.size());
  if (!beginning.ok() || *beginning != file.beginning()) return Content::kOther;
  if (file.middle() != 0 && (!middle.ok() || *middle != file.middle())) return Content::kOther;
  // The very file, written to; elsewhere a copy of it may have any time.
  const bool was_written = has_stamp && now.st_ino == file.inode() && !same_time;
  return was_written && !BeginningIsAll(file.size()) ? Content::kMayBeOther : Content::kSame;
}

// Warnings of files that the job only reads and that may have another content by now.
class DoubtfulFiles {
 public:
  void Add(const std::string& path, Content content,
           absl::string_view how = "it is as long as it was, with another content") {
    if (content == Content::kUnknown) {
      if (unknown_++ == 0) first_unknown_ = path;
    } else if (++count_ <= kMost && content == Content::kOther) {
      told_.push_back(absl::StrCat(path, ", which the job only reads, ", kEditedSince, ": ", how,
                                   ". The job goes on with what is there now"));
    } else if (count_ <= kMost) {
      told_.push_back(
          absl::StrCat(path,
                       ", which the job only reads, was written to since the image was taken: "
                       "parts of it were compared, which are the same. If others are not, the job "
                       "goes on with what is there now"));
    }
  }
  void Tell(std::vector<std::string>* warnings) {
    warnings->insert(warnings->end(), told_.begin(), told_.end());
    if (count_ > kMost) {
      warnings->push_back(absl::StrCat("and ", count_ - kMost,
                                       " more files that it only reads were written to since the image"));
    }
    if (unknown_ == 0) return;
    warnings->push_back(absl::StrCat(
        first_unknown_, unknown_ == 1 ? "" : absl::StrCat(" and ", unknown_ - 1, " more files"),
        ", which the job only reads, ", unknown_ == 1 ? "has" : "have",
        " another time of modification than when the image was taken, which has nothing else to know ",
        unknown_ == 1 ? "it" : "them", " by: see that ",
        unknown_ == 1 ? "its content is" : "their contents are", " the same"));
  }

 private:
  static constexpr size_t kMost = 3;
  std::vector<std::string> told_;
  std::string first_unknown_;
  size_t count_ = 0, unknown_ = 0;
};

absl::Status RefusedForFiles(absl::string_view message) {
  absl::Status refused = absl::FailedPreconditionError(message);
  refused.SetPayload(kFilesUrl, absl::Cord());
  return refused;
}

// Warnings of files that the job writes, in which there is by now what it is about to write once more.
class GrownFiles {
 public:
  GrownFiles(const v1::JobManifest& manifest, NeededFiles which)
      : advises_(which == NeededFiles::kAll), logs_(LogsOf(manifest)) {
    for (const v1::WrittenFile& file : manifest.written_files()) written_.emplace(file.path(), &file);
  }

  // One whose size CRIU does not record: it was opened for appending.
  void LookAtAppended(const std::string& path, const struct stat& info) {
    const auto file = written_.find(path);
    if (!advises_ || file == written_.end() || !S_ISREG(info.st_mode) || logs_.contains(path)) return;
    // One that was put in its place, as logs are rotated, has not grown.
    if (file->second->in_own_mounts() || file->second->inode() != info.st_ino) return;
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (size > file->second->size())
      Add(path, size, file->second->size(), "what the job writes once more comes behind that");
  }
  void Add(const std::string& path, uint64_t size, uint64_t had, absl::string_view what_then) {
    if (++count_ > kMost) return;
    told_.push_back(absl::StrCat(path, " has grown since the image was taken (", size, " bytes, it had ", had,
                                 "): ", what_then, advises_ ? kCure : ""));
  }
  void Tell(std::vector<std::string>* warnings) {
    warnings->insert(warnings->end(), told_.begin(), told_.end());
    if (count_ > kMost) {
      warnings->push_back(absl::StrCat("and ", count_ - kMost,
                                       count_ - kMost == 1 ? " more file has" : " more files have",
                                       " grown since the image was taken", advises_ ? kCure : ""));
    }
  }

 private:
  static constexpr size_t kMost = 3;
  static constexpr absl::string_view kCure = "; --rollback append cuts off what was written since";

  const bool advises_;
  const std::set<std::string> logs_;
  std::map<std::string, const v1::WrittenFile*> written_;
  std::vector<std::string> told_;
  size_t count_ = 0;
};

// A script or a configuration that somebody has edited: the job reads on in what is there, as it would have
// without its death. Data of which a part is missing it must not go on with.
bool IsEditedText(const v1::NeededFile& file, uint64_t now) {
  constexpr uint64_t kMostOfText = uint64_t{1} << 20;
  return !file.mapped() && now > 0 && std::max(now, file.size()) <= kMostOfText &&
         !IsLibraryOfPackage(file.path());
}

absl::Status CheckFilesNow(const v1::JobManifest& manifest, SeenFrom place, NeededFiles which,
                           const std::set<std::string>& replaced, const std::set<std::string>& cut_last,
                           const std::vector<std::string>& ignored, EditedFiles edited, CheckedFor whom,
                           std::vector<std::string>* warnings) {
  std::vector<std::string> problems;
  struct stat info;
  std::set<std::string> rolled_back, made_again;
  for (const v1::SocketFolder& folder : manifest.socket_folders()) made_again.insert(folder.path());
  if (which == NeededFiles::kBeyondRollBack) {
    for (const v1::WrittenFile& file : manifest.written_files()) rolled_back.insert(file.path());
  }
  // It, or a folder on the way to one that is put back.
  const auto may_be_mended = [&rolled_back](const std::string& path) {
    const auto at = rolled_back.lower_bound(path);
    const auto below = rolled_back.lower_bound(path + "/");
    return (at != rolled_back.end() && *at == path) ||
           (below != rolled_back.end() && absl::StartsWith(*below, path + "/"));
  };
  if (!manifest.working_directory().empty() && !may_be_mended(manifest.working_directory()) &&
      !made_again.contains(manifest.working_directory()) &&
      ::stat(manifest.working_directory().c_str(), &info) != 0 && errno != EACCES) {
    const std::string cure = MissingFolder(manifest.working_directory() + "/");
    problems.push_back(absl::StrCat("its working directory ", manifest.working_directory(), " is gone",
                                    cure.empty() ? "" : ": ", cure));
  }
  std::set<std::string> seen, with_content;
  std::map<std::string, const v1::WrittenFile*> regular;
  GrownFiles grown(manifest, which);
  DoubtfulFiles doubtful;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (file.in_own_mounts() && place == SeenFrom::kMachine) continue;
    if (file.tracked()) continue;
    if (!file.nameless()) regular.emplace(file.path(), &file);
    if (file.size() == 0 || !file.content_object().empty()) with_content.insert(file.path());
  }
  const auto is_ignored = [&](const std::string& path) {
    return std::any_of(ignored.begin(), ignored.end(),
                       [&](const std::string& folder) { return IsBelow(path, folder); });
  };
  bool may_be_put_back = false, is_output = false, is_read = false;
  // Some it reads through one descriptor and writes through another.
  std::set<std::string> writes;
  for (const v1::WrittenFile& file : manifest.written_files()) writes.insert(file.path());
  for (const v1::NeededFile& file : manifest.files()) {
    if (file.written()) writes.insert(file.path());
  }
  const std::set<std::string> outputs = FilesReplacedByLog(manifest);
  size_t libraries = 0;
  const auto lost = [&](const v1::NeededFile& file, absl::string_view how) {
    problems.push_back(absl::StrCat(file.path(), " ", how));
    if (!file.written() && IsLibraryOfPackage(file.path())) ++libraries;
    may_be_put_back |= with_content.contains(file.path());
    is_output |= outputs.contains(file.path());
  };
  for (const v1::NeededFile& file : manifest.files()) {
    if (file.path().empty() || file.path()[0] != '/' || absl::StartsWith(file.path(), "/proc/")) continue;
    if (absl::StartsWith(file.path(), "/dev/pts/")) continue;  // a terminal of its own comes back with it
    if (replaced.contains(file.path())) continue;
    if (!seen.insert(file.path()).second || may_be_mended(file.path())) continue;
    if (::lstat(file.path().c_str(), &info) != 0) {
      if (errno == EACCES || made_again.contains(file.path())) continue;
      const std::string cure = MissingFolder(file.path());
      lost(file, absl::StrCat("is gone", cure.empty() ? "" : ", with its folder: ", cure));
      continue;
    }
    // By one that CheckLinks follows, too.
    if (S_ISLNK(info.st_mode) && ::stat(file.path().c_str(), &info) != 0) {
      if (errno != EACCES) lost(file, "is a symbolic link now that leads nowhere");
      continue;
    }
    if (const auto was = regular.find(file.path()); was != regular.end()) {
      if (!S_ISREG(info.st_mode)) {
        lost(file, absl::StrCat("is a ", S_ISDIR(info.st_mode) ? "folder" : "special file", " now"));
        continue;
      }
      if (was->second->inode() != info.st_ino && was->second->uid() != info.st_uid) {
        warnings->push_back(absl::StrCat(file.path(), " is another file than the job had, and uid ",
                                         info.st_uid, "'s where that was uid ", was->second->uid(),
                                         "'s: it goes on with this"));
      }
    }
    uint64_t size = static_cast<uint64_t>(info.st_size);
    if (size > file.size() && cut_last.contains(file.path())) continue;
    if (!file.has_size()) grown.LookAtAppended(file.path(), info);
    if (!file.has_size() || !S_ISREG(info.st_mode)) continue;
    if (size == file.size()) {
      if (writes.contains(file.path()) || is_ignored(file.path())) continue;
      const Content content = ContentOf(file, info);
      if (content == Content::kSame) continue;
      if (content == Content::kOther && file.mapped() && edited == EditedFiles::kRefuseMapped) {
        problems.push_back(absl::StrCat(file.path(),
                                        ", which it has mapped, was edited: it is as long as it was (", size,
                                        " bytes), with another content"));
        is_read = true;
      } else if (which != NeededFiles::kBeyondRollBack) {
        doubtful.Add(file.path(), content);
      }
      continue;
    }
    // CRIU does not look at the size of those of which we know the content.
    if (!file.written() && file.beginning() != 0) {
      if (is_ignored(file.path())) continue;
      if (edited == EditedFiles::kWarn && IsEditedText(file, size) && !BeginsAsBefore(file)) {
        if (which != NeededFiles::kBeyondRollBack) {
          doubtful.Add(file.path(), Content::kOther,
                       absl::StrCat("it has ", size, " bytes, and had ", file.size()));
        }
        continue;
      }
    }
    std::string sizes = absl::StrCat(" (", size, " bytes, it had ", file.size(), ")");
    if (size < file.size()) {
      lost(file, absl::StrCat("has become shorter", sizes));
    } else if (!file.written() && BeginsAsBefore(file)) {
      warnings->push_back(absl::StrCat(file.path(),
                                       ", which others append to, has grown since the image was taken", sizes,
                                       ": the job reads on from where it was"));
    } else if (!file.written()) {
      problems.push_back(absl::StrCat(file.path(), ", which it only reads, ",
                                      file.beginning() == 0 ? "has grown" : "was edited", sizes));
      if (IsLibraryOfPackage(file.path())) ++libraries;
    } else {
      grown.Add(file.path(), size, file.size(), "the job writes on from where it was");
    }
  }
  grown.Tell(warnings);
  doubtful.Tell(warnings);
  if (problems.empty()) return absl::OkStatus();
  const bool is_hook = std::all_of(problems.begin(), problems.end(), [](const std::string& problem) {
    return absl::StrContains(problem.substr(0, problem.find(' ')), "rekindle_hook");
  });
  if (is_hook) {
    return RefusedForFiles(absl::StrCat(
        "the runtime hook that the job has loaded is not there any more: ", absl::StrJoin(problems, "; "),
        ". Another version of Rekindle was installed in its place, or it was removed: put the file of the "
        "version with which the job was started there (a newer installation has its hook under a name of its "
        "own, and takes no other's place), then restore again"));
  }
  size_t count = problems.size();
  const bool only_libraries = libraries == count, for_clone = whom == CheckedFor::kClone;
  if (count > 4) problems.resize(4);
  return RefusedForFiles(absl::StrCat(
      "files that the job had in use are not as it left them: ", absl::StrJoin(problems, "; "),
      count > 4 ? absl::StrCat("; and ", count - 4, " more") : "", ". Put them back, then restore again",
      only_libraries
          ? absl::StrCat(" (", kLibrariesMayComeBack, "; after an upgrade the old version is needed)")
          : "",
      !may_be_put_back ? ""
      : for_clone ? "; a restore that is no copy does so with --rollback append with those whose content the "
                    "image has"
                  : "; --rollback append does so with those whose content the image has",
      !is_read    ? ""
      : for_clone ? "; copies that are to go on with what such a file holds now are made of a later image: "
                    "restore this one once, not as a copy, with --ignore-path FILE, and take one of that"
                  : "; with --ignore-path FILE it goes on with what such a file holds now",
      is_output ? "; with --log FILE its output goes elsewhere" : ""));
}

}  // namespace

absl::Status CheckFiles(const v1::JobManifest& manifest, const std::optional<Owner>& user,
                        std::vector<std::string>* warnings, SeenFrom place, NeededFiles which,
                        const std::set<std::string>& replaced, const std::set<std::string>& cut_last,
                        const std::vector<std::string>& ignored, EditedFiles edited, CheckedFor whom) {
  const auto check = [&] {
    return CheckFilesNow(manifest, place, which, replaced, cut_last, ignored, edited, whom, warnings);
  };
  return user ? WithFileRightsOf(*user, check) : check();
}

bool IsRefusedForFiles(const absl::Status& status) { return status.GetPayload(kFilesUrl).has_value(); }

bool IsLibraryOfPackage(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  if (parts.empty()) return false;
  if (!absl::EndsWith(parts.back(), ".so") && !absl::StrContains(parts.back(), ".so.")) return false;
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm"}) {
    if (IsBelow(std::string(path), folder)) return false;
  }
  if (IsInCacheOfPrograms(path)) return false;
  bool is_of_package = false;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    for (const char* folder : {"lib", "lib64", "site-packages", "dist-packages", "node_modules"})
      is_of_package = is_of_package || parts[i] == folder;
  }
  return is_of_package;
}

bool MayComeBack(int above) {
  struct stat info;
  return ::fstat(above, &info) == 0 && (info.st_mode & S_ISVTX) == 0;
}

absl::Status CheckHasNoOtherNamespaces(const store::ImageReader& image) {
  const bool of_user =
      std::any_of(image.objects().begin(), image.objects().end(), [](const store::ObjectInfo& object) {
        return absl::StartsWith(object.name, absl::StrCat(v1::kCriuFilePrefix, "userns-"));
      });
  const bool has_mounts =
      std::any_of(image.objects().begin(), image.objects().end(), [](const store::ObjectInfo& object) {
        return absl::StartsWith(object.name, absl::StrCat(v1::kCriuFilePrefix, "mountpoints-"));
      });
  if (!of_user && !has_mounts) return absl::OkStatus();
  const std::string& digest = image.info().digest;
  return absl::UnimplementedError(
      absl::StrCat("restoring ", digest, ": it is an image of a ", of_user ? "user" : "mount",
                   " namespace, which Rekindle can't bring back: `rekindle export ", digest,
                   " --criu DIR`, and see what `criu restore --images-dir DIR` can do (--root, --external)"));
}

std::optional<unsigned long> OwnMounts(const store::ImageInfo& image) {
  const auto label = image.labels.find(v1::kOwnMountsLabel);
  if (label == image.labels.end()) return std::nullopt;
  if (label->second == v1::kSharedMounts) return 0;
  return label->second == v1::kSlaveMounts ? MS_SLAVE : MS_PRIVATE;
}

absl::Status CheckCanHaveOwnMounts(const store::ImageInfo& image) {
  const std::optional<unsigned long> ties = OwnMounts(image);
  if (!ties) return absl::OkStatus();
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("restoring ", image.digest, ": the job had a mount namespace of its own, and ", why));
  };
  if (!HasCapability(CAP_SYS_ADMIN))
    return refuse("Rekindle needs CAP_SYS_ADMIN to make it another one: run it with that");
  struct statx root;
  if (*ties != 0 && ::statx(AT_FDCWD, "/", 0, STATX_TYPE, &root) == 0 &&
      (root.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0 &&
      (root.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) {
    return refuse(
        "Rekindle's own root folder is no mount point (chroot), so that it can't make it another one: run it "
        "without chroot, or bind-mount that folder onto itself before");
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(uint64_t bytes, pid_t process) {
  absl::StatusOr<uint64_t> available = AvailableMemoryBytes();
  if (process != 0 && available.ok()) {
    for (const MemoryLimit& limit : MemoryLimitsOf(process)) available = std::min(*available, limit.free);
  }
  if (!available.ok() || bytes <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the job needs ", FormatBytes(bytes), " of memory and ", FormatBytes(*available),
                   " is free", process != 0 ? " here (the limits of cgroups count)" : "",
                   "; end something else, or restore it where there is more"));
}

}  // namespace rekindle::restore
