#include "gpu_state/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"
#include "base/status.h"
#include "gpu_state/pid_namespace.h"

namespace rekindle::gpu {
namespace {

using Json = nlohmann::json;

constexpr char kProcessPrefix[] = "process-";
constexpr char kLockPrefix[] = "mover-";
constexpr char kTurnPrefix[] = "turn-";
constexpr int kFormat = 1;

// Others than the first have names of their own for their entries, which older Rekindles leave alone.
std::string EntryPrefix() {
  const ino_t own = OwnPidNamespace();
  return InFirstPidNamespace() || own == 0 ? kProcessPrefix
                                           : absl::StrCat("namespace-", own, "-", kProcessPrefix);
}

// Whoever has such a file removes it: once more where that happened before it was locked.
absl::StatusOr<UniqueFd> LockFileThatIsThere(const std::string& path, int operation) {
  for (;;) {
    RK_ASSIGN_OR_RETURN(UniqueFd lock, LockFile(path, operation));
    if (IsFileAt(lock, path)) return lock;
  }
}

// `mover`: its file with the folder, as older Rekindles need it; where that is not UTF-8, its name alone is
// told rightly.
std::string Encode(const LedgerEntry& entry, const std::string& mover) {
  Json json = {{"format", kFormat},
               {"pid", entry.pid},
               {"start_ticks", entry.start_ticks},
               {"parked", entry.goal == LedgerEntry::Goal::kParked},
               {"job", entry.job},
               {"mover", mover},
               {"why", entry.why},
               {"keeps_room", entry.keeps_room},
               {"uses", Json::array()},
               {"areas", Json::array()}};
  // An older Rekindle, which refuses what it does not know, can go on with the others.
  if (!entry.driver.empty()) json["driver"] = entry.driver;
  if (entry.unplaced) json["unplaced"] = true;
  for (const GpuUse& use : entry.uses) {
    Json one = {{"uuid", use.uuid}};
    if (use.bytes) one["bytes"] = *use.bytes;
    json["uses"].push_back(std::move(one));
  }
  for (const DeviceArea& area : entry.areas) json["areas"].push_back({area.address, area.bytes});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status NewerEntry(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      path, " was written by a newer version of Rekindle (", what,
      "), and GPU memory of others may not be moved until that is known: use a newer Rekindle for it"));
}

// FailedPrecondition: what a newer version has written would be lost with the next write.
absl::Status CheckFields(const Json& object, std::initializer_list<absl::string_view> known,
                         const std::string& path) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return NewerEntry(path, absl::StrCat("it has a field '", key, "'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LedgerEntry> Decode(const Json& json, const std::string& path) {
  // An older Rekindle's has none.
  if (const Json format = json.value("format", Json(kFormat)); format != kFormat)
    return NewerEntry(path, absl::StrCat("it has format ", format.dump(), ", this version knows ", kFormat));
  RK_RETURN_IF_ERROR(CheckFields(json,
                                 {"format", "pid", "start_ticks", "parked", "job", "mover", "why",
                                  "keeps_room", "uses", "areas", "driver", "unplaced"},
                                 path));
  LedgerEntry entry;
  entry.pid = json.at("pid");
  entry.start_ticks = json.at("start_ticks");
  entry.goal = json.at("parked").get<bool>() ? LedgerEntry::Goal::kParked : LedgerEntry::Goal::kRunning;
  entry.job = json.at("job");
  const auto mover = json.at("mover").get<std::string>();
  entry.mover = mover.substr(mover.rfind('/') + 1);
  entry.why = json.at("why");
  entry.keeps_room = json.value("keeps_room", false);  // nor this
  entry.driver = json.value("driver", "");
  entry.unplaced = json.value("unplaced", false);
  for (const Json& one : json.at("uses")) {
    RK_RETURN_IF_ERROR(CheckFields(one, {"uuid", "bytes"}, path));
    GpuUse use{entry.pid, one.at("uuid"), std::nullopt};
    if (one.contains("bytes")) use.bytes = one["bytes"].get<uint64_t>();
    entry.uses.push_back(std::move(use));
  }
  for (const Json& area : json.value("areas", Json::array())) {  // nor these
    entry.areas.push_back({area.at(0).get<uint64_t>(), area.at(1).get<uint64_t>()});
  }
  return entry;
}

}  // namespace

Ledger::Ledger(std::string directory) : directory_(std::move(directory)), entry_prefix_(EntryPrefix()) {}

std::string Ledger::PathOf(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

std::string Ledger::PathOf(pid_t pid) const { return PathOf(absl::StrCat(entry_prefix_, pid)); }

std::string Ledger::SharedPathOf(pid_t pid) const { return PathOf(absl::StrCat(kProcessPrefix, pid)); }

absl::Status Ledger::Put(absl::Span<const LedgerEntry> entries) {
  RK_RETURN_IF_ERROR(MakeDirectories(directory_));
  for (const LedgerEntry& entry : entries) {
    const std::string mover = entry.mover.empty() ? "" : PathOf(entry.mover);
    RK_RETURN_IF_ERROR(ReplaceFile(PathOf(entry.pid), Encode(entry, mover)));
    RemoveShared(entry.pid);
  }
  return absl::OkStatus();
}

std::string Ledger::Note(absl::Span<const LedgerEntry> entries) {
  std::string note;
  for (const LedgerEntry& entry : entries) absl::StrAppend(&note, Encode(entry, ""), "\n");
  return note;
}

std::vector<LedgerEntry> Ledger::FromNote(absl::string_view note) {
  std::vector<LedgerEntry> entries;
  for (absl::string_view line : absl::StrSplit(note, '\n', absl::SkipEmpty())) {
    try {
      auto entry = Decode(Json::parse(line.begin(), line.end()), "the note of a parked process");
      if (!entry.ok()) continue;
      const auto stat = ReadProcessStat(entry->pid);
      if (!stat.ok() || stat->ending() || !IsSameStart(stat->start_ticks, entry->start_ticks)) continue;
      entries.push_back(*std::move(entry));
    } catch (const Json::exception&) {
      continue;
    }
  }
  return entries;
}

void Ledger::Remove(absl::Span<const pid_t> pids) {
  for (pid_t pid : pids) {
    ::unlink(PathOf(pid).c_str());
    RemoveShared(pid);
  }
}

void Ledger::RemoveShared(pid_t pid) {
  if (entry_prefix_ == kProcessPrefix) return;
  std::vector<LedgerEntry> meant;
  const std::string path = SharedPathOf(pid);
  if (AddEntry(path, /*ours=*/false, &meant).ok() && !meant.empty()) ::unlink(path.c_str());
}

absl::StatusOr<std::vector<LedgerEntry>> Ledger::List() {
  std::vector<LedgerEntry> entries;
  auto names = ListDirectory(directory_);
  if (absl::IsNotFound(names.status())) return entries;
  RK_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const bool ours = absl::StartsWith(name, entry_prefix_);
    if ((!ours && !absl::StartsWith(name, kProcessPrefix)) || absl::StrContains(name, '.')) continue;
    RK_RETURN_IF_ERROR(AddEntry(PathOf(name), ours, &entries));
  }
  return entries;
}

absl::StatusOr<std::vector<LedgerEntry>> Ledger::Of(absl::Span<const pid_t> pids) {
  std::vector<LedgerEntry> entries;
  for (pid_t pid : pids) {
    const size_t before = entries.size();
    RK_RETURN_IF_ERROR(AddEntry(PathOf(pid), /*ours=*/true, &entries));
    if (entries.size() == before && entry_prefix_ != kProcessPrefix)
      RK_RETURN_IF_ERROR(AddEntry(SharedPathOf(pid), /*ours=*/false, &entries));
  }
  return entries;
}

absl::Status Ledger::AddEntry(const std::string& path, bool ours, std::vector<LedgerEntry>* entries) {
  auto text = ReadFile(path);
  if (!text.ok()) return absl::OkStatus();
  try {
    const Json json = Json::parse(*text);
    // Of what has ended nothing needs to be known, whoever has written it.
    auto stat = ReadProcessStat(json.at("pid").get<pid_t>());
    if (!stat.ok() && !absl::IsNotFound(stat.status())) return stat.status();
    if (!stat.ok() || !IsSameStart(stat->start_ticks, json.at("start_ticks").get<uint64_t>()) ||
        stat->ending()) {
      if (ours) ::unlink(path.c_str());
      return absl::OkStatus();
    }
    RK_ASSIGN_OR_RETURN(LedgerEntry entry, Decode(json, path));
    entries->push_back(std::move(entry));
    return absl::OkStatus();
  } catch (const Json::exception& e) {
    if (!ours) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("reading ", path, ": ", e.what(), "; remove it"));
  }
}

