#include "daemon/job_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"
#include "base/status.h"
#include "base/utf8.h"

namespace rekindle::daemon {
namespace {

using nlohmann::json;

constexpr absl::string_view kSuffix = ".json";
constexpr size_t kLongestName = 64;
// Stands in a record for how a job ended of which nobody can tell.
constexpr int kUnknownExit = -1;
// The record is for people to read, again and again.
constexpr size_t kMostShownCommand = 4096;
// Records are looked through for what to forget once so many have been added, and half as many as there are.
constexpr size_t kLeastAddedBetweenLooks = 64;
constexpr absl::Duration kLockMayTake = absl::Seconds(10);
// A file of so many bytes is kept beside the records: nearly all are shorter.
constexpr absl::string_view kRoom = "/.room";
constexpr off_t kRoomBytes = 16 << 10;
// A file that was written twice within one tick of the file system's clock has one stamp for both.
constexpr int64_t kStampTellsAfterNanos = 100'000'000;

// What is not UTF-8 in a command line would make the JSON library throw.
constexpr auto kReplaceBadText = json::error_handler_t::replace;

std::string Serialize(const JobRecord& record) {
  json document = {{"format", 1},
                   {"name", record.name},
                   {"pid", record.pid},
                   {"start_ticks", record.start_ticks},
                   {"boot_id", record.boot_id},
                   {"command", record.command},
                   {"owner_uid", record.owner},
                   {"started_unix_ns", record.started_unix_ns},
                   {"image", record.image},
                   {"log", record.log},
                   {"instance", record.instance},
                   {"mark", record.mark}};
  if (record.exited_unix_ns != 0) {
    document["exit_code"] = record.exit ? record.exit->code : kUnknownExit;
    document["signal"] = record.exit ? record.exit->signal : 0;
    document["exited_unix_ns"] = record.exited_unix_ns;
  }
  if (record.provisional_of != 0) {
    document["provisional_of"] = record.provisional_of;
    document["provisional_of_start_ticks"] = record.provisional_of_start_ticks;
  }
  return document.dump(1, ' ', false, kReplaceBadText) + "\n";
}

// Fields of a record, each of which is asked for once; what is left then this version does not know.
class RecordFields {
 public:
  explicit RecordFields(const json& document) : document_(document) {}
  bool has(const char* key) const { return document_.contains(key); }
  std::string String(const char* key) {
    const json* value = Take(key);
    if (value == nullptr) return "";
    all_usable_ &= value->is_string();
    return value->is_string() ? value->get<std::string>() : "";
  }
  int64_t Number(const char* key) {
    const json* value = Take(key);
    if (value == nullptr) return 0;
    all_usable_ &= value->is_number_integer();
    return value->is_number_integer() ? value->get<int64_t>() : 0;
  }
  bool all_usable() const { return all_usable_ && taken_ == document_.size(); }

 private:
  const json* Take(const char* key) {
    const auto found = document_.find(key);
    if (found == document_.end()) return nullptr;
    ++taken_;
    return &*found;
  }

