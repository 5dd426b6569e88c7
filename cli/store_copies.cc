#include "cli/store_copies.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "cli/bucket_images.h"
#include "cli/image_descent.h"
#include "cli/progress_bar.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

constexpr size_t kOwnerDigits = 64;  // a tag has 128 characters at most

}  // namespace

std::string StoreCopies::PartTag(const std::string& owner) {
  const std::string tag = absl::StrCat("part-", ::getuid());
  return owner.empty() ? tag : absl::StrCat(tag, "-", absl::BytesToHexString(owner).substr(0, kOwnerDigits));
}

bool StoreCopies::IsPart(const v1::Image& image) const {
  return absl::EndsWith(image.reference(), absl::StrCat(":", part_tag_)) &&
         v1::IsCopyLink(image.reference(), image.labels());
}

absl::Status StoreCopies::Copy(const v1::Image& image) {
  has_part_ = left_parts_ = false;
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse parts, ImagesIn(to_, v1::kCopyLinkName));
  const std::string& reference = begin_.reference().empty() ? image.reference() : begin_.reference();
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse of_name,
                      ImagesIn(to_, absl::StrCat(NameOf(reference), ":")));
  // What only serves a warning is no reason to have no copy.
  if (options_.quiet) NoteOtherStart(image, of_name).IgnoreError();
  v1::SendImageRequest request;
  request.set_image(RequestFor(image));
  request.mutable_parts()->set_bytes(CopyPartBytes());
  for (const v1::Image& one : parts.images()) {
    if (IsPart(one)) request.mutable_parts()->add_there(OriginOf(one));
  }
  for (const v1::Image& one : of_name.images()) {
    if (one.reference() != reference || OriginOf(one) != OriginOf(image)) continue;
    // Of who was killed when all was there.
    RemoveParts(image, parts).IgnoreError();
    if (!options_.quiet) TellWasThere(output_, options_.words, one);
    return absl::OkStatus();
  }
  if (!options_.whole) {
    RK_ASSIGN_OR_RETURN(std::optional<v1::Image> base, BaseAmong(image, of_name));
    if (!base) {
      // It may be there under another name.
      RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse all, ImagesIn(to_));
      RK_ASSIGN_OR_RETURN(base, BaseAmong(image, all));
    }
    if (base) request.set_since(base->digest());
  }
  absl::Status status = Transfer(request);
  // Another owner's, or damaged there.
  if ((!request.since().empty() || has_part_) &&
      (absl::IsFailedPrecondition(status) || absl::IsDataLoss(status))) {
    RemoveParts(image).IgnoreError();
    request.clear_since();
    request.mutable_parts()->clear_there();
    status = Transfer(request);
  }
  const bool in_parts = has_part_;
  if (!status.ok() && in_parts) status = Annotate(status, absl::StrCat("copying ", image.reference()));
  if (status.ok() || !IsWorthAnAttempt(status)) {
    // What can't be removed now gc removes a day later.
    RemoveParts(image).IgnoreError();
    // Of what does not fit there nothing is to take room.
    if (absl::IsResourceExhausted(status) && in_parts) to_.CollectGarbage({}).status().IgnoreError();
    return status;
  }
  left_parts_ = in_parts;
  if (!in_parts) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), ". What has arrived there stays for the next attempt, as ",
                   v1::kCopyLinkName, "…; a day later 'rekindle gc' removes it"));
}

