#include "cli/bucket.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "cli/stall_watch.h"

namespace rekindle::cli {
namespace {

constexpr int kNoSuchFolder = 3, kNoSuchObject = 4;  // rclone's exit statuses
constexpr absl::Duration kEndPatience = absl::Seconds(5), kStallLookEvery = absl::Seconds(1);
// For what is left of an object, with the user waiting for the end.
constexpr absl::Duration kPartCleaningPatience = absl::Seconds(10);
constexpr char kTimeoutVariable[] = "RCLONE_TIMEOUT";
constexpr off_t kMostSaid = 1 << 16;
constexpr size_t kMostComplaint = 1500;
// S3 takes 10,000 parts of an object, and rclone makes them 5 MiB where it is not told better.
constexpr uint64_t kMostParts = 9000, kMiB = uint64_t{1} << 20, kLeastPart = 16 * kMiB;
constexpr size_t kDateLength = sizeof("2006/01/02 15:04:05 ") - 1;
constexpr int kForItsUserAlone = 077;
constexpr const char* kPartSizes[] = {"RCLONE_S3_CHUNK_SIZE", "RCLONE_B2_CHUNK_SIZE"};

std::vector<std::string> EnvironmentFor(uint64_t most_bytes) {
  const uint64_t part = std::max(kLeastPart, (most_bytes / kMostParts / kMiB + 1) * kMiB);
  // Half of what each start of rclone costs is a table of how wide characters are on a screen, which it has
  // no use for here.
  std::vector<std::string> variables = {"TZ=UTC0", "TCELL_MINIMIZE=1"};
  for (const char* variable : kPartSizes) {
    if (std::getenv(variable) == nullptr) variables.push_back(absl::StrCat(variable, "=", part / kMiB, "Mi"));
  }
  return EnvironmentWith(variables);
}

// A file that has no name.
absl::StatusOr<UniqueFd> MemoryFile(const char* what) {
  UniqueFd file(::memfd_create(what, MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("making room for ", what));
  return file;
}

absl::StatusOr<UniqueFd> ListOf(const std::vector<std::string>& names) {
  constexpr char kWhat[] = "a list of objects";
  RK_ASSIGN_OR_RETURN(UniqueFd list, MemoryFile(kWhat));
  std::string text;
  for (const std::string& name : names) absl::StrAppend(&text, name, "\n");
  RK_RETURN_IF_ERROR(WriteFully(list.get(), text.data(), text.size(), kWhat));
  if (::lseek(list.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, "writing a list of objects");
  return list;
}

absl::Status NothingLeftToDo() { return absl::OkStatus(); }

// What an object in a folder of this machine is called until it is whole: rclone writes it in place, and
// whoever puts the same one beside us would write into it. By its ending it is taken for a copy that was
// broken off (BucketImages), and pruned as such where nobody else removes it.
std::string PartNameOf(const std::string& object) {
  const size_t dot = object.rfind('.');
  const bool has_ending = dot != std::string::npos && object.find('/', dot) == std::string::npos;
  const std::string ending = has_ending ? object.substr(dot) : "";
  uint64_t random;
  FillWithRandomBytes(&random, sizeof random);
  return absl::StrCat(object.substr(0, object.size() - ending.size()), ".",
                      absl::Hex(random, absl::kZeroPad16), ending);
}

bool HasDate(absl::string_view line) {
  return line.size() > kDateLength && line[4] == '/' && line[7] == '/' && line[13] == ':';
}

// Its last message, without its date: of several lines, the first of which says what is wrong.
std::string Complaint(int file) {
  struct stat info;
  if (::fstat(file, &info) != 0 || info.st_size == 0) return "it says nothing";
  const off_t bytes = std::min(info.st_size, kMostSaid);
  std::string text(static_cast<size_t>(bytes), '\0');
  const ssize_t n = ::pread(file, text.data(), text.size(), info.st_size - bytes);
  text.resize(std::max<ssize_t>(n, 0));
  std::vector<absl::string_view> last;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    if (HasDate(line)) {
      last.clear();
      line.remove_prefix(kDateLength);
    }
    last.push_back(absl::StripAsciiWhitespace(line));
  }
  return absl::StrJoin(last, " ").substr(0, kMostComplaint);
}

// In UTC.
absl::Time ParseTimeOf(absl::string_view date, absl::string_view time) {
  absl::Time parsed;
  std::string error;
  return absl::ParseTime("%Y-%m-%d %H:%M:%S", absl::StrCat(date, " ", time), &parsed, &error)
             ? parsed
             : absl::InfiniteFuture();
}

}  // namespace

// A running rclone, or what does for a folder of this machine what rclone leaves undone. Not thread-safe.
class Bucket::Command {
 public:
  Command(Bucket& bucket, std::string what, Subprocess process, UniqueFd complaints, absl::Duration patience)
      : bucket_(bucket),
        what_(std::move(what)),
        process_(std::move(process)),
        watch_(process_.pid(), patience),
        complaints_(std::move(complaints)) {}
  ~Command() {
    if (!process_.running()) return;
    End();
    Forget();
  }

