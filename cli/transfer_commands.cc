#include "cli/transfer_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/exit_code.h"
#include "cli/progress_bar.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

constexpr size_t kReadBytes = 1u << 20;
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// Without an answer of the other store.
constexpr absl::Duration kTryAgainAfter = absl::Seconds(10);

const std::string& OriginOf(const v1::Image& image) {
  auto label = image.labels().find(v1::kOriginLabel);
  return label == image.labels().end() ? image.digest() : label->second;
}

std::string NameOf(const std::string& reference) { return reference.substr(0, reference.rfind(':')); }

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

std::string SentText(const v1::TransferResult& sent, absl::string_view where) {
  return absl::StrCat(sent.image().reference(), " ", where, ": ", FormatBytes(sent.bytes()), " for ",
                      FormatBytes(sent.image().logical_bytes()), " of memory\n");
}

// Until `fd` has something, or has ended. False: until `stop` is readable.
bool AwaitInput(int fd, int stop) {
  for (;;) {
    pollfd entries[] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return false;
    if (entries[0].revents != 0) return true;
  }
}

// What `fd` gives goes into `receiver`, for as long as it wants any.
absl::Status Feed(int fd, ImageReceiver& receiver) {
  for (;;) {
    if (!AwaitInput(fd, receiver.ended_fd())) return absl::OkStatus();
    std::string data(kReadBytes, '\0');
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading the image");
    if (n == 0) return absl::OkStatus();
    data.resize(static_cast<size_t>(n));
    if (!receiver.Write(std::move(data))) return absl::OkStatus();
  }
}

// Whoever writes into the pipe shall not find it closed for an image that was here already. Until `stop` is
// readable.
void Drain(int fd, int stop) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
  std::string data(kReadBytes, '\0');
  while (AwaitInput(fd, stop)) {
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n == 0 || (n < 0 && errno != EINTR)) return;
  }
}

// One image from `here` to `there`, as often as is asked.
class Copying {
 public:
  Copying(Client& here, Client& there, const Output& output, const CopyImage& what)
      : here_(here), there_(there), output_(output), what_(what) {}

  // Prints what was done.
  absl::Status Copy(const v1::Image& image) {
    absl::StatusOr<v1::ListImagesResponse> known = there_.ListImages({});
    if (absl::IsNotFound(known.status()))
      known = v1::ListImagesResponse();  // the store is made by what comes
    RK_RETURN_IF_ERROR(known.status());
    const std::string reference =
        what_.begin.reference().empty() ? image.reference() : what_.begin.reference();
    std::set<std::string> origins;
    for (const v1::Image& one : known->images()) {
      origins.insert(OriginOf(one));
      if (one.reference() == reference && OriginOf(one) == OriginOf(image)) {
        if (!what_.follow) Tell(one, true, 0);
        return absl::OkStatus();
      }
    }
    v1::SendImageRequest request;
    request.set_image(image.digest());
    if (!what_.whole) {
      RK_ASSIGN_OR_RETURN(*request.mutable_since(), Base(image, origins));
    }
    absl::Status status = Transfer(request);
    // Another owner's, or damaged there.
    if (!request.since().empty() && (absl::IsFailedPrecondition(status) || absl::IsDataLoss(status))) {
      request.clear_since();
      status = Transfer(request);
    }
    return status;
  }

  // The newest image of this name.
  absl::StatusOr<v1::Image> Newest(const std::string& name) {
    RK_ASSIGN_OR_RETURN(std::optional<v1::Image> newest,
                        NewestOf(name, [](const v1::Image&) { return true; }));
    if (!newest) return absl::NotFoundError(absl::StrCat("there is no image of ", name, " yet"));
    return *std::move(newest);
  }

