#include "cli/transfer_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/stream_patience.h"
#include "base/unique_fd.h"
#include "cli/copy_report.h"
#include "cli/exit_code.h"
#include "cli/image_feed.h"
#include "cli/progress_bar.h"

namespace rekindle::cli {
namespace {

// The other end of a named pipe may never come: the user can end the wait for a reader. A writer is waited
// for when something is to be read.
absl::StatusOr<UniqueFd> OpenInterruptibly(const std::string& path, int access, Interrupts& interrupts) {
  constexpr int kLookAgainMs = 50;  // nothing tells that a reader has come
  const UniqueFd interrupted(::eventfd(0, EFD_CLOEXEC));
  interrupts.SetAction([&interrupted](int) { ::eventfd_write(interrupted.get(), 1); });
  const absl::Cleanup no_action = [&interrupts] { interrupts.SetAction(nullptr); };
  for (;;) {
    UniqueFd fd(::open(path.c_str(), access | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid() && (errno != ENXIO || access != O_WRONLY))
      return ErrnoStatus(errno, absl::StrCat("opening ", path));
    if (!fd.valid()) {
      pollfd end{interrupted.get(), POLLIN, 0};
      if (::poll(&end, 1, kLookAgainMs) <= 0) continue;
      return absl::CancelledError(absl::StrCat("waiting for a reader of ", path, " was interrupted"));
    }
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
      return ErrnoStatus(errno, absl::StrCat("opening ", path));
    return fd;
  }
}

// What is written goes where `file` says; a file is there once it is complete.
class ExportedFile {
 public:
  explicit ExportedFile(std::string file) : path_(std::move(file)) {}
  ~ExportedFile() {
    if (!partial_.empty()) ::unlink(partial_.c_str());
  }

  absl::Status Open(Interrupts& interrupts) {
    if (path_ == "-") {
      if (::isatty(STDOUT_FILENO)) {
        return absl::InvalidArgumentError(
            "an image is nothing to look at: send it into a pipe or a file, or name a --file");
      }
      fd_ = STDOUT_FILENO;
      return absl::OkStatus();
    }
    struct stat there;
    if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {  // a named pipe, a device
      RK_ASSIGN_OR_RETURN(owned_, OpenInterruptibly(path_, O_WRONLY, interrupts));
    } else {
      partial_ = absl::StrCat(path_, ".partial-", ::getpid());
      RK_ASSIGN_OR_RETURN(owned_, OpenFile(partial_, O_WRONLY | O_CREAT | O_EXCL, 0600));
    }
    fd_ = owned_.get();
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& data) { return WriteFully(fd_, data.data(), data.size(), path_); }

  absl::Status Complete() {
    if (partial_.empty()) return absl::OkStatus();
    if (::fsync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("writing ", path_));
    if (::rename(partial_.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("naming ", path_));
    }
    partial_.clear();
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    RK_ASSIGN_OR_RETURN(const UniqueFd named_in, OpenFile(folder, O_RDONLY | O_DIRECTORY));
    if (::fsync(named_in.get()) != 0)
      return ErrnoStatus(errno, absl::StrCat("syncing the folder of ", path_));
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  std::string partial_;  // its name until it is complete; empty: it has none
  UniqueFd owned_;
  int fd_ = -1;
};

}  // namespace

int ExportImageToFile(Client& client, const Output& given, Interrupts& interrupts, const ExportToFile& what) {
  const Output output = what.file == "-" ? given.OnStandardError() : given;
  ExportedFile file(what.file);
  if (absl::Status status = file.Open(interrupts); !status.ok()) return output.Fail(status);
  interrupts.SetAction([&client](int) { client.Cancel(); });
  ProgressBar progress(STDERR_FILENO, !output.json());
  v1::TransferResult result;
  absl::Status written;
  absl::Status status = client.SendImage(what.request, [&](const v1::SendImageEvent& event) {
    if (event.has_progress()) progress.Update(event.progress());
    if (event.has_result()) result = event.result();
    if (!event.data().empty()) written = file.Write(event.data());
    return written.ok();
  });
  interrupts.SetAction(nullptr);
  progress.Clear();
  if (!written.ok()) return output.Fail(written);
  if (status.ok()) status = file.Complete();
  if (!status.ok()) return output.Fail(status);
  const std::string text = SentText(result, absl::StrCat("written to ", what.file));
  if (what.file == "-") {
    if (!output.json()) output.Note(text);
    return kDone;
  }
  output.Json(result);
  output.Text(text);
  return kDone;
}

int ImportImageFromFile(Client& client, const Output& output, Interrupts& interrupts,
                        const ImportFromFile& what) {
  UniqueFd owned;
  int fd = STDIN_FILENO;
  if (what.file != "-") {
    absl::StatusOr<UniqueFd> opened = OpenInterruptibly(what.file, O_RDONLY, interrupts);
    if (!opened.ok()) return output.Fail(opened.status());
    owned = *std::move(opened);
    fd = owned.get();
  } else if (::isatty(STDIN_FILENO)) {
    return output.Fail(
        absl::InvalidArgumentError("standard input is a terminal: name a --file, or use a pipe"));
  }
  interrupts.SetAction([&client](int) { client.Cancel(); });
  ProgressBar progress(STDERR_FILENO, !output.json());
  std::unique_ptr<ImageReceiver> receiver =
      client.ReceiveImage(what.begin, [&](const v1::Progress& now) { progress.Update(now); });
  absl::StatusOr<v1::ReceiveImageResult> result = absl::UnknownError("nothing was read");
  if (absl::StatusOr<bool> fed = Feed(fd, *receiver, StreamPatience()); fed.ok()) {
    result = receiver->Finish();
  } else {
    result = fed.status();
  }
  receiver.reset();
  progress.Clear();
  const UniqueFd interrupted(::eventfd(0, EFD_CLOEXEC));
  interrupts.SetAction([&interrupted](int) { ::eventfd_write(interrupted.get(), 1); });
  if (result.ok() && result->was_there()) Drain(fd, interrupted.get());
  interrupts.SetAction(nullptr);
  if (!result.ok()) {
    return output.Fail(Annotate(result.status(),
                                absl::StrCat("importing ", what.file == "-" ? "standard input" : what.file)));
  }
  output.Json(*result);
  output.Text(result->was_there() ? absl::StrCat(result->image().reference(), " is here already\n")
                                  : absl::StrCat(result->image().reference(), " taken in from ",
                                                 what.file == "-" ? "standard input" : what.file, ": ",
                                                 FormatBytes(result->image().logical_bytes()), ", stored as ",
                                                 FormatBytes(result->image().stored_bytes()), "\n"));
  return kDone;
}

}  // namespace rekindle::cli
