#include "cli/place_check.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/endpoint.h"
#include "cli/exit_code.h"
#include "cli/interrupts.h"
#include "cli/progress_bar.h"
#include "daemon/stream_check.h"

namespace rekindle::cli {
namespace {

constexpr int kLookAtRcloneEveryMs = 1000;

// The copies in an object store.
class BucketCheck {
 public:
  BucketCheck(Bucket& bucket, const Output& output, const FsckElsewhere& what)
      : bucket_(bucket), what_(what), progress_(STDERR_FILENO, !output.json()) {}

  absl::StatusOr<v1::FsckResult> Run() {
    std::map<std::string, std::vector<BucketObject>> folders;
    RK_RETURN_IF_ERROR(FindFolders(folders));
    for (const auto& [name, objects] : folders) {
      const BucketImages images(objects);
      for (const BucketImage& image : images.complete()) total_bytes_ += image.bytes;
    }
    for (const auto& [name, objects] : folders) RK_RETURN_IF_ERROR(Check(name, BucketImages(objects)));
    progress_.Clear();
    return std::move(result_);
  }

 private:
  enum class Found { kWhole, kDamaged, kUnreadable, kGone };

  absl::Status FindFolders(std::map<std::string, std::vector<BucketObject>>& folders) {
    if (what_.names.empty()) {
      RK_ASSIGN_OR_RETURN(std::vector<BucketObject> objects, bucket_.ListImageObjects());
      for (BucketObject& object : objects) {
        const size_t slash = object.name.rfind('/');
        if (slash == std::string::npos || slash == 0) continue;
        std::vector<BucketObject>& folder = folders[object.name.substr(0, slash)];
        object.name = object.name.substr(slash + 1);
        folder.push_back(std::move(object));
      }
      return absl::OkStatus();
    }
    for (const std::string& name : what_.names) {
      absl::StatusOr<std::vector<BucketObject>> objects = bucket_.List(name);
      if (absl::IsNotFound(objects.status())) {
        return absl::NotFoundError(absl::StrCat("there is no image of the name ", name, " in ", what_.from));
      }
      RK_ASSIGN_OR_RETURN(folders[name], std::move(objects));
    }
    return absl::OkStatus();
  }

  void Problem(std::string sentence) { result_.add_problems(std::move(sentence)); }

  absl::Status Check(const std::string& name, const BucketImages& images) {
    std::set<std::string> bad;  // objects
    std::vector<std::string> damaged_markers, damaged;
    // Oldest first, as they build upon one another.
    for (auto image = images.complete().rbegin(); image != images.complete().rend(); ++image) {
      result_.set_images_checked(result_.images_checked() + 1);
      if (!what_.request.read_data()) continue;
      const std::string object = image->ImageObject();
      RK_ASSIGN_OR_RETURN(const Found found, Read(name, *image));
      result_.set_bytes_read(result_.bytes_read() + image->bytes);
      ShowProgress();
      if (found == Found::kDamaged) {
        damaged_markers.push_back(image->JsonObject());
        damaged.push_back(object);
      }
      if (found == Found::kDamaged || found == Found::kUnreadable) bad.insert(object);
    }
    for (auto image = images.complete().rbegin(); image != images.complete().rend(); ++image) {
      const std::string reference = absl::StrCat(name, ":", image->tag);
      const std::vector<BucketImage> chain = images.Chain(image->origin);
      const auto link = std::find_if(chain.begin(), chain.end(),
                                     [&](const BucketImage& one) { return bad.contains(one.ImageObject()); });
      if (!chain.empty() && link == chain.end()) continue;
      result_.add_lost_images(reference);
      if (chain.empty()) {
        Problem(absl::StrCat("image ", reference, " can't be had: what it builds upon is not there"));
      } else if (link->ImageObject() != image->ImageObject()) {
        Problem(absl::StrCat("image ", reference, " can't be had: it builds upon ", name, ":", link->tag));
      }
    }
    if (damaged.empty() || !what_.request.repair()) return absl::OkStatus();
    RK_RETURN_IF_ERROR(bucket_.Remove(name, damaged_markers));
    return bucket_.Remove(name, damaged);
  }