  // See BucketTransfer.
  bool EndIfStalled(absl::Duration waited) {
    if (stalled_ || !watch_.Stalled(waited)) return stalled_;
    stalled_ = true;
    End();
    return true;
  }

  absl::Status Wait() {
    for (const Stopwatch watch; !AwaitExit(process_.pidfd(), kStallLookEvery);) {
      if (EndIfStalled(absl::Seconds(watch.seconds()))) break;
    }
    const absl::StatusOr<ExitState> exit =
        process_.running() ? process_.Wait() : absl::UnavailableError("it can't be killed");
    const bool cancelled = Forget();
    if (stalled_ && !cancelled) return Stalled();
    RK_RETURN_IF_ERROR(exit.status());
    if (exit->ok()) return absl::OkStatus();
    if (cancelled) return absl::CancelledError(absl::StrCat(what_, " was cancelled"));
    const std::string text =
        absl::StrCat("'", what_, "' failed (", exit->ToString(), "): ", Complaint(complaints_.get()));
    const bool nothing_there = exit->code == kNoSuchFolder || exit->code == kNoSuchObject;
    return nothing_there ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }

 private:
  void End() {
    // It then gives up what a multi-part upload has left.
    process_.Signal(SIGTERM).IgnoreError();
    if (AwaitExit(process_.pidfd(), kEndPatience)) return;
    process_.Signal(SIGKILL).IgnoreError();
    // Within a file system whose server is gone it may not end before that is back.
    if (!AwaitExit(process_.pidfd(), kEndPatience)) process_.Release();
  }

  absl::Status Stalled() const {
    const std::string said = Complaint(complaints_.get());
    const bool ours = watch_.patience() == bucket_.most_patience_;
    return absl::UnavailableError(absl::StrCat(
        "'", what_, "' has moved nothing for ", absl::FormatDuration(watch_.patience()), ", and was ended (",
        said, "): see whether the object store answers ('rclone lsf ", bucket_.location(), "')",
        ours ? ""
             : absl::StrCat("; ", kTimeoutVariable, ", of which that is twice, gives a slow one more time")));
  }

  // Was it to end?
  bool Forget() {
    absl::MutexLock lock(&bucket_.mutex_);
    bucket_.running_.Reset();
    return bucket_.cancelled_;
  }

  Bucket& bucket_;
  const std::string what_;
  Subprocess process_;
  StallWatch watch_;
  bool stalled_ = false;
  const UniqueFd complaints_;
};

class Bucket::Transfer : public BucketTransfer {
 public:
  // `finish`: what is left to do once rclone is content. `give_up`: where it comes to nothing.
  Transfer(std::unique_ptr<Command> rclone, UniqueFd ours, std::function<absl::Status()> finish,
           std::function<void()> give_up)
      : finish_(std::move(finish)),
        give_up_(std::move(give_up)),
        ours_(std::move(ours)),
        rclone_(std::move(rclone)) {}
  ~Transfer() override {
    rclone_.reset();
    if (!finished_) give_up_();
  }

  int fd() const override { return ours_.get(); }

  bool EndIfStalled(absl::Duration waited) override { return rclone_->EndIfStalled(waited); }

  bool Write(absl::string_view data) override {
    while (!data.empty()) {
      const ssize_t n = ::send(ours_.get(), data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN && AwaitRoom()) continue;
      if (n < 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  absl::Status Finish() override {
    ours_.Reset();
    RK_RETURN_IF_ERROR(rclone_->Wait());
    RK_RETURN_IF_ERROR(finish_());
    finished_ = true;
    return absl::OkStatus();
  }

 private:
  // Until it takes more, or has ended.
  bool AwaitRoom() {
    for (const Stopwatch watch;;) {
      pollfd entry{ours_.get(), POLLOUT, 0};
      if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kStallLookEvery))) > 0) return true;
      if (EndIfStalled(absl::Seconds(watch.seconds()))) return false;
    }
  }