absl::Status StoreCopies::NoteOtherStart(const v1::Image& image, const v1::ListImagesResponse& of_name) {
  std::set<std::string> now;
  for (const v1::Image& one : of_name.images()) now.insert(OriginOf(one));
  RK_ASSIGN_OR_RETURN(const std::set<std::string> ours, source_.Ours(image));
  for (const v1::Image& one : of_name.images()) {
    if (NameOf(one.reference()) != NameOf(image.reference())) continue;
    if (ours.contains(OriginOf(one))) other_start_.clear();  // nothing has come there since ours
    break;
  }
  const std::set<std::string> foreign = seen_.NewForeign(std::move(now), ours);
  for (const v1::Image& one : of_name.images()) {
    if (!foreign.contains(OriginOf(one)) || NameOf(one.reference()) != NameOf(image.reference())) continue;
    if (std::string told = TellsOfOtherStart(image, one); !told.empty()) other_start_ = std::move(told);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::Image>> StoreCopies::BaseAmong(const v1::Image& image,
                                                                const v1::ListImagesResponse& there) const {
  std::set<std::string> origins;
  for (const v1::Image& one : there.images()) origins.insert(OriginOf(one));
  return source_.BaseOf(image, [&](const std::string& origin) { return origins.contains(origin); });
}

v1::ReceiveImageBegin StoreCopies::BeginOf(const v1::SendImagePart& part) const {
  v1::ReceiveImageBegin begin = begin_;
  if (part.last()) return begin;
  begin.set_reference(absl::StrCat(v1::kCopyLinkName, IdOf(part.origin()), ":", part_tag_));
  begin.set_replace(false);
  return begin;
}

absl::Status StoreCopies::RemoveParts(const v1::Image& image) {
  if (!std::exchange(has_part_, false)) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse now, ImagesIn(to_, v1::kCopyLinkName));
  return RemoveParts(image, now);
}

absl::Status StoreCopies::RemoveParts(const v1::Image& image, const v1::ListImagesResponse& known) {
  const std::string digits = IdOf(OriginOf(image)).substr(0, v1::kPartImageDigits);
  v1::RemoveImagesRequest request;
  for (const v1::Image& one : known.images()) {
    if (IsPart(one) && absl::StartsWith(IdOf(OriginOf(one)), digits)) request.add_images(RequestFor(one));
  }
  return request.images().empty() ? absl::OkStatus() : to_.RemoveImages(request).status();
}

absl::Status StoreCopies::Prune(const std::string& name, const v1::Image& sent,
                                std::optional<std::vector<std::string>>* there) {
  if (options_.keep == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::set<std::string> ours, source_.Ours(sent));
  ours.insert(OriginOf(sent));
  RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, ImagesIn(to_, absl::StrCat(name, ":")));
  // What other nodes have copied of earlier starts goes, too, as far as it is the same user's there.
  std::optional<uint32_t> owner;
  for (const v1::Image& image : images.images()) {
    if (NameOf(image.reference()) == name && OriginOf(image) == OriginOf(sent)) owner = image.owner_uid();
  }
  // Else `sent` has come from no other start, or what it has come from is not for this node to tell: it has
  // only been taken in here.
  const bool has_past =
      sent.labels().contains(v1::kSupervisedAncestorsLabel) && !sent.labels().contains(v1::kOriginLabel);
  const auto is_ours = [&](const v1::Image& image) {
    const std::string &origin = OriginOf(image), tag = TagOf(image.reference());
    if (origin == OriginOf(sent) && tag == TagOf(sent.reference())) return true;
    return ours.contains(origin) && source_.IsOurName(origin, tag) && !(has_past && source_.CameHere(origin));
  };
  std::vector<v1::Image> copies, earlier;
  for (v1::Image& image : *images.mutable_images()) {
    if (NameOf(image.reference()) != name || !image.labels().contains(v1::kOriginLabel) ||
        v1::IsCopyLink(image.reference(), image.labels()))
      continue;
    const bool of_ours = is_ours(image);
    if (!of_ours && owner != image.owner_uid()) continue;
    if (has_past && IsOfEarlierStart(image, sent)) {
      earlier.push_back(std::move(image));
    } else if (of_ours || (has_past && IsInPastOf(image, sent))) {
      copies.push_back(std::move(image));
    }
  }
  std::stable_partition(copies.begin(), copies.end(),
                        [&](const v1::Image& image) { return OriginOf(image) == OriginOf(sent); });
  std::vector<v1::Image> going = BeyondKeptOfEarlier(earlier, options_.keep);
  for (size_t i = std::min<size_t>(copies.size(), options_.keep); i < copies.size(); ++i)
    going.push_back(copies[i]);
  std::vector<v1::Image> all = earlier;
  all.insert(all.end(), copies.begin(), copies.end());
  if (const v1::Image* const sound = SoundAmong(all, sent); sound != nullptr)
    std::erase_if(going, [&](const v1::Image& image) { return RequestFor(image) == RequestFor(*sound); });
  const absl::StatusOr<std::set<std::string>> removed = RemoveUnlessNeeded(name, going);
  // What could not be removed now is to be known to whoever copies next. What others have copied does not
  // become ours by that.
  there->emplace();
  for (const std::vector<v1::Image>* const some : {&earlier, &copies}) {
    for (auto image = some->rbegin(); image != some->rend(); ++image) {
      const bool is_gone = removed.ok() && removed->contains(RequestFor(*image));
      if (!is_gone && is_ours(*image)) (*there)->push_back(OriginOf(*image));
    }
  }
  return removed.status();
}