  const json& document_;
  size_t taken_ = 0;
  bool all_usable_ = true;
};

// Nothing: also what a newer version has written, and would be lost with the next write.
std::optional<JobRecord> Parse(const std::string& text) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return std::nullopt;
  RecordFields fields(document);
  if (fields.Number("format") != 1) return std::nullopt;
  JobRecord record;
  record.name = fields.String("name");
  record.pid = static_cast<pid_t>(fields.Number("pid"));
  record.start_ticks = static_cast<uint64_t>(fields.Number("start_ticks"));
  record.boot_id = fields.String("boot_id");
  record.command = fields.String("command");
  record.owner = static_cast<uid_t>(fields.Number("owner_uid"));
  record.started_unix_ns = fields.Number("started_unix_ns");
  record.image = fields.String("image");
  record.log = fields.String("log");
  record.instance = fields.String("instance");
  record.mark = fields.String("mark");
  if (fields.has("exit_code")) {
    record.exit =
        ExitState{static_cast<int>(fields.Number("exit_code")), static_cast<int>(fields.Number("signal"))};
    if (record.exit->code == kUnknownExit) record.exit.reset();
    record.exited_unix_ns = fields.Number("exited_unix_ns");
  }
  record.provisional_of = static_cast<pid_t>(fields.Number("provisional_of"));
  record.provisional_of_start_ticks = static_cast<uint64_t>(fields.Number("provisional_of_start_ticks"));
  if (!fields.all_usable() || record.pid <= 0 || !CheckJobName(record.name).ok()) return std::nullopt;
  return record;
}

bool SameProcess(const JobRecord& a, const JobRecord& b) {
  return a.pid == b.pid && a.start_ticks == b.start_ticks && a.boot_id == b.boot_id;
}

std::string Unusable(absl::string_view path) {
  return absl::StrCat(path,
                      " is no record of a job that this version can read: it was written by a newer version "
                      "of Rekindle (use a newer Rekindle for it), or is damaged");
}

int64_t LastNewsOf(const JobRecord& job) { return std::max(job.started_unix_ns, job.exited_unix_ns); }

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-'; }

}  // namespace

absl::Status CheckJobName(absl::string_view name) {
  bool good = !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
              std::all_of(name.begin(), name.end(), IsNameCharacter) &&
              !std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", name, "' is no name for a job: use up to ", kLongestName,
      " letters, digits, '.', '_' and '-', not only digits, beginning with a letter, a digit or '_'"));
}

std::string JobNameFromCommand(absl::string_view command) {
  absl::string_view program = command.substr(0, command.find(' '));
  size_t slash = program.rfind('/');
  if (slash != absl::string_view::npos) program.remove_prefix(slash + 1);
  std::string name(program.substr(0, kLongestName - 8));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsNameCharacter(c); }, '_');
  return CheckJobName(name).ok() ? name : absl::StrCat("job_", name);
}

std::string ImageNameOf(absl::string_view job_name) {
  std::string name;
  for (char c : absl::AsciiStrToLower(job_name)) {
    if (absl::ascii_islower(c) || absl::ascii_isdigit(c)) {
      name += c;
    } else if (!name.empty() && absl::ascii_isalnum(name.back())) {
      name += IsNameCharacter(c) || c == '/' ? c : '-';
    }
  }
  while (!name.empty() && !absl::ascii_isalnum(name.back())) name.pop_back();
  return name.empty() ? "job" : name;
}

std::string JobRegistry::PathOf(absl::string_view name) const {
  return absl::StrCat(directory_, "/", name, kSuffix);
}

absl::StatusOr<JobRegistry::Held> JobRegistry::Lock() const {
  std::unique_lock<std::mutex> here(here_);
  RK_RETURN_IF_ERROR(MakeDirectories(directory_, 0700));
  std::string path = absl::StrCat(directory_, "/.lock");
  RK_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(path, O_RDWR | O_CREAT, 0600));
  // Held for milliseconds, unless whoever has it was stopped just then (Ctrl-Z).
  RK_ASSIGN_OR_RETURN(const bool locked, LockWithin(lock, LOCK_EX, kLockMayTake, path));
  if (!locked) {
    return absl::AbortedError(absl::StrCat("locking ", path, ": another process has had it for ",
                                           absl::FormatDuration(kLockMayTake),
                                           "; is a rekindle command stopped? 'fuser ", path, "' names it"));
  }
  return Held{std::move(here), std::move(lock)};
}

namespace {

// By its record: it has not been seen to end, and the machine was not started anew since.
bool MayBeThere(const JobRecord& job) {
  return !job.exit && job.exited_unix_ns == 0 && job.boot_id == ThisBootId();
}

}  // namespace

bool JobRegistry::Lives(const JobRecord& job) {
  if (!MayBeThere(job)) return false;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(job.pid);
  // What can't be looked at is not gone for that.
  if (!stat.ok()) return !absl::IsNotFound(stat.status());
  return IsSameStart(stat->start_ticks, job.start_ticks) && !stat->ended();
}

