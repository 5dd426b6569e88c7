#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/file_patterns.h"
#include "base/follow_in_root.h"
#include "base/machine.h"
#include "base/open_in_root.h"
#include "base/shown_command.h"
#include "base/status.h"
#include "restore/compatibility.h"
#include "restore/database_rollback.h"
#include "restore/discarded_tail.h"
#include "restore/file_content.h"
#include "restore/file_rollback.h"
#include "restore/job_logs.h"
#include "restore/shared_memory_users.h"

namespace rekindle::restore {
namespace {

using Report = v1::FileRollback;

constexpr char kWrittenAnew[] = "it was written anew after the image";
// Of files that the image can't know.
constexpr size_t kMostNewTold = 20, kMostNamesForNew = 20'000;

void Leave(FileAction& action, absl::string_view why, bool blocks = false) {
  action.report.set_action(Report::LEFT);
  action.report.set_why(std::string(why));
  action.blocks = blocks;
}

// Or of the machine and its file servers just now? The job must not go on over what should have been cut off.
bool SaysSomethingOfTheFile(int error) {
  constexpr int kOfTheMachine[] = {EMFILE,    ENFILE,   ENOMEM,       EIO,         EINTR,    EAGAIN,
                                   ESTALE,    ENOTCONN, ETIMEDOUT,    EHOSTDOWN,   ENETDOWN, ENETUNREACH,
                                   EREMOTEIO, ENOLINK,  EHOSTUNREACH, ECONNREFUSED};
  return std::find(std::begin(kOfTheMachine), std::end(kOfTheMachine), error) == std::end(kOfTheMachine);
}

// By whose rights this thread opens files now.
uid_t CurrentFileUser() {
  return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1)));  // an impossible one: tells the present
}

class Planner {
 public:
  Planner(const v1::JobManifest& manifest, const store::ImageReader& image, const v1::Rollback& rollback,
          const WithRights& with_rights, SeenFrom place, const std::set<std::string>& replaced)
      : image_(image),
        rollback_(rollback),
        with_rights_(with_rights),
        place_(place),
        replaced_(replaced),
        job_uid_(manifest.uid()),
        captured_ns_(manifest.captured_unix_ns()),
        logs_(LogsOf(manifest)) {
    // A file system that has no device of its own may get another number at each boot.
    auto machine = ThisMachine();
    same_boot_ = machine.ok() && absl::StartsWith(manifest.job_id(), absl::StrCat(machine->boot_id, "/"));
    for (const v1::WrittenFile& file : manifest.written_files()) {
      in_image_.insert(file.path());
      inodes_in_image_.emplace(file.inode(), file.born_ns());
      if (absl::string_view database = DatabaseBeside(file.path()); !database.empty())
        have_files_beside_.emplace(database);
    }
    for (const v1::NeededFile& file : manifest.files()) {
      const auto [known, is_new] = only_appended_to_.try_emplace(file.path(), true);
      known->second &= !file.has_size();
    }
  }