absl::StatusOr<Ledger::Mover> Ledger::Enlist() {
  absl::MutexLock lock(&mutex_);
  if (!mover_.valid()) {
    RK_RETURN_IF_ERROR(MakeDirectories(directory_));
    RemoveFreeLocks();  // a command that ends leaves its own
    mover_name_ = absl::StrCat(kLockPrefix, ::getpid(), "-", UnixNanos());
  }
  // By the same name: entries that are there tell it.
  if (!mover_.valid() || !IsFileAt(mover_, PathOf(mover_name_))) {
    RK_RETURN_IF_ERROR(MakeDirectories(directory_));
    RK_ASSIGN_OR_RETURN(mover_, LockFileThatIsThere(PathOf(mover_name_), LOCK_EX));
  }
  return Mover{mover_name_, mover_.get()};
}

absl::StatusOr<std::string> Ledger::Inherit(int descriptor) {
  absl::MutexLock lock(&mutex_);
  const std::string link = absl::StrCat("/proc/self/fd/", descriptor);
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(link, error).string();
  if (error) return absl::InternalError(absl::StrCat("reading ", link, ": ", error.message()));
  mover_name_ = std::string(absl::StripSuffix(file.substr(file.rfind('/') + 1), kDeletedSuffix));
  if (struct stat there; ::stat(PathOf(mover_name_).c_str(), &there) == 0) return mover_name_;
  RK_RETURN_IF_ERROR(MakeDirectories(directory_));
  RK_ASSIGN_OR_RETURN(mover_, LockFileThatIsThere(PathOf(mover_name_), LOCK_EX | LOCK_NB));
  return mover_name_;
}