  // Of the copies of this name that came from here those that are older than the newest ones. `sent` stays,
  // whatever the clocks say.
  absl::Status Prune(const std::string& name, const v1::Image& sent) {
    if (what_.keep == 0) return absl::OkStatus();
    v1::ListImagesRequest request;
    request.set_name_contains(name);
    RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse sources, here_.ListImages(request));
    for (const v1::Image& image : sources.images()) ours_.insert(OriginOf(image));
    ours_.insert(OriginOf(sent));
    RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, there_.ListImages(request));
    std::vector<v1::Image> copies;
    for (v1::Image& image : *images.mutable_images()) {
      if (NameOf(image.reference()) == name && image.labels().contains(v1::kOriginLabel) &&
          ours_.contains(OriginOf(image)))
        copies.push_back(std::move(image));
    }
    std::stable_partition(copies.begin(), copies.end(),
                          [&](const v1::Image& image) { return OriginOf(image) == OriginOf(sent); });
    if (copies.size() <= what_.keep) return absl::OkStatus();
    v1::RemoveImagesRequest old;
    for (size_t i = what_.keep; i < copies.size(); ++i) old.add_images(copies[i].reference());
    return there_.RemoveImages(old).status();
  }

 private:
  // What both stores have an image of, the newest of the same owner's: names belong to nobody, and the copy
  // is to depend on nobody else. Empty: nothing.
  absl::StatusOr<std::string> Base(const v1::Image& image, const std::set<std::string>& origins) {
    RK_ASSIGN_OR_RETURN(const std::optional<v1::Image> base,
                        NewestOf(NameOf(image.reference()), [&](const v1::Image& one) {
                          return one.owner_uid() == image.owner_uid() && one.digest() != image.digest() &&
                                 OriginOf(one) != OriginOf(image) && origins.contains(OriginOf(one));
                        }));
    return base ? base->digest() : std::string();
  }

  // The last committed one here that has this name and is `eligible`.
  absl::StatusOr<std::optional<v1::Image>> NewestOf(const std::string& name,
                                                    absl::FunctionRef<bool(const v1::Image&)> eligible) {
    v1::ListImagesRequest request;
    request.set_name_contains(name);
    RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, here_.ListImages(request));
    for (v1::Image& image : *images.mutable_images()) {
      if (NameOf(image.reference()) == name && eligible(image)) return std::move(image);
    }
    return std::nullopt;
  }

  absl::Status Transfer(const v1::SendImageRequest& request) {
    ProgressBar progress(STDERR_FILENO, !output_.json());
    absl::Mutex mutex;
    auto show = [&](const v1::Progress& now) {
      absl::MutexLock lock(&mutex);
      progress.Update(now);
    };
    std::unique_ptr<ImageReceiver> receiver = there_.ReceiveImage(what_.begin, [&](const v1::Progress& now) {
      if (now.phase() == "commit") show(now);
    });
    bool wanted = true;
    v1::TransferResult sent;
    const absl::Status sending = here_.SendImage(request, [&](const v1::SendImageEvent& event) {
      if (event.has_progress()) show(event.progress());
      if (event.has_result()) sent = event.result();
      wanted = event.data().empty() || receiver->Write(event.data());
      return wanted;
    });
    // Without all of it the other end can't be content, and what it says is not the reason.
    if (!sending.ok() && wanted) {
      receiver.reset();
      progress.Clear();
      return sending;
    }
    absl::StatusOr<v1::ReceiveImageResult> received = receiver->Finish();
    receiver.reset();
    progress.Clear();
    RK_RETURN_IF_ERROR(received.status());
    Tell(received->image(), received->was_there(), sent.bytes());
    return absl::OkStatus();
  }

  void Tell(const v1::Image& image, bool was_there, uint64_t bytes) {
    v1::TransferResult result;
    *result.mutable_image() = image;
    result.set_bytes(bytes);
    output_.Json(result);
    if (was_there) {
      output_.Text(absl::StrCat(image.reference(), " is at ", what_.to, " already\n"));
    } else {
      output_.Text(SentText(result, absl::StrCat("copied to ", what_.to)));
    }
  }

  Client& here_;
  Client& there_;
  const Output& output_;
  const CopyImage& what_;
  // Origins of what was here, under the name that is followed, since this command began: other stores copy to
  // the same place.
  std::set<std::string> ours_;
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
  if (absl::Status fed = Feed(fd, *receiver); fed.ok()) {
    result = receiver->Finish();
  } else {
    result = fed;
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

int CopyImageTo(Client& client, Client& there, const Output& output, Interrupts& interrupts,
                const CopyImage& what) {
  absl::Mutex mutex;
  bool interrupted = false;
  interrupts.SetAction([&](int) {
    {
      absl::MutexLock lock(&mutex);
      interrupted = true;
    }
    client.Cancel();
    there.Cancel();
  });
  Copying copying(client, there, output, what);
  int code = kDone;
  if (!what.follow) {
    v1::InspectImageRequest request;
    request.set_image(what.image);
    absl::StatusOr<v1::InspectImageResponse> image = client.InspectImage(request);
    const absl::Status status = image.ok() ? copying.Copy(image->image()) : image.status();
    if (!status.ok()) code = output.Fail(status);
  }
  std::string copied, waiting_for;
  while (what.follow) {
    absl::Duration wait = kLookEvery;
    absl::StatusOr<v1::Image> newest = copying.Newest(what.image);
    absl::Status status;
    if (newest.ok() && newest->digest() != copied) {
      status = copying.Copy(*newest);
      if (status.ok()) status = copying.Prune(what.image, *newest);
      if (status.ok()) copied = newest->digest();
    }
    absl::MutexLock lock(&mutex);
    if (interrupted) break;
    if (absl::IsNotFound(newest.status())) {
      // It may come yet; who has mistyped the name, or the store's, is to know.
      const std::string reason(newest.status().message());
      if (std::exchange(waiting_for, reason) != reason)
        output.Warning(absl::StrCat(reason, "; it is copied as soon as it is there"));
    } else {
      waiting_for.clear();
      status.Update(newest.status());
    }
    if (!status.ok()) {
      // What is wrong may pass: the next image is another chance, and the job must not be left without one.
      output.Warning(absl::StrCat(status.message(), "; trying again"));
      wait = kTryAgainAfter;
    }
    if (mutex.AwaitWithTimeout(absl::Condition(&interrupted), wait)) break;
  }
  interrupts.SetAction(nullptr);
  return code;
}

}  // namespace rekindle::cli
