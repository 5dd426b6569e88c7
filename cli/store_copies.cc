#include "cli/store_copies.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "cli/progress_bar.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {

absl::Status StoreCopies::Copy(const v1::Image& image) {
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse known, ImagesIn(to_));
  const std::string& reference = begin_.reference().empty() ? image.reference() : begin_.reference();
  std::set<std::string> origins;
  for (const v1::Image& one : known.images()) {
    origins.insert(OriginOf(one));
    if (one.reference() == reference && OriginOf(one) == OriginOf(image)) {
      if (!options_.quiet) TellWasThere(output_, options_.words, one);
      return absl::OkStatus();
    }
  }
  v1::SendImageRequest request;
  request.set_image(RequestFor(image));
  if (!options_.whole) {
    RK_ASSIGN_OR_RETURN(
        const std::optional<v1::Image> base,
        source_.BaseOf(image, [&](const std::string& origin) { return origins.contains(origin); }));
    if (base) request.set_since(base->digest());
  }
  absl::Status status = Transfer(request);
  // Another owner's, or damaged there.
  if (!request.since().empty() && (absl::IsFailedPrecondition(status) || absl::IsDataLoss(status))) {
    request.clear_since();
    status = Transfer(request);
  }
  return status;
}

absl::Status StoreCopies::Prune(const std::string& name, const v1::Image& sent,
                                std::optional<std::vector<std::string>>* there) {
  if (options_.keep == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::set<std::string> ours, source_.Ours(sent));
  ours.insert(OriginOf(sent));
  v1::ListImagesRequest request;
  request.set_name_contains(name);
  RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, to_.ListImages(request));
  std::vector<v1::Image> copies;
  for (v1::Image& image : *images.mutable_images()) {
    if (NameOf(image.reference()) == name && image.labels().contains(v1::kOriginLabel) &&
        ours.contains(OriginOf(image)) && !v1::IsCopyLink(image.reference(), image.labels()))
      copies.push_back(std::move(image));
  }
  std::stable_partition(copies.begin(), copies.end(),
                        [&](const v1::Image& image) { return OriginOf(image) == OriginOf(sent); });
  absl::Status removed;
  const size_t keep = std::min<size_t>(copies.size(), options_.keep);
  if (copies.size() > keep) {
    v1::RemoveImagesRequest old;
    for (size_t i = keep; i < copies.size(); ++i) old.add_images(RequestFor(copies[i]));
    removed = to_.RemoveImages(old).status();
  }
  // What could not be removed now is to be known to whoever copies next.
  there->emplace();
  for (size_t i = removed.ok() ? keep : copies.size(); i > 0; --i)
    (*there)->push_back(OriginOf(copies[i - 1]));
  return removed;
}

absl::Status StoreCopies::Check(const std::string&) {
  // An image of which nothing comes is refused as such where any other would be taken.
  std::unique_ptr<ImageReceiver> receiver = to_.ReceiveImage({}, [](const v1::Progress&) {});
  const absl::Status received = receiver->Finish().status();
  receiver.reset();
  if (!absl::IsDataLoss(received)) return received;
  return ImagesIn(to_).status();
}

absl::Status StoreCopies::Transfer(const v1::SendImageRequest& request) {
  ProgressBar progress(STDERR_FILENO, !output_.json());
  absl::Mutex mutex;
  auto show = [&](const v1::Progress& now) {
    absl::MutexLock lock(&mutex);
    progress.Update(now);
  };
  std::unique_ptr<ImageReceiver> receiver = to_.ReceiveImage(begin_, [&](const v1::Progress& now) {
    if (now.phase() == "commit") show(now);
  });
  bool wanted = true;
  v1::TransferResult sent;
  const absl::Status sending = from_.SendImage(request, [&](const v1::SendImageEvent& event) {
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
  v1::TransferResult result;
  *result.mutable_image() = received->image();
  result.set_bytes(sent.bytes());
  Tell(output_, options_.words, result, received->was_there());
  return absl::OkStatus();
}

}  // namespace rekindle::cli