bool JobRegistry::IsThere(const JobRecord& job) {
  if (!MayBeThere(job)) return false;
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(job.pid);
  return stat.ok() && IsSameStart(stat->start_ticks, job.start_ticks);
}

bool JobRegistry::IsForsaken(const JobRecord& job) {
  if (job.provisional_of == 0 || !Lives(job)) return false;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(job.provisional_of);
  if (!stat.ok()) return absl::IsNotFound(stat.status());
  return !IsSameStart(stat->start_ticks, job.provisional_of_start_ticks) || stat->ended();
}

absl::Status JobRegistry::WithCureForRoom(const absl::Status& status) const {
  if (!absl::IsResourceExhausted(status)) return status;
  return WithMessage(
      status, absl::StrCat(status.message(), ": what runs is recorded in ", directory_,
                           ", whose file system has no room for it: free some there (`df -h ", directory_,
                           "`, `df -i`), or give rekindled another --runtime-dir"));
}

absl::Status JobRegistry::Write(const JobRecord& record) const {
  // Rename alone makes a reader see the old or the new record; after a power cut no job of these lives
  // anyway, so nothing is synced.
  const std::string path = PathOf(record.name),
                    temporary = absl::StrCat(directory_, "/.", record.name, ".new");
  const std::string text = Serialize(record);
  absl::StatusOr<UniqueFd> file = OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  RK_RETURN_IF_ERROR(WithCureForRoom(file.status()));
  absl::Status written = WriteFully(file->get(), text.data(), text.size(), temporary);
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    written = ErrnoStatus(errno, absl::StrCat("recording job '", record.name, "' as ", path));
  if (!written.ok()) ::unlink(temporary.c_str());
  return WithCureForRoom(written);
}

absl::Status JobRegistry::WriteWithoutRoom(const JobRecord& record) const {
  const std::string room = absl::StrCat(directory_, kRoom), path = PathOf(record.name);
  const std::string text = Serialize(record);
  RK_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(room, O_WRONLY));
  absl::Status written = WriteFully(file.get(), text.data(), text.size(), room);
  if (written.ok() && (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0 ||
                       ::rename(room.c_str(), path.c_str()) != 0)) {
    written = ErrnoStatus(errno, absl::StrCat("recording job '", record.name, "' as ", path));
  }
  if (!written.ok()) ::unlink(room.c_str());
  return written;
}

