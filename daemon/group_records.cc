#include "daemon/group_records.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/random_bytes.h"
#include "base/record_file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kIdBytes = 16;
constexpr char kGroupEnding[] = ".json";
constexpr char kWorkEnding[] = ".lock";

}  // namespace

absl::Status CheckGroupId(absl::string_view id) {
  if (id.size() == 2 * kIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
        return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
      })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", id, "' is no id of a group: it has ", 2 * kIdBytes,
                                                 " hexadecimal digits; `rekindle group ls` shows them"));
}

std::string NewGroupId() {
  std::string bytes(kIdBytes, '\0');
  FillWithRandomBytes(bytes.data(), bytes.size());
  return absl::BytesToHexString(bytes);
}

std::string GroupRecords::PathOf(const std::string& id) const {
  return absl::StrCat(directory_, "/", id, kGroupEnding);
}

std::string GroupRecords::WorkPathOf(const std::string& id) const {
  return absl::StrCat(directory_, "/", id, kWorkEnding);
}

absl::StatusOr<UniqueFd> GroupRecords::TakeTurn() const {
  return LockFile(absl::StrCat(directory_, "/.lock"), LOCK_EX);
}

absl::StatusOr<UniqueFd> GroupRecords::BeginWork(const std::string& id, const std::string& reference) {
  RK_RETURN_IF_ERROR(CheckGroupId(id));
  RK_RETURN_IF_ERROR(MakeDirectories(directory_));
  absl::MutexLock lock(&mutex_);
  RK_ASSIGN_OR_RETURN(UniqueFd turn, TakeTurn());
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    absl::string_view other = name;
    if (!absl::ConsumeSuffix(&other, kWorkEnding) || !CheckGroupId(other).ok()) continue;
    // One that ends just now has no file any more, or nobody has it locked.
    if (ReadFile(absl::StrCat(directory_, "/", name)).value_or("") != reference ||
        !IsInWork(std::string(other)).value_or(true)) {
      continue;
    }
    return absl::AlreadyExistsError(absl::StrCat("group ", reference, " is being captured (", other,
                                                 "): wait until that has ended, or choose another tag"));
  }
  return MakeLockedFile(WorkPathOf(id), reference);
}

void GroupRecords::EndWork(const std::string& id, UniqueFd work) {
  ::unlink(WorkPathOf(id).c_str());
  work.Reset();
}

absl::StatusOr<bool> GroupRecords::IsInWork(const std::string& id) const {
  const std::string path = WorkPathOf(id);
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDWR);
  if (absl::IsNotFound(file.status())) return false;
  RK_RETURN_IF_ERROR(file.status());
  RK_ASSIGN_OR_RETURN(const bool nobody_is, LockWithin(*file, LOCK_SH, absl::ZeroDuration(), path));
  return !nobody_is;
}

void GroupRecords::ForgetDeadWork() {
  RemoveAbandonedRecords(directory_);
  for (const std::string& name : ListDirectory(directory_).value_or(std::vector<std::string>())) {
    absl::string_view id = name;
    if (!absl::ConsumeSuffix(&id, kWorkEnding) || !CheckGroupId(id).ok()) continue;
    absl::StatusOr<bool> in_work = IsInWork(std::string(id));
    if (in_work.ok() && !*in_work) ::unlink(WorkPathOf(std::string(id)).c_str());
  }
}

absl::Status GroupRecords::Decide(const v1::Group& group, absl::string_view replaces) {
  absl::MutexLock lock(&mutex_);
  RK_ASSIGN_OR_RETURN(UniqueFd turn, TakeTurn());
  std::map<std::string, absl::Status> unreadable;  // which say nothing of their names
  RK_ASSIGN_OR_RETURN(std::vector<v1::Group> groups, ReadAll(&unreadable));
  for (const v1::Group& other : groups) {
    if (other.removed() || other.reference() != group.reference()) continue;
    if (other.id() == replaces) break;  // older ones it has replaced itself
    return absl::AlreadyExistsError(
        absl::StrCat("group ", group.reference(), " was taken meanwhile (", other.id(),
                     "), so this one is given up and its jobs run on: choose another tag, or try again with "
                     "--replace"));
  }
  absl::Status written = Write(group);
  if (written.ok()) return written;
  if (!PathExists(PathOf(group.id()))) return written;
  // It has its name, perhaps not durably, and to take that back might not be durable either.
  return absl::DataLossError(absl::StrCat("keeping the decision about group ", group.reference(),
                                          ": nobody knows whether it is kept: ", written.message(),
                                          "; its images stay in doubt until this daemon is started anew"));
}