  absl::StatusOr<Found> Read(const std::string& name, const BucketImage& image) {
    const std::string object = absl::StrCat(name, "/", image.ImageObject());
    RK_ASSIGN_OR_RETURN(const std::unique_ptr<BucketTransfer> transfer, bucket_.Get(object));
    bool at_end = false;
    const absl::StatusOr<daemon::CheckedStream> checked = daemon::CheckImageStream(
        [&](absl::Span<std::byte> out) { return ReadSome(*transfer, out, &at_end); });
    // What ended too early is rclone's to explain. Of the rest of one that is damaged nobody wants anything.
    const absl::Status ended = at_end ? transfer->Finish() : absl::OkStatus();
    if (absl::IsNotFound(ended)) return Found::kGone;
    if (!ended.ok()) {
      // Is it the object, or all of the place?
      RK_RETURN_IF_ERROR(bucket_.List(name).status());
      Problem(absl::StrCat("the object ", object, " can't be read: ", ended.message()));
      return Found::kUnreadable;
    }
    if (absl::IsDataLoss(checked.status()) || absl::IsInvalidArgument(checked.status())) {
      Problem(absl::StrCat("the object ", object, " is damaged: ", checked.status().message()));
      return Found::kDamaged;
    }
    if (absl::IsFailedPrecondition(checked.status())) {
      Problem(absl::StrCat("the object ", object, " can't be checked: ", checked.status().message()));
      return Found::kUnreadable;
    }
    RK_RETURN_IF_ERROR(checked.status());
    if (IdOf(checked->origin) == image.origin && IdOf(checked->base) == image.base) return Found::kWhole;
    Problem(absl::StrCat("the object ", object, " holds another image than its name says (", checked->origin,
                         checked->base.empty() ? "" : absl::StrCat(" since ", checked->base), ")"));
    return Found::kDamaged;
  }

  static absl::StatusOr<size_t> ReadSome(BucketTransfer& transfer, absl::Span<std::byte> out, bool* at_end) {
    for (const Stopwatch watch;;) {
      pollfd entry{transfer.fd(), POLLIN, 0};
      if (::poll(&entry, 1, kLookAtRcloneEveryMs) <= 0) {
        if (!transfer.EndIfStalled(absl::Seconds(watch.seconds()))) continue;
        *at_end = true;
        return 0;
      }
      const ssize_t n = ::read(transfer.fd(), out.data(), out.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "reading what rclone gives");
      *at_end = n == 0;
      return static_cast<size_t>(n);
    }
  }

  void ShowProgress() {
    v1::Progress now;
    now.set_phase("read");
    now.set_bytes_done(result_.bytes_read());
    now.set_bytes_total(total_bytes_);
    now.set_elapsed_seconds(watch_.seconds());
    progress_.Update(now);
  }

  Bucket& bucket_;
  const FsckElsewhere& what_;
  ProgressBar progress_;
  const Stopwatch watch_;
  uint64_t total_bytes_ = 0;
  v1::FsckResult result_;
};

std::string WhatIsLeft(const FsckElsewhere& what, const v1::FsckResult& result) {
  if (result.problems().empty()) {
    return what.request.read_data() ? "all of them are whole"
                                    : "what they build upon is there ('--read' reads them, too)";
  }
  if (!what.request.read_data()) return "'--read' reads those that are there, too";
  if (what.request.repair()) {
    return "what was damaged is removed, and no new copy builds upon it; 'rekindle prune --from' removes a "
           "day "
           "later what can't be used any more";
  }
  return absl::StrCat("run 'rekindle fsck --read --repair --from ", what.from,
                      "', which removes what is damaged, so that no new copy builds upon it");
}

}  // namespace

int CheckElsewhere(const GlobalOptions& globals, const Output& output, const FsckElsewhere& what) {
  if (what.bucket.empty()) {
    Interrupts interrupts;
    absl::StatusOr<std::unique_ptr<Client>> opened = OpenElsewhere(globals, what.from);
    if (!opened.ok()) return output.Fail(opened.status());
    return Fsck(**opened, output, interrupts, what.request);
  }
  Bucket bucket(what.bucket);
  const absl::StatusOr<v1::FsckResult> result = BucketCheck(bucket, output, what).Run();
  if (!result.ok()) return output.Fail(Annotate(result.status(), absl::StrCat("checking ", what.from)));
  ShowChecked(output, *result, what.request.read_data(), "can't be had any more", "",
              WhatIsLeft(what, *result));
  return result->problems().empty() ? kDone : kFailed;
}

}  // namespace rekindle::cli