void JobRegistry::KeepRoom() const {
  const std::string room = absl::StrCat(directory_, kRoom);
  if (PathExists(room)) return;
  const auto file = OpenFile(room, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (file.ok() && ::posix_fallocate(file->get(), 0, kRoomBytes) != 0) ::unlink(room.c_str());
}

absl::Status JobRegistry::CheckNameIsFree(absl::string_view name) const {
  RK_RETURN_IF_ERROR(CheckJobName(name));
  absl::StatusOr<std::string> text = ReadFile(PathOf(name));
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(text.status());
  std::optional<JobRecord> taken = Parse(*text);
  if (!taken) {
    return absl::AlreadyExistsError(absl::StrCat("a job named '", name, "' may run: ", Unusable(PathOf(name)),
                                                 "; choose another --name, or, once it has ended, remove "
                                                 "that file"));
  }
  if (!Lives(*taken)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("a job named '", name, "' runs already (PID ", taken->pid,
                                               "): choose another --name or end it first"));
}

absl::StatusOr<JobRecord> JobRegistry::Add(JobRecord record, bool unique_name,
                                           std::optional<JobRecord>* replaced) {
  if (record.name.empty()) {
    record.name = JobNameFromCommand(record.command);
    unique_name = true;
  }
  RK_RETURN_IF_ERROR(CheckJobName(record.name));
  record.command = ToUtf8(record.command, kMostShownCommand);
  record.boot_id = ThisBootId();
  const absl::StatusOr<ProcessStat> process = ReadProcessStat(record.pid);
  if (process.ok()) {
    record.start_ticks = process->start_ticks;
  } else if (!absl::IsNotFound(process.status())) {
    return process.status();
  }

  RK_ASSIGN_OR_RETURN(const Held lock, Lock());
  const std::string wanted = record.name.substr(0, kLongestName - 8);
  absl::Status free;
  for (int number = 2; !(free = CheckNameIsFree(record.name)).ok(); ++number) {
    if (!unique_name || !absl::IsAlreadyExists(free)) return free;
    record.name = absl::StrCat(wanted, "-", number);
  }
  if (replaced != nullptr) {
    const absl::StatusOr<std::string> before = ReadFile(PathOf(record.name));
    *replaced = before.ok() ? Parse(*before) : std::nullopt;
  }
  RK_RETURN_IF_ERROR(Write(record));
  KeepRoom();
  if (++added_ >= next_look_) ForgetOldest();
  return record;
}

void JobRegistry::ForgetOldest() {
  absl::StatusOr<FilesOfJobs> files = Read();
  if (!files.ok()) return;
  std::sort(files->begin(), files->end(),
            [](const auto& a, const auto& b) { return LastNewsOf(a->job) > LastNewsOf(b->job); });
  std::map<uid_t, size_t> ended;
  size_t kept = 0;
  for (const auto& file : *files) {
    if (Lives(file->job) || ++ended[file->job.owner] <= kMostEndedOfOne) {
      ++kept;
    } else {
      RemoveTree(file->path).IgnoreError();
    }
  }
  added_ = 0;
  next_look_ = std::max(kLeastAddedBetweenLooks, kept / 2);
}

std::optional<JobRegistry::Stamp> JobRegistry::StampOf(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  const auto nanos = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return Stamp{info.st_ino, info.st_size, nanos(info.st_mtim), nanos(info.st_ctim)};
}

absl::StatusOr<JobRegistry::FilesOfJobs> JobRegistry::Read() const {
  FilesOfJobs found;
  if (!PathExists(directory_)) return found;
  RK_ASSIGN_OR_RETURN(std::vector<std::string> files, ListDirectory(directory_));
  std::shared_ptr<const Remembered> before;
  {
    absl::MutexLock lock(&remembered_mutex_);
    before = remembered_;
  }
  Remembered now;
  for (const std::string& file : files) {
    if (file[0] == '.' || !absl::EndsWith(file, kSuffix)) continue;
    std::string path = absl::StrCat(directory_, "/", file);
    // Of the file as it was before it is read: one that is replaced meanwhile is read again the next time.
    const std::optional<Stamp> stamp = StampOf(path);
    if (auto known = before->find(path); stamp && known != before->end() && known->second->stamp == *stamp) {
      now.insert(*known);
      found.push_back(known->second);
      continue;
    }
    const int64_t read_at = UnixNanos();
    absl::StatusOr<std::string> text = ReadFile(path);
    std::optional<JobRecord> job = text.ok() ? Parse(*text) : std::nullopt;
    if (job) {
      found.push_back(
          std::make_shared<const FileOfJob>(FileOfJob{path, stamp.value_or(Stamp()), *std::move(job)}));
      if (stamp && std::max(stamp->modified_ns, stamp->changed_ns) < read_at - kStampTellsAfterNanos)
        now.emplace(std::move(path), found.back());
    } else if (text.ok()) {
      WarnOnce(path, absl::StrCat("a job is not shown: ", Unusable(path)));
    } else if (!absl::IsNotFound(text.status())) {
      WarnOnce(path, absl::StrCat("a job is not shown now: ", text.status().message()));
    }
  }
  absl::MutexLock lock(&remembered_mutex_);
  remembered_ = std::make_shared<const Remembered>(std::move(now));
  return found;
}

void JobRegistry::WarnOnce(const std::string& path, const std::string& what) const {
  {
    absl::MutexLock lock(&warned_mutex_);
    std::string& warned = warned_[path];
    if (warned == what) return;
    warned = what;
  }
  Log(LogLevel::kWarning, what);
}

absl::StatusOr<std::vector<JobRecord>> JobRegistry::List() const {
  RK_ASSIGN_OR_RETURN(const FilesOfJobs files, Read());
  std::vector<JobRecord> jobs;
  const int64_t now = UnixNanos();
  for (const auto& file : files) {
    if (now - LastNewsOf(file->job) > kKeepEndedNanos && !Lives(file->job)) {
      // Two processes may tidy up at once, and the file may be a new job's by now: decide under the lock.
      const absl::StatusOr<Held> lock = Lock();
      const absl::StatusOr<std::string> again = ReadFile(file->path);
      const std::optional<JobRecord> job = again.ok() ? Parse(*again) : std::nullopt;
      if (lock.ok() && job && SameProcess(*job, file->job)) RemoveTree(file->path).IgnoreError();
      continue;
    }
    jobs.push_back(file->job);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const JobRecord& a, const JobRecord& b) { return a.started_unix_ns > b.started_unix_ns; });
  return jobs;
}