  absl::StatusOr<FileAction> Plan(const v1::WrittenFile& file) {
    FileAction action;
    action.recorded = file;
    action.report.set_path(file.path());
    // What had no name is meant by no path.
    if (!file.nameless() && IsIgnored(file.path())) {
      action.report.set_action(Report::IGNORED);
      struct stat info = {};
      with_rights_([&] {
        if (::lstat(file.path().c_str(), &info) != 0) info = {};
      });
      action.report.set_size(static_cast<uint64_t>(info.st_size));
      action.database = DatabaseOf(action);
      return action;
    }
    // Shared memory it gets for itself, wherever it is.
    if (file.in_own_mounts() && !file.shared_memory() && place_ == SeenFrom::kMachine) {
      Leave(
          action,
          "it lies in the job's own file systems, those of a container or of a copy: it is rolled back when "
          "the job goes into a container (restore --into)");
      return action;
    }
    const Look look = LookAt(action);
    action.report.set_size(static_cast<uint64_t>(look.info.st_size));
    if (look.error == 0 && S_ISREG(look.info.st_mode)) action.present_bytes = action.report.size();
    action.database = DatabaseOf(action);
    if (file.shared_memory() && look.error == 0) {
      if (const pid_t user = shared_memory_.UserOf(look.info); user != 0) {
        Leave(action, absl::StrCat("process ", user, " (", ShownCommandOf(user), ") uses this shared memory"),
              IsTooShort(file, action.report.size()));
        return action;
      }
    }
    const absl::Status status = file.tracked() ? DecideTracked(look, action) : Decide(look, action);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("planning the roll-back of ", file.path()));
    }
    if (action.report.discarded_bytes() > 0 && action.file.valid()) DecideTail(action);
    action.may_be_shorter = file.tracked() || !IsTooShort(file, 0);
    action.may_be_anew = file.tracked() || !NeedsVersion(file);
    if (!ToBeDone(action)) {
      action.file.Reset();
      action.folder.Reset();
    }
    return action;
  }

  // Of files that match a tracked path and are not in the image: made since, as far as their times tell.
  void FindNewFiles(const std::vector<std::string>& patterns, std::vector<FileAction>* plan) const {
    with_rights_([&] {
      const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
      std::set<std::string> found;
      VisitMatchingFiles(root.get(), patterns, kMostNamesForNew, [&](const MatchingFile& file) {
        const int64_t born_ns = BornUnixNanos(file.folder, file.name, AT_SYMLINK_NOFOLLOW);
        const int64_t made_ns = born_ns != 0 ? born_ns : Nanos(file.info.st_mtim);
        // It may have several names, of which the image has one.
        if (made_ns <= captured_ns_ || in_image_.contains(file.path) ||
            inodes_in_image_.contains({file.info.st_ino, born_ns}) || IsIgnored(file.path) ||
            !found.insert(file.path).second)
          return true;
        FileAction& action = plan->emplace_back();
        action.report.set_path(file.path);
        action.report.set_size(static_cast<uint64_t>(file.info.st_size));
        Leave(action, "it was made after the image: the job finds it there");
        return found.size() < kMostNewTold;
      });
    });
  }

  // SQLite applies what it finds beside a database, which is of a later life where the image does not know
  // it: it is set aside before the database becomes what it was.
  absl::Status PlanBeside(const FileAction& database, std::vector<FileAction>* plan) {
    if (database.database != database.recorded.path() || !BecomesWhatItWas(database)) return absl::OkStatus();
    for (const absl::string_view suffix : kBesideDatabase) {
      FileAction action;
      action.recorded.set_path(absl::StrCat(database.database, suffix));
      if (in_image_.contains(action.recorded.path())) continue;
      action.report.set_path(action.recorded.path());
      action.database = database.database;
      const Look look = LookAt(action);
      if (look.error == ENOENT || look.error == ENOTDIR || look.error == ENAMETOOLONG) continue;
      if (look.error != 0 && !SaysSomethingOfTheFile(look.error))
        return ErrnoStatus(look.error, absl::StrCat("looking up ", action.recorded.path()));
      if (look.error == 0 && S_ISREG(look.info.st_mode)) {
        action.present_bytes = static_cast<uint64_t>(look.info.st_size);
        action.report.set_size(*action.present_bytes);
        if (!MayBeApplied(suffix, *action.present_bytes, action.file.get())) continue;
      }
      DecideBeside(look, database.recorded, action);
      action.file.Reset();
      if (!ToBeDone(action)) action.folder.Reset();
      plan->push_back(std::move(action));
    }
    return absl::OkStatus();
  }

 private:
  struct Look {
    int error = EPERM;  // of the name
    struct stat info = {};
    int64_t born_ns = 0;
    int open_error = 0;  // for writing
  };

  static bool ToBeDone(const FileAction& action) {
    const Report::Action what = action.report.action();
    return action.rotated.found() || what == Report::TRUNCATED || what == Report::PUT_BACK ||
           what == Report::MADE_AGAIN || what == Report::SET_ASIDE;
  }

  bool IsIgnored(absl::string_view path) const {
    return std::any_of(rollback_.ignore_paths().begin(), rollback_.ignore_paths().end(),
                       [&](absl::string_view folder) {
                         while (absl::ConsumeSuffix(&folder, "/")) {
                         }
                         absl::string_view rest = path;
                         return absl::ConsumePrefix(&rest, folder) && (rest.empty() || rest[0] == '/');
                       });
  }

  // The name first, without following a link in its place, then that very inode for writing.
  Look LookAt(FileAction& action) {
    Look look;
    const std::string& path = action.recorded.path();
    const size_t slash = path.rfind('/');
    action.name = path.substr(slash + 1);
    const std::string folder = slash == 0 ? "/" : path.substr(0, slash);
    with_rights_([&] {
      if (const int error = OpenFolder(folder, action); error != 0) {
        look.error = error;
        return;
      }
      UniqueFd found(::openat(action.folder.get(), action.name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (!found.valid() || ::fstat(found.get(), &look.info) != 0) {
        look.error = errno;
        return;
      }
      look.error = 0;
      look.born_ns = BornUnixNanos(found.get(), "", AT_EMPTY_PATH);
      if (!S_ISREG(look.info.st_mode)) return;
      action.file = Reopen(found.get(), O_RDWR | O_NOCTTY);
      if (!action.file.valid()) look.open_error = errno;
    });
    return look;
  }

  // Of what is gone, down to where nothing is.
  static int OpenFolder(std::string folder, FileAction& action) {
    for (;;) {
      action.folder = OpenPlain(AT_FDCWD, folder, O_PATH | O_DIRECTORY);
      if (action.folder.valid()) return action.missing_folders.empty() ? 0 : ENOENT;
      if ((errno != ENOENT && errno != ENOTDIR) || folder == "/") return errno;
      const size_t slash = folder.rfind('/');
      action.missing_folders.insert(action.missing_folders.begin(), folder.substr(slash + 1));
      folder = slash == 0 ? "/" : folder.substr(0, slash);
    }
  }

  // What the files beside a database are is said by its own, which comes before them. That is known by what
  // it begins with, now or in the image.
  std::string DatabaseOf(const FileAction& action) {
    if (action.recorded.tracked()) return "";
    const std::string& path = action.recorded.path();
    if (std::string database(DatabaseBeside(path)); !database.empty())
      return databases_.contains(database) ? database : "";
    const bool has_bytes = action.file.valid() && action.present_bytes.value_or(0) > 0;
    const bool is_database =
        (!has_bytes && have_files_beside_.contains(path)) ||
        (has_bytes && action.recorded.in_place() && BeginsAsDatabase(action.file.get())) ||
        WasDatabase(action.recorded);
    if (!is_database) return "";
    databases_.insert(path);
    return path;
  }
  bool WasDatabase(const v1::WrittenFile& file) const {
    if (!file.in_place() || file.content_object().empty()) return false;
    const auto content = FileContent::Open(image_, file);
    if (!content.ok()) return false;
    const auto beginning = content->Beginning(kDatabaseBeginning);
    return beginning.ok() && BeginsAsDatabase(*beginning);
  }

  // Was its content asked for, whatever it is now?
  bool IsAskedFor(const v1::WrittenFile& file) const {
    return rollback_.mode() == v1::Rollback::ALL || file.shared_memory();
  }
  // A database that has nothing beside it was between two transactions: its job can go on with what it is
  // now.
  bool IsPutBack(const FileAction& action) const {
    return IsAskedFor(action.recorded) || have_files_beside_.contains(action.database);
  }

  bool BecomesWhatItWas(const FileAction& action) const {
    switch (action.report.action()) {
      case Report::PUT_BACK:
      case Report::MADE_AGAIN:
        return true;
      case Report::UNCHANGED:
        return IsPutBack(action);
      default:
        return action.report.action() == Report::TRUNCATED && action.recorded.size() == 0;
    }
  }

  static bool HasContent(const v1::WrittenFile& file) {
    return file.size() == 0 || !file.content_object().empty();
  }
  // Of a log the job needs no more than that it is there, as long as it only appends to it: CRIU gives a
  // length to all others. Of other files, that they are shorter may mean that an earlier image is the better
  // one.
  bool IsAppendedLog(const v1::WrittenFile& file) const {
    const auto known = only_appended_to_.find(file.path());
    return logs_.contains(file.path()) && known != only_appended_to_.end() && known->second;
  }
  // Can't the job go on with `now` bytes of it?
  bool IsTooShort(const v1::WrittenFile& file, uint64_t now) const {
    return now < file.size() && !IsAppendedLog(file) && !replaced_.contains(file.path());
  }

  // File systems give the inode of a file that was removed to the next one.
  bool IsSameFile(const Look& look, const v1::WrittenFile& file) const {
    return look.info.st_ino == file.inode() && (!same_boot_ || look.info.st_dev == file.device()) &&
           (look.born_ns == 0 || file.born_ns() == 0 || look.born_ns == file.born_ns());
  }

  // Why what could be put back only with its content is not.
  static std::string NoContent(const v1::WrittenFile& file) {
    if (HasContent(file)) return "--rollback all puts back its content";
    return "the image does not have its content: it has that of small and of new files, and with ckpt "
           "--file-contents that of files that are rewritten in place";
  }

  // Of one that the job had not open: it goes on whatever has become of it, so that only what was certainly
  // appended is cut off.
  absl::Status DecideTracked(const Look& look, FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    const uint64_t now = static_cast<uint64_t>(look.info.st_size);
    if (look.error == ENOENT || look.error == ENOTDIR) {
      Leave(action, "it is gone: the job had it not open");
      return absl::OkStatus();
    }
    if (look.error != 0 || look.open_error != 0) {
      const int error = look.error != 0 ? look.error : look.open_error;
      if (!SaysSomethingOfTheFile(error))
        return ErrnoStatus(error, absl::StrCat("opening ", file.path(), " to cut it back"));
      Leave(action, ErrnoStatus(error, "it can't be opened for writing").message());
      return absl::OkStatus();
    }
    if (!S_ISREG(look.info.st_mode) || !IsSameFile(look, file)) {
      Leave(action, "another file has its name");
      return absl::OkStatus();
    }
    if (now == file.size()) {
      action.report.set_action(Report::UNCHANGED);
      return absl::OkStatus();
    }
    if (now < file.size()) {
      Leave(action, absl::StrCat("it has become shorter (", now, " bytes, it had ", file.size(), ")"));
      return absl::OkStatus();
    }
    // Where its ending is not known, it may have been written anew.
    if (file.size() > 0 && (file.ending() == 0 || EndsOtherwise(action))) {
      Leave(action, file.ending() == 0
                        ? "it is not known whether it was only appended to: it could not be read"
                        : kWrittenAnew);
      return absl::OkStatus();
    }
    return Truncate(now, action);
  }

  // Has what the image says was its end other content by now? False where that is not known.
  static bool EndsOtherwise(const FileAction& action) {
    if (action.recorded.ending() == 0 || !action.file.valid()) return false;
    const absl::StatusOr<uint64_t> ending = FileEnding(action.file.get(), action.recorded.size());
    return ending.ok() && *ending != action.recorded.ending();
  }

  absl::Status Decide(const Look& look, FileAction& action) {
    const v1::WrittenFile& file = action.recorded;
    const uint64_t now = static_cast<uint64_t>(look.info.st_size);
    if (IsRotated(look, action)) return DecideRotated(action);
    if (!HasContent(file)) LookForOtherName(look, action);
    if (look.error == ENOENT || look.error == ENOTDIR) {
      const bool needed = !replaced_.contains(file.path());
      if (needed && !MayBeMadeAgain(action) && IsAppendedLog(file)) {
        action.report.set_why("it is gone, and the image does not have its content: it begins anew");
        action.recorded.set_size(0);
        action.recorded.set_modified_ns(0);
      }
      return DecideGone("it is gone", action, needed);
    }
    if (look.error != 0) {
      if (!SaysSomethingOfTheFile(look.error))
        return ErrnoStatus(look.error, absl::StrCat("looking up ", file.path()));
      Leave(action, ErrnoStatus(look.error, "it can't be looked up").message());
      return absl::OkStatus();
    }
    if (!S_ISREG(look.info.st_mode)) {
      Leave(action, S_ISLNK(look.info.st_mode) ? "a symbolic link has its name now"
                                               : "something else than a regular file has its name now");
      return absl::OkStatus();
    }
    if (!IsSameFile(look, file)) return DecideReplaced(look, action);

    const bool rewritten = file.in_place() && file.size() > 0;
    const bool may_differ = rewritten || !file.content_object().empty();
    const bool same_time = file.modified_ns() != 0 && Nanos(look.info.st_mtim) == file.modified_ns();
    if (now == file.size() && (!may_differ || same_time)) {
      action.report.set_action(Report::UNCHANGED);
      return absl::OkStatus();
    }
    if (look.open_error != 0) {
      if (!SaysSomethingOfTheFile(look.open_error))
        return ErrnoStatus(look.open_error, absl::StrCat("opening ", file.path(), " to cut it back"));
      Leave(action, ErrnoStatus(look.open_error, "it can't be opened for writing").message(),
            IsTooShort(file, now));
      return absl::OkStatus();
    }
    if (rewritten) return DecideRewritten(now, action);
    if (may_differ) return DecideAppended(now, action);
    if (now < file.size()) return LeaveShorter(now, action);
    if (EndsOtherwise(action)) return LeaveWrittenAnew(action);
    return Truncate(now, action);
  }

  // Has the job, or who looks after its logs, given the file another name beside its own since, and may it
  // have that again? Then `action` has the file, and the names.
  bool IsRotated(const Look& look, FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    const bool is_gone = look.error == ENOENT && action.missing_folders.empty();
    const bool is_another = look.error == 0 && S_ISREG(look.info.st_mode) && !IsSameFile(look, file);
    if ((!is_gone && !is_another) || file.in_place() || file.nameless() || file.shared_memory() ||
        !action.folder.valid() || (is_another && !MayBeReplaced(look, action)))
      return false;
    with_rights_([&] {
      if (MayChange(action.folder.get()) != 0) return;
      UniqueFd found;
      action.rotated = FindRotated(
          action.folder.get(), action.name, [&](const std::string& name, const struct stat& info) {
            Look other;
            other.info = info;
            other.born_ns = BornUnixNanos(action.folder.get(), name, AT_SYMLINK_NOFOLLOW);
            if (!IsSameFile(other, file) || static_cast<uint64_t>(info.st_size) < file.size()) return false;
            const UniqueFd named(
                ::openat(action.folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
            if (named.valid()) found = Reopen(named.get(), O_RDWR | O_NOCTTY);
            return found.valid();
          });
      if (action.rotated.found()) action.file = std::move(found);
    });
    // Only what was appended to is what it was.
    if (action.rotated.found() && (file.ending() == 0 || EndsOtherwise(action)) && file.size() > 0)
      action.rotated = {};
    return action.rotated.found();
  }

  // Has it been given the name that was to be its own when all of it was there? Only what was appended to is
  // what it was.
  void LookForOtherName(const Look& look, FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    const bool is_gone = look.error == ENOENT && action.missing_folders.empty();
    const bool is_another = look.error == 0 && S_ISREG(look.info.st_mode) && !IsSameFile(look, file);
    if ((!is_gone && !is_another) || file.in_place() || file.nameless() || file.shared_memory() ||
        file.ending() == 0 || !action.folder.valid())
      return;
    with_rights_([&] {
      action.renamed =
          FindRenamed(action.folder.get(), [&](const std::string& name, const struct stat& info) {
            Look other;
            other.info = info;
            other.born_ns = BornUnixNanos(action.folder.get(), name, AT_SYMLINK_NOFOLLOW);
            return IsSameFile(other, file) && static_cast<uint64_t>(info.st_size) >= file.size();
          });
    });
    if (!action.renamed.found()) return;
    const absl::StatusOr<uint64_t> ending = FileEnding(action.renamed.file.get(), file.size());
    if (!ending.ok() || *ending != file.ending()) action.renamed = {};
  }
  static bool MayBeMadeAgain(const FileAction& action) {
    return HasContent(action.recorded) || action.renamed.found();
  }

  static absl::Status DecideRotated(FileAction& action) {
    struct stat info;
    if (::fstat(action.file.get(), &info) != 0) return ErrnoStatus(errno, "looking at it");
    const uint64_t now = static_cast<uint64_t>(info.st_size);
    action.present_bytes = now;
    action.report.set_why(
        absl::StrCat("it is called ", action.rotated.name, " by now: it gets its name back"));
    if (now > action.recorded.size()) return Truncate(now, action);
    action.report.set_action(Report::UNCHANGED);
    action.report.set_size(now);
    return absl::OkStatus();
  }

  // Would the job go on in the middle of what belongs to a later version of the file? One that it only
  // appends to, as a log is, it may go on with.
  bool NeedsVersion(const v1::WrittenFile& file) const {
    const auto known = only_appended_to_.find(file.path());
    const bool only_appended_to = known != only_appended_to_.end() && known->second;
    return !only_appended_to && !logs_.contains(file.path()) && !replaced_.contains(file.path());
  }

  absl::Status LeaveWrittenAnew(FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    const bool blocks = NeedsVersion(file);
    Leave(
        action,
        absl::StrCat(kWrittenAnew, "; ", NoContent(file),
                     blocks ? ". If the job can go on with it as it is, leave it so with --ignore-path" : ""),
        blocks);
    return absl::OkStatus();
  }

  static absl::Status Truncate(uint64_t now, FileAction& action) {
    Discard(now, action.recorded.size(), action);
    action.report.set_action(Report::TRUNCATED);
    action.report.set_size(action.recorded.size());
    return absl::OkStatus();
  }

  absl::Status LeaveShorter(uint64_t now, FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    const bool blocks = IsTooShort(file, now);
    Leave(action,
          absl::StrCat("it has become shorter (", now, " bytes, it had ", file.size(), "); ",
                       blocks ? NoContent(file) : "what the job writes from now on comes behind that"),
          blocks);
    return absl::OkStatus();
  }

  // What it has now, `now` bytes, from this place on.
  static void Discard(uint64_t now, uint64_t from, FileAction& action) {
    action.discarded_at = from;
    action.report.set_discarded_bytes(now > from ? now - from : 0);
  }

  absl::Status DecideRewritten(uint64_t now, FileAction& action) {
    const v1::WrittenFile& file = action.recorded;
    if (HasContent(file) && (IsPutBack(action) || now < file.size())) {
      RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, file));
      RK_ASSIGN_OR_RETURN(const bool equal, content.IsIn(action.file.get()));
      Discard(now, file.size(), action);
      action.report.set_action(equal ? Report::UNCHANGED : Report::PUT_BACK);
      action.report.set_size(file.size());
      return absl::OkStatus();
    }
    if (now < file.size()) return LeaveShorter(now, action);
    const std::string why = absl::StrCat(
        "it is rewritten in place, and its content may be newer than the image; ", NoContent(file));
    if (now == file.size()) {
      Leave(action, why);
      return absl::OkStatus();
    }
    action.report.set_why(why);
    return Truncate(now, action);
  }

  // Its beginning stays. One with another beginning was written anew.
  absl::Status DecideAppended(uint64_t now, FileAction& action) {
    const v1::WrittenFile& file = action.recorded;
    RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, file));
    RK_ASSIGN_OR_RETURN(const bool begins_so, content.BeginsAsIn(action.file.get()));
    if (begins_so && now > file.size()) return Truncate(now, action);
    Discard(now, begins_so ? now : 0, action);
    action.report.set_action(begins_so && now == file.size() ? Report::UNCHANGED : Report::PUT_BACK);
    action.report.set_size(file.size());
    return absl::OkStatus();
  }

  // To be called with the user's rights. What should lie on a file system that is not mounted now must not
  // get another place: only this boot's devices tell; after that, only a folder where all may have theirs
  // (/tmp) is one that is empty then.
  bool MayMakeFolders(const FileAction& action) const {
    const v1::WrittenFile& file = action.recorded;
    struct stat above, info;
    if (::fstat(action.folder.get(), &above) != 0) return false;
    // A link that leads nowhere, a file.
    if (::fstatat(action.folder.get(), action.missing_folders[0].c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
      return false;
    if (!same_boot_) return (above.st_mode & S_ISVTX) != 0;
    return above.st_dev == (file.has_folder() ? file.folder().device() : file.device());
  }

  absl::Status DecideGone(std::string what, FileAction& action, bool blocks) {
    if (!action.missing_folders.empty()) {
      bool may_make = false;
      with_rights_([&] { may_make = HasContent(action.recorded) && MayMakeFolders(action); });
      const std::string& path = action.recorded.path();
      absl::StrAppend(&what, ", with its folder ", path.substr(0, path.rfind('/')));
      if (!may_make && MayComeBack(action.folder.get())) absl::StrAppend(&what, ": ", kMakeFolder);
      if (!may_make && HasContent(action.recorded)) {
        Leave(action, what, blocks);
        return absl::OkStatus();
      }
    }
    if (!MayBeMadeAgain(action)) {
      Leave(action, absl::StrCat(what, "; ", NoContent(action.recorded)), blocks);
      return absl::OkStatus();
    }
    const uid_t owner = action.recorded.uid();
    int error = action.folder.valid() ? EPERM : ENOENT;
    bool may_own = true;
    with_rights_([&] {
      if (error == ENOENT) return;
      error = MayChange(action.folder.get());
      const uid_t user = CurrentFileUser();
      may_own = user == 0 || user == owner;
    });
    if (error != 0 || !may_own) {
      // Else he would get to see what was another's.
      const absl::Status status = error != 0
                                      ? ErrnoStatus(error, "its folder can't be written")
                                      : absl::PermissionDeniedError(absl::StrCat("it was uid ", owner, "'s"));
      Leave(action, absl::StrCat(what, "; ", status.message()), blocks);
      return absl::OkStatus();
    }
    action.report.set_action(Report::MADE_AGAIN);
    action.report.set_size(action.recorded.size());
    if (action.renamed.found()) {
      action.report.set_why(absl::StrCat("it is called ", action.renamed.name,
                                         " by now, and is made again with what it had of that"));
    }
    return absl::OkStatus();
  }

  // In a folder of all (/tmp) only root, who owns the file and who owns the folder may give its name away.
  bool MayBeReplaced(const Look& look, const FileAction& action) const {
    struct stat folder;
    if (::fstat(action.folder.get(), &folder) != 0 || (folder.st_mode & S_ISVTX) == 0) return true;
    bool may = false;
    with_rights_([&] {
      const uid_t user = CurrentFileUser();
      may = user == 0 || user == look.info.st_uid || user == folder.st_uid;
    });
    return may;
  }

  void DecideBeside(const Look& look, const v1::WrittenFile& database, FileAction& action) {
    const uid_t owner = look.info.st_uid;
    if (IsIgnored(action.recorded.path())) {
      action.report.set_action(Report::IGNORED);
    } else if (look.error != 0) {
      Leave(action, ErrnoStatus(look.error, "it can't be looked up").message());
    } else if (!S_ISREG(look.info.st_mode)) {
      Leave(action, "it is no regular file");
    } else if (owner != database.uid() && owner != job_uid_) {
      Leave(action, absl::StrCat("it is of uid ", owner, ", and the database is not"));
    } else if (!absl::EndsWith(action.name, "-journal") && look.born_ns != 0 && look.born_ns < captured_ns_) {
      Leave(action, "it was there when the image was taken, which does not have it");
    } else if (const absl::Status status = MayBeRenamed(look, action); !status.ok()) {
      Leave(action, status.message());
    } else {
      action.report.set_action(Report::SET_ASIDE);
      action.report.set_size(0);
      action.report.set_discarded_bytes(*action.present_bytes);
      action.recorded.set_device(look.info.st_dev);
      action.recorded.set_inode(look.info.st_ino);
      SetTailCopy(action);
    }
  }

  absl::Status MayBeRenamed(const Look& look, const FileAction& action) const {
    int error = EPERM;
    with_rights_([&] { error = MayChange(action.folder.get()); });
    if (error != 0) return ErrnoStatus(error, "it can't be set aside: its folder can't be written");
    if (MayBeReplaced(look, action)) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("it is of uid ", look.info.st_uid, ", and nobody else may rename it (sticky folder)"));
  }

  // The error.
  static int MayChange(int folder) {
    return ::faccessat(folder, ".", W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
  }

  // It may be that of a later life: one that was in the making then and is so again, or that an earlier
  // roll-back has made. Others are left unless all is to be put back, or the job could not go on with them.
  absl::Status DecideReplaced(const Look& look, FileAction& action) {
    constexpr char kWhat[] = "another file has its name";
    const v1::WrittenFile& file = action.recorded;
    const bool all = IsPutBack(action);
    const uint64_t now = static_cast<uint64_t>(look.info.st_size);
    const bool shorter = now < file.size(), blocks = IsTooShort(file, now);
    bool of_later_life = shorter || file.is_new() || action.renamed.found();
    if (HasContent(file) && action.file.valid()) {
      RK_ASSIGN_OR_RETURN(FileContent content, FileContent::Open(image_, file));
      RK_ASSIGN_OR_RETURN(const bool begins_so, content.BeginsAsIn(action.file.get()));
      if (begins_so && now == file.size()) {
        action.report.set_action(Report::UNCHANGED);
        return absl::OkStatus();
      }
      of_later_life |= begins_so && file.size() > 0;
    }
    if (!all && !of_later_life) {
      Leave(action, absl::StrCat(kWhat, "; ", NoContent(file)));
      return absl::OkStatus();
    }
    // A file is more than a tail: it is kept, of whatever kind. Only content that was asked for replaces it.
    const bool keep = now > 0 && (!IsAskedFor(file) || !file.in_place());
    if (keep && MayBeMadeAgain(action) && !action.file.valid()) {
      Leave(
          action,
          absl::StrCat(kWhat, "; ", ErrnoStatus(look.open_error, "to be kept it can't be opened").message()),
          blocks);
      return absl::OkStatus();
    }
    if (!MayBeReplaced(look, action)) {
      Leave(action,
            absl::StrCat(kWhat, ", of uid ", look.info.st_uid,
                         ", which nobody else may remove from its folder (sticky): have it removed"),
            blocks);
      return absl::OkStatus();
    }
    RK_RETURN_IF_ERROR(DecideGone(kWhat, action, blocks));
    if (action.report.action() != Report::MADE_AGAIN) return absl::OkStatus();
    Discard(now, 0, action);
    action.keep_tail = keep;
    if (!keep) action.file.Reset();
    return absl::OkStatus();
  }

  void DecideTail(FileAction& action) {
    if (action.recorded.shared_memory()) return;
    const uint64_t begin = action.discarded_at, end = begin + action.report.discarded_bytes();
    action.keep_tail = action.keep_tail || logs_.contains(action.recorded.path()) ||
                       LooksLikeText(action.file.get(), begin, end);
    if (action.keep_tail) SetTailCopy(action);
  }

  void SetTailCopy(FileAction& action) const {
    const absl::string_view path = action.recorded.path();
    action.report.set_tail_copy(
        absl::StrCat(path.substr(0, path.size() - action.name.size()), TailName(action.name, now_)));
  }

  const store::ImageReader& image_;
  const v1::Rollback& rollback_;
  const WithRights& with_rights_;
  const SeenFrom place_;
  const absl::Time now_ = absl::Now();
  bool same_boot_ = false;
  const std::set<std::string>& replaced_;
  const uid_t job_uid_;
  const int64_t captured_ns_;
  const std::set<std::string> logs_;
  std::set<std::string> in_image_;
  std::set<std::pair<uint64_t, int64_t>> inodes_in_image_;  // with the time when each was made
  std::map<std::string, bool> only_appended_to_;            // by path, as far as the image tells
  std::set<std::string> have_files_beside_, databases_;  // paths of SQLite's, by their names and as they are
  SharedMemoryUsers shared_memory_;
};

// Files that an image has as written, but does not describe.
std::vector<FileAction> NotRecorded(const v1::JobManifest& manifest) {
  std::set<std::string> paths;
  for (const v1::NeededFile& file : manifest.files()) {
    const bool on_disk = absl::StartsWith(file.path(), "/") && !absl::StartsWith(file.path(), "/dev/") &&
                         !absl::StartsWith(file.path(), "/proc/");
    if (file.written() && on_disk) paths.insert(file.path());
  }
  std::vector<FileAction> plan;
  for (const std::string& path : paths) {
    struct stat info;
    if (::lstat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode)) continue;  // what was in it is gone
    FileAction& action = plan.emplace_back();
    action.report.set_path(path);
    Leave(action, "the image does not describe it: it was taken in a sandbox, or by an older Rekindle");
  }
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<FileAction>> PlanRollback(const v1::JobManifest& manifest,
                                                     const store::ImageReader& image,
                                                     const v1::Rollback& rollback,
                                                     const WithRights& with_rights, SeenFrom place,
                                                     const std::set<std::string>& replaced) {
  for (const std::string& path : rollback.ignore_paths()) {
    if (absl::StartsWith(path, "/")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the path to ignore '", path, "' is not absolute: write it from / on"));
  }
  if (!v1::Rollback::Mode_IsValid(rollback.mode())) {
    return absl::InvalidArgumentError(
        "what to do with files is of a kind that this Rekindle does not know: it is older than who asks");
  }
  const bool none = rollback.mode() == v1::Rollback::NONE;
  if (manifest.written_files().empty() && manifest.track_paths().empty())
    return none ? std::vector<FileAction>() : NotRecorded(manifest);
  Planner planner(manifest, image, rollback, with_rights, place, replaced);
  std::vector<FileAction> plan;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (none && !file.shared_memory()) continue;
    RK_ASSIGN_OR_RETURN(FileAction action, planner.Plan(file));
    // There may be many, of which few have anything to do with this life of the job.
    if (file.tracked() && action.report.action() == Report::UNCHANGED) continue;
    RK_RETURN_IF_ERROR(planner.PlanBeside(action, &plan));
    plan.push_back(std::move(action));
  }
  KeepDatabasesWhole(&plan);
  const bool elsewhere = place == SeenFrom::kMachine && manifest.tracks_own_mounts();
  if (!none && !elsewhere && !manifest.track_paths().empty())
    planner.FindNewFiles({manifest.track_paths().begin(), manifest.track_paths().end()}, &plan);
  return plan;
}

absl::Status CheckPlan(const std::vector<FileAction>& plan) {
  std::vector<std::string> problems;
  for (const FileAction& action : plan) {
    if (action.blocks) problems.push_back(absl::StrCat(action.report.path(), ": ", action.report.why()));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("files that the job was writing are not as it left them and can't be put back: ",
                   absl::StrJoin(problems, "; "),
                   ". Put them there yourself, as long as they were or longer, then restore again; or go on "
                   "from another image"));
}

}  // namespace rekindle::restore