  const std::function<absl::Status()> finish_;
  const std::function<void()> give_up_;
  bool finished_ = false;
  UniqueFd ours_;
  std::unique_ptr<Command> rclone_;  // is ended first: what it still waits for has no end then
};

std::string Bucket::PathOf(absl::string_view below) const {
  const bool joined = absl::EndsWith(location_, ":") || absl::EndsWith(location_, "/");
  return absl::StrCat(location_, joined || below.empty() ? "" : "/", below);
}

absl::StatusOr<std::unique_ptr<Bucket::Command>> Bucket::Start(const std::string& verb,
                                                               std::vector<std::string> arguments,
                                                               const std::string& path, int in, int out,
                                                               uint64_t most_bytes) {
  SubprocessOptions options;
  options.argv = {"rclone", verb, "--log-level", "ERROR"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.argv.insert(options.argv.end(), {"--", path});
  options.environment = EnvironmentFor(most_bytes);
  if (in >= 0) options.descriptors.emplace_back(in, STDIN_FILENO);
  if (out >= 0) options.descriptors.emplace_back(out, STDOUT_FILENO);
  options.umask = kForItsUserAlone;
  absl::StatusOr<std::unique_ptr<Command>> rclone =
      Start(absl::StrCat("rclone ", verb, " ", path), std::move(options),
            std::min(StallPatience(std::getenv(kTimeoutVariable)), most_patience_));
  if (absl::IsNotFound(rclone.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no rclone, which reaches ", location_,
        ": install it (apt-get install rclone), and name your object store with 'rclone config'"));
  }
  return rclone;
}

absl::StatusOr<std::unique_ptr<Bucket::Command>> Bucket::Start(const std::string& what,
                                                               SubprocessOptions options,
                                                               absl::Duration patience) {
  RK_ASSIGN_OR_RETURN(UniqueFd complaints, MemoryFile("what rclone says"));
  options.descriptors.emplace_back(complaints.get(), STDERR_FILENO);
  options.new_session = true;  // Ctrl-C is for us, who end it
  options.die_with_parent_thread = true;
  absl::MutexLock lock(&mutex_);
  if (cancelled_) return absl::CancelledError(absl::StrCat(what, " was cancelled"));
  RK_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Start(options));
  running_ = UniqueFd(::dup(process.pidfd()));
  return std::make_unique<Command>(*this, what, std::move(process), std::move(complaints), patience);
}

// Not by calls of our own: a file server that is away would hold them for as long. It moves nothing that
// could be counted, for as long as the disk takes.
absl::Status Bucket::RunHere(std::vector<std::string> command) {
  SubprocessOptions options;
  const std::string what = absl::StrJoin(command, " ");
  options.argv = {"env", "LC_ALL=C"};
  options.argv.insert(options.argv.end(), command.begin(), command.end());
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Command> running,
                      Start(what, std::move(options), absl::InfiniteDuration()));
  return running->Wait();
}

// rclone leaves what it has written to the page cache, which goes with this machine, as may the copies that
// this one replaces.
absl::Status Bucket::BringToDisk(const std::string& path) {
  const absl::Status synced = RunHere({"sync", "--", path});
  // A file system that knows nothing of the kind.
  return absl::StrContains(synced.message(), "Invalid argument") ? absl::OkStatus() : synced;
}

absl::Status Bucket::GiveName(const std::string& part, const std::string& path) {
  RK_RETURN_IF_ERROR(BringToDisk(part));
  RK_RETURN_IF_ERROR(RunHere({"mv", "-f", "-T", "--", part, path}));
  return BringToDisk(path.substr(0, path.rfind('/') + 1));
}

// rclone makes any folder that it writes into: what is to be mounted there must not land below it.
absl::Status Bucket::CheckIsThere() {
  if (!absl::StartsWith(location_, "/")) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Command> rclone,
                      Start("lsf", {"--dirs-only"}, location_, -1, -1));
  const absl::Status there = rclone->Wait();
  if (!absl::IsNotFound(there)) return there;
  return absl::FailedPreconditionError(
      absl::StrCat("the folder ", location_, " is not there: mount what it is on, or make it ('mkdir -m 700 ",
                   location_, "')"));
}