absl::StatusOr<JobRecord> JobRegistry::FindByName(absl::string_view name) const {
  RK_RETURN_IF_ERROR(CheckJobName(name));
  absl::StatusOr<std::string> text = ReadFile(PathOf(name));
  std::optional<JobRecord> found = text.ok() ? Parse(*text) : std::nullopt;
  if (found) return *std::move(found);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  if (text.ok()) return absl::FailedPreconditionError(Unusable(PathOf(name)));
  // Which others there are is not for everybody to know.
  return absl::NotFoundError(
      absl::StrCat("there is no job named '", name, "': see 'rekindle ps', or give a PID"));
}

std::optional<JobRecord> JobRegistry::FindRunning(pid_t pid) const {
  absl::StatusOr<std::vector<JobRecord>> jobs = List();
  if (!jobs.ok()) return std::nullopt;
  for (JobRecord& job : *jobs) {
    if (job.pid == pid && Lives(job)) return std::move(job);
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<JobRecord>> JobRegistry::OnDisk(const JobRecord& job) const {
  absl::StatusOr<std::string> text = ReadFile(PathOf(job.name));
  if (absl::IsNotFound(text.status())) return std::nullopt;  // forgotten
  RK_RETURN_IF_ERROR(text.status());
  std::optional<JobRecord> current = Parse(*text);
  if (current && !SameProcess(*current, job)) current.reset();
  return current;
}

template <typename Change>
absl::Status JobRegistry::Update(const JobRecord& job, Change change) {
  RK_ASSIGN_OR_RETURN(const Held lock, Lock());
  RK_ASSIGN_OR_RETURN(std::optional<JobRecord> current, OnDisk(job));
  if (!current) return absl::OkStatus();
  change(*current);
  absl::Status written = Write(*current);
  if (absl::IsResourceExhausted(written) && WriteWithoutRoom(*current).ok()) written = absl::OkStatus();
  KeepRoom();
  return written;
}

void JobRegistry::Forget(const JobRecord& job, const std::optional<JobRecord>& before) {
  const absl::StatusOr<Held> lock = Lock();
  if (!lock.ok()) return;
  const auto current = OnDisk(job);
  if (!current.ok() || !*current) return;
  if (before && (Write(*before).ok() || WriteWithoutRoom(*before).ok())) {
    KeepRoom();
  } else {
    ::unlink(PathOf(job.name).c_str());
  }
}

absl::Status JobRegistry::SetImage(const JobRecord& job, const std::string& image) {
  return Update(job, [&](JobRecord& record) { record.image = image; });
}

absl::Status JobRegistry::SetKept(const JobRecord& job) {
  return Update(job, [](JobRecord& record) { record.provisional_of = 0; });
}

absl::Status JobRegistry::SetExit(const JobRecord& job, const std::optional<ExitState>& exit) {
  return Update(job, [&](JobRecord& record) {
    if (!exit && record.exited_unix_ns != 0) return;
    record.exit = exit;
    record.exited_unix_ns = UnixNanos();
  });
}

}  // namespace rekindle::daemon