absl::StatusOr<Ledger::Turn> Ledger::TakeTurn(const std::string& name) {
  RK_RETURN_IF_ERROR(MakeDirectories(directory_));
  std::string path = absl::StrCat(directory_, "/", kTurnPrefix, name);
  RK_ASSIGN_OR_RETURN(UniqueFd lock, LockFileThatIsThere(path, LOCK_EX | LOCK_NB));
  return Turn(std::move(path), std::move(lock));
}

absl::StatusOr<Ledger::Turn> Ledger::TakeTurn(pid_t pid) {
  return TakeTurn(absl::StrCat(entry_prefix_, pid));
}

Ledger::Turn::~Turn() {
  if (lock_.valid()) ::unlink(path_.c_str());
}

bool Ledger::IsBeingMoved(const LedgerEntry& entry) const {
  if (entry.mover.empty()) return false;
  // Shared: who else asks is no mover.
  auto file = OpenFile(PathOf(entry.mover), O_RDWR);
  return file.ok() && ::flock(file->get(), LOCK_SH | LOCK_NB) != 0;
}

void Ledger::RemoveFreeLocks() {
  auto names = ListDirectory(directory_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kLockPrefix)) continue;
    const std::string path = absl::StrCat(directory_, "/", name);
    auto file = OpenFile(path, O_RDWR);
    if (file.ok() && ::flock(file->get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
}

}  // namespace rekindle::gpu