absl::StatusOr<std::set<std::string>> StoreCopies::RemoveUnlessNeeded(const std::string& name,
                                                                      const std::vector<v1::Image>& images) {
  std::set<std::string> going;
  if (images.empty()) return going;
  for (const v1::Image& image : images) going.insert(RequestFor(image));
  // No rule but one that keeps nothing: what stays by that another job, a template or a function there needs.
  v1::PruneImagesRequest asked;
  asked.add_names(name);
  asked.set_keep_within_ns(1);
  asked.set_groups(true);
  asked.set_dry_run(true);
  RK_ASSIGN_OR_RETURN(const v1::PruneImagesResponse there, to_.PruneImages(asked));
  for (const v1::PrunedImage& pruned : there.images()) {
    if (pruned.keep()) going.erase(RequestFor(pruned.image()));
  }
  if (going.empty()) return going;
  v1::RemoveImagesRequest old;
  for (const std::string& image : going) old.add_images(image);
  absl::Status removed = to_.RemoveImages(old).status();
  if (absl::IsNotFound(removed)) {
    // Another node removes them, too; of a list of which one has gone none goes.
    removed = absl::OkStatus();
    for (const std::string& image : going) {
      v1::RemoveImagesRequest one;
      one.add_images(image);
      const absl::Status status = to_.RemoveImages(one).status();
      if (!absl::IsNotFound(status)) removed.Update(status);
    }
  }
  RK_RETURN_IF_ERROR(removed);
  return going;
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
  std::unique_ptr<ImageReceiver> receiver;
  absl::StatusOr<v1::ReceiveImageResult> received = absl::UnknownError("nothing was sent");
  bool begun = false, last = true, taking = false;
  const auto begin = [&](const v1::ReceiveImageBegin& what) {
    receiver = to_.ReceiveImage(what, [&](const v1::Progress& now) {
      if (now.phase() == "commit") show(now);
    });
    begun = taking = true;
  };
  const auto finish = [&] {
    received = receiver->Finish();
    receiver.reset();
    taking = false;
    if (received.ok() && !last) has_part_ = true;
    return received.ok();
  };
  bool wanted = true;
  v1::TransferResult sent;
  const auto take = [&](const v1::SendImageEvent& event) {
    if (event.has_progress()) show(event.progress());
    if (event.has_result()) sent = event.result();
    if (event.has_part()) {
      if (receiver != nullptr && !finish()) return false;
      const auto& there = request.parts().there();
      has_part_ = has_part_ || std::count(there.begin(), there.end(), event.part().base()) > 0;
      last = event.part().last();
      begin(BeginOf(event.part()));
    }
    if (event.data().empty()) return true;
    if (!begun) begin(begin_);  // an older daemon knows of no parts
    if (taking) taking = receiver->Write(event.data());
    // A part that is there already is passed over.
    return taking || (!last && (receiver == nullptr || finish()));
  };
  const absl::Status sending =
      SendWithParts(from_, request, [&](const v1::SendImageEvent& event) { return wanted = take(event); });
  // Without all of it the other end can't be content, and what it says is not the reason.
  if (!sending.ok() && wanted) {
    receiver.reset();
    progress.Clear();
    return sending;
  }
  if (receiver != nullptr) finish();
  progress.Clear();
  RK_RETURN_IF_ERROR(received.status());
  v1::TransferResult result;
  *result.mutable_image() = received->image();
  result.set_bytes(sent.bytes());
  Tell(output_, options_.words, result, received->was_there());
  return absl::OkStatus();
}

}  // namespace rekindle::cli
