#include "cli/transfer_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/stream_patience.h"
#include "base/unique_fd.h"
#include "cli/container_archive.h"
#include "cli/copy_report.h"
#include "cli/exit_code.h"
#include "cli/image_feed.h"
#include "cli/progress_bar.h"
#include "cli/target_file.h"

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
  explicit ExportedFile(std::string file) : name_(std::move(file)) {}

  absl::Status Open(Interrupts& interrupts) {
    if (name_ != "-") {
      RK_ASSIGN_OR_RETURN(target_, FindTarget(name_));
    } else {
      target_ = {"standard output", true, STDOUT_FILENO};
    }
    if (!target_.in_place) {
      RK_ASSIGN_OR_RETURN(TargetFile file, TargetFile::Create(target_.path, 0600));
      file_.emplace(std::move(file));
      return absl::OkStatus();
    }
    if (is_standard_output() && ::isatty(STDOUT_FILENO)) {
      return absl::InvalidArgumentError(
          "an image is nothing to look at: send it into a pipe or a file, or name a --file");
    }
    if (target_.descriptor >= 0) {
      RK_ASSIGN_OR_RETURN(stream_, OpenInPlace(target_));
    } else {
      RK_ASSIGN_OR_RETURN(stream_, OpenInterruptibly(target_.path, O_WRONLY, interrupts));
    }
    return absl::OkStatus();
  }

  // Then nothing else may go there.
  bool is_standard_output() const { return target_.descriptor == STDOUT_FILENO; }

  absl::Status Write(const std::string& data) {
    return file_ ? file_->Write(data) : WriteFully(stream_.get(), data.data(), data.size(), name_);
  }

  absl::Status Complete() { return file_ ? file_->Complete() : absl::OkStatus(); }

 private:
  const std::string name_;
  Target target_;
  std::optional<TargetFile> file_;
  UniqueFd stream_;
};

}  // namespace

int ExportImageToFile(Client& client, const Output& given, Interrupts& interrupts, const ExportToFile& what) {
  ExportedFile file(what.file);
  const absl::Status opened = file.Open(interrupts);
  const Output output = file.is_standard_output() ? given.OnStandardError() : given;
  if (!opened.ok()) return output.Fail(opened);
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
  if (file.is_standard_output()) {
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
    absl::Status failed = Annotate(
        result.status(), absl::StrCat("importing ", what.file == "-" ? "standard input" : what.file));
    const std::string hint = what.file == "-" ? "" : ContainerArchiveHint(fd, what.file);
    if (!hint.empty()) failed = WithMessage(failed, absl::StrCat(failed.message(), "; ", hint));
    return output.Fail(failed);
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
