#include "cli/store_copies.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/progress_bar.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {

std::string SentText(const v1::TransferResult& sent, absl::string_view where) {
  return absl::StrCat(sent.image().reference(), " ", where, ": ", FormatBytes(sent.bytes()), " for ",
                      FormatBytes(sent.image().logical_bytes()), " of memory\n");
}

absl::Status StoreCopies::Copy(const v1::Image& image) {
  absl::StatusOr<v1::ListImagesResponse> known = to_.ListImages({});
  if (absl::IsNotFound(known.status())) known = v1::ListImagesResponse();  // the store is made by what comes
  RK_RETURN_IF_ERROR(known.status());
  const std::string& reference =
      options_.begin.reference().empty() ? image.reference() : options_.begin.reference();
  std::set<std::string> origins;
  for (const v1::Image& one : known->images()) {
    origins.insert(OriginOf(one));
    if (one.reference() == reference && OriginOf(one) == OriginOf(image)) {
      if (!options_.quiet) Tell(one, true, 0);
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

absl::Status StoreCopies::Prune(const std::string& name, const v1::Image& sent) {
  if (options_.keep == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::set<std::string> ours, source_.Ours(name));
  ours.insert(OriginOf(sent));
  v1::ListImagesRequest request;
  request.set_name_contains(name);
  RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, to_.ListImages(request));
  std::vector<v1::Image> copies;
  for (v1::Image& image : *images.mutable_images()) {
    if (NameOf(image.reference()) == name && image.labels().contains(v1::kOriginLabel) &&
        ours.contains(OriginOf(image)))
      copies.push_back(std::move(image));
  }
  std::stable_partition(copies.begin(), copies.end(),
                        [&](const v1::Image& image) { return OriginOf(image) == OriginOf(sent); });
  if (copies.size() <= options_.keep) return absl::OkStatus();
  v1::RemoveImagesRequest old;
  for (size_t i = options_.keep; i < copies.size(); ++i) old.add_images(copies[i].reference());
  return to_.RemoveImages(old).status();
}

absl::Status StoreCopies::Transfer(const v1::SendImageRequest& request) {
  ProgressBar progress(STDERR_FILENO, !output_.json());
  absl::Mutex mutex;
  auto show = [&](const v1::Progress& now) {
    absl::MutexLock lock(&mutex);
    progress.Update(now);
  };
  std::unique_ptr<ImageReceiver> receiver = to_.ReceiveImage(options_.begin, [&](const v1::Progress& now) {
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
  Tell(received->image(), received->was_there(), sent.bytes());
  return absl::OkStatus();
}

void StoreCopies::Tell(const v1::Image& image, bool was_there, uint64_t bytes) const {
  v1::TransferResult result;
  *result.mutable_image() = image;
  result.set_bytes(bytes);
  output_.Json(result);
  output_.Text(was_there ? absl::StrCat(image.reference(), " ", options_.already, "\n")
                         : SentText(result, options_.copied));
}

}  // namespace rekindle::cli