absl::Status GroupRecords::Write(const v1::Group& group) {
  return WriteRecordFile(PathOf(group.id()), group);
}

absl::StatusOr<v1::Group> GroupRecords::Read(const std::string& id) const {
  RK_RETURN_IF_ERROR(CheckGroupId(id));
  const std::string path = PathOf(id);
  absl::StatusOr<v1::Group> group = ReadRecordFile<v1::Group>(path);
  if (absl::IsNotFound(group.status())) {
    return absl::NotFoundError(absl::StrCat("this daemon coordinates no group ", id));
  }
  if (group.ok() && group->id() != id) {
    group = UnusableRecord(path, absl::StrCat("it is of the group '", group->id(), "'"));
  }
  return group;
}

absl::Status GroupRecords::MarkRemoved(const std::string& id) {
  return Update(id, [](v1::Group& record) {
    record.set_removed(true);
    for (v1::GroupPart& part : *record.mutable_parts()) part.set_settled(false);
  });
}

absl::Status GroupRecords::Forget(const std::string& id) {
  RK_RETURN_IF_ERROR(CheckGroupId(id));
  absl::MutexLock lock(&mutex_);
  RK_ASSIGN_OR_RETURN(UniqueFd turn, TakeTurn());
  return RemoveTree(PathOf(id));
}

absl::StatusOr<v1::Group> GroupRecords::Find(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  return Read(id);
}

absl::StatusOr<std::vector<v1::Group>> GroupRecords::ReadAll(
    std::map<std::string, absl::Status>* unreadable) const {
  std::vector<v1::Group> groups;
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory_);
  if (absl::IsNotFound(names.status())) return groups;
  RK_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    absl::string_view id = name;
    if (!absl::ConsumeSuffix(&id, kGroupEnding) || !CheckGroupId(id).ok()) continue;
    absl::StatusOr<v1::Group> group = Read(std::string(id));
    if (absl::IsNotFound(group.status())) continue;  // forgotten since, by another process
    if (!group.ok()) {
      if (unreadable != nullptr) unreadable->emplace(id, group.status());
      continue;
    }
    groups.push_back(*std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const v1::Group& a, const v1::Group& b) {
    return std::pair(a.created_unix_ns(), a.id()) > std::pair(b.created_unix_ns(), b.id());
  });
  return groups;
}

absl::StatusOr<v1::Group> GroupRecords::FindByReference(absl::string_view reference) const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, absl::Status> unreadable;
  RK_ASSIGN_OR_RETURN(std::vector<v1::Group> groups, ReadAll(&unreadable));
  std::vector<std::string> names;
  for (v1::Group& group : groups) {
    if (group.removed()) continue;
    if (group.reference() == reference) return std::move(group);
    names.push_back(group.reference());
  }
  std::string others;
  for (const auto& [id, why] : unreadable)
    absl::StrAppend(&others, "; which one ", id, " is can't be told: ", why.message());
  return absl::NotFoundError(absl::StrCat(
      "this daemon coordinates no group ", reference,
      names.empty() ? "; it has none" : absl::StrCat("; it has ", absl::StrJoin(names, ", ")), others));
}

absl::StatusOr<std::vector<v1::Group>> GroupRecords::List(
    std::map<std::string, absl::Status>* unreadable) const {
  absl::MutexLock lock(&mutex_);
  return ReadAll(unreadable);
}

}  // namespace rekindle::daemon
