#include "restore/database_rollback.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/proc_text.h"
#include "base/process_stat.h"
#include "base/shown_command.h"

namespace rekindle::restore {
namespace {

using Report = v1::FileRollback;

bool CanBeAsItWas(const FileAction& action) {
  switch (action.report.action()) {
    case Report::UNCHANGED:
    case Report::PUT_BACK:
    case Report::MADE_AGAIN:
    case Report::SET_ASIDE:
      return true;
    case Report::TRUNCATED:  // what lies before its end may have changed, too
      return action.recorded.size() == 0 ||
             (!action.recorded.in_place() && !action.recorded.content_object().empty());
    default:
      return false;
  }
}

// Any process that has one of these files mapped, by name; 0: none. File systems give other numbers of their
// devices here than to those who ask for a file.
pid_t MapperOf(const std::vector<FileAction*>& files) {
  for (const pid_t pid : ListProcesses()) {
    bool has_one = false;
    ForEachLineOf(absl::StrCat("/proc/", pid, "/maps"), [&](absl::string_view line) {
      has_one = std::any_of(files.begin(), files.end(), [&](const FileAction* file) {
        return absl::EndsWith(line, absl::StrCat(" ", file->recorded.path()));
      });
      return !has_one;
    });
    if (has_one) return pid;
  }
  return 0;
}

void LeaveAfterAll(FileAction& action, const std::string& why) {
  action.report.set_action(Report::LEFT);
  action.report.set_why(why);
  action.report.set_size(action.present_bytes.value_or(0));
  action.report.clear_discarded_bytes();
  action.report.clear_tail_copy();
  action.blocks = !action.present_bytes || *action.present_bytes < action.recorded.size();
  action.keep_tail = false;
  action.file.Reset();
  action.folder.Reset();
  action.missing_folders.clear();
}

void KeepWhole(const std::string& database, const std::vector<FileAction*>& files) {
  const auto hindrance =
      std::find_if(files.begin(), files.end(), [](const FileAction* file) { return !CanBeAsItWas(*file); });
  std::string why;
  if (hindrance != files.end()) {
    const Report& report = (*hindrance)->report;
    why = absl::StrCat(report.path(), ": ",
                       report.action() == Report::IGNORED ? "it is to be ignored" : report.why());
  } else {
    const bool unchanged = std::all_of(files.begin(), files.end(), [](const FileAction* file) {
      return file->report.action() == Report::UNCHANGED;
    });
    const pid_t user = unchanged ? 0 : MapperOf(files);
    if (user == 0) return;
    why = absl::StrCat("process ", user, " (", ShownCommandOf(user), ") uses it");
  }
  for (FileAction* file : files) {
    const Report::Action action = file->report.action();
    if (action == Report::UNCHANGED || action == Report::LEFT || action == Report::IGNORED) continue;
    // Of that one itself what was to be said of it is.
    const bool itself = hindrance != files.end() && file == *hindrance;
    LeaveAfterAll(*file, itself ? file->report.why()
                                : absl::StrCat("it belongs to the database ", database,
                                               ", all of which is put back or nothing; ", why));
  }
}

}  // namespace

bool BeginsAsDatabase(int fd) {
  char beginning[kDatabaseBeginning];
  const ssize_t bytes = ::pread(fd, beginning, sizeof beginning, 0);
  return bytes > 0 && BeginsAsDatabase(absl::string_view(beginning, static_cast<size_t>(bytes)));
}

bool BeginsAsDatabase(absl::string_view beginning) {
  return absl::StartsWith(beginning,
                          absl::string_view("SQLite format 3", kDatabaseBeginning));  // with a zero
}

bool MayBeApplied(absl::string_view path, uint64_t size, int fd) {
  if (size == 0) return false;
  // One of a transaction that has ended begins with zeros, where it stays (journal_mode=persist).
  char first = 0;
  return !absl::EndsWith(path, "-journal") || ::pread(fd, &first, 1, 0) != 1 || first != 0;
}

void KeepDatabasesWhole(std::vector<FileAction>* plan) {
  std::map<std::string, std::vector<FileAction*>> databases;
  for (FileAction& action : *plan) {
    if (!action.database.empty()) databases[action.database].push_back(&action);
  }
  for (const auto& [database, files] : databases) KeepWhole(database, files);
}

}  // namespace rekindle::restore