absl::StatusOr<std::vector<BucketObject>> Bucket::List(const std::string& folder, Times times) {
  return List(folder, times, {});
}

absl::StatusOr<std::vector<BucketObject>> Bucket::ListImageObjects() {
  return List("", Times::kUnknown, {"--recursive", "--include", "*.image", "--include", "*.json"});
}

absl::StatusOr<std::vector<BucketObject>> Bucket::List(const std::string& folder, Times times,
                                                       std::vector<std::string> arguments) {
  RK_ASSIGN_OR_RETURN(const UniqueFd listing, MemoryFile("a list of objects"));
  arguments.insert(arguments.end(), {"--files-only", "--separator", " ", "--format"});
  if (times == Times::kAsked) {
    // Else S3 is asked once for each object.
    arguments.insert(arguments.end(), {"stp", "--use-server-modtime"});
  } else {
    arguments.emplace_back("sp");
  }
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Command> rclone,
                      Start("lsf", std::move(arguments), PathOf(folder), -1, listing.get()));
  const absl::Status listed = rclone->Wait();
  if (absl::IsNotFound(listed)) RK_RETURN_IF_ERROR(CheckIsThere());
  RK_RETURN_IF_ERROR(listed);
  RK_ASSIGN_OR_RETURN(const std::string text, ReadFile(absl::StrCat("/proc/self/fd/", listing.get())));
  std::vector<BucketObject> objects;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', times == Times::kAsked ? 3 : 1));
    BucketObject object;
    if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &object.bytes)) continue;
    if (parts.size() == 4) object.written = ParseTimeOf(parts[1], parts[2]);
    object.name = std::string(parts.back());
    objects.push_back(std::move(object));
  }
  return objects;
}

absl::StatusOr<std::unique_ptr<BucketTransfer>> Bucket::Put(const std::string& object, uint64_t most_bytes) {
  // A socket, unlike a pipe, can be written to without a signal when nobody reads any more.
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return ErrnoStatus(errno, "connecting with rclone");
  UniqueFd ours(ends[0]);
  const UniqueFd its(ends[1]);
  const bool here = is_folder_here();
  const std::string written = here ? PartNameOf(object) : object;
  RK_ASSIGN_OR_RETURN(std::unique_ptr<Command> rclone,
                      Start("rcat", {}, PathOf(written), its.get(), -1, most_bytes));
  if (!here) return std::make_unique<Transfer>(std::move(rclone), std::move(ours), NothingLeftToDo, [] {});
  return std::make_unique<Transfer>(
      std::move(rclone), std::move(ours),
      [this, part = PathOf(written), path = PathOf(object)] { return GiveName(part, path); },
      [location = location_, written] {
        Bucket bucket(location, kPartCleaningPatience);  // this one may be cancelled
        const size_t slash = written.rfind('/');
        const bool is_below = slash != std::string::npos;
        bucket.Remove(is_below ? written.substr(0, slash) : "", {written.substr(is_below ? slash + 1 : 0)})
            .IgnoreError();
      });
}

absl::StatusOr<std::unique_ptr<BucketTransfer>> Bucket::Get(const std::string& object) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  UniqueFd ours(ends[0]);
  const UniqueFd its(ends[1]);
  RK_ASSIGN_OR_RETURN(std::unique_ptr<Command> rclone, Start("cat", {}, PathOf(object), -1, its.get()));
  return std::make_unique<Transfer>(std::move(rclone), std::move(ours), NothingLeftToDo, [] {});
}

absl::StatusOr<std::string> Bucket::Read(const std::string& folder, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  RK_ASSIGN_OR_RETURN(const UniqueFd list, ListOf(names));
  RK_ASSIGN_OR_RETURN(const UniqueFd content, MemoryFile("what objects hold"));
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Command> rclone,
                      Start("cat", {"--files-from-raw", "-"}, PathOf(folder), list.get(), content.get()));
  RK_RETURN_IF_ERROR(rclone->Wait());
  return ReadFile(absl::StrCat("/proc/self/fd/", content.get()));
}

absl::Status Bucket::Remove(const std::string& folder, const std::vector<std::string>& names) {
  if (names.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd list, ListOf(names));
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Command> rclone,
                      Start("delete", {"--files-from-raw", "-"}, PathOf(folder), list.get(), -1));
  return rclone->Wait();
}

void Bucket::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (running_.valid()) SendSignal(running_.get(), SIGTERM);
}

}  // namespace rekindle::cli
