#include "ckpt/receive_image.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cgroup_memory.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/status.h"
#include "ckpt/staging_arena.h"
#include "ckpt/stream_decompressor.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

using v1::ImageStreamPages;

constexpr uint64_t kMaxBlobBytes = uint64_t{1} << 30;
// Of what is available, for what is no memory of the job; and so much there may be of it in any case.
constexpr uint64_t kPartForRest = 4;
constexpr uint64_t kLeastForRest = uint64_t{256} << 20;
// What an object takes here beside its name, and a range of its pages.
constexpr uint64_t kObjectBytes = 256, kRangeBytes = 64;

absl::Status Impossible(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the image stream makes no sense (", what, ")"));
}

class Receiving {
 public:
  Receiving(store::Store& store, const ReceiveOptions& options, store::ImageStreamReader::Source source)
      : store_(store), options_(options), stream_(std::move(source)) {}

  absl::StatusOr<ReceivedImage> Run() {
    RK_ASSIGN_OR_RETURN(header_, stream_.ReadHeader());
    RK_ASSIGN_OR_RETURN(
        reference_,
        store::NormalizeReference(options_.reference.empty() ? header_.reference() : options_.reference));
    RK_ASSIGN_OR_RETURN(const std::vector<store::ImageInfo> images, store_.List());
    if (const std::optional<store::ImageInfo> there = WhatIsThere(images)) return ReceivedImage{*there, true};
    RK_RETURN_IF_ERROR(FindBase(images));
    RK_RETURN_IF_ERROR(MakeRoom());
    RK_RETURN_IF_ERROR(Begin());
    for (bool end = false; !end;) {
      if (options_.cancel && options_.cancel->load()) {
        return absl::CancelledError("taking the image in was cancelled; nothing of it is left");
      }
      RK_ASSIGN_OR_RETURN(const v1::ImageStreamRecord record, stream_.Next());
      RK_RETURN_IF_ERROR(Take(record));
      end = record.has_end();
    }
    RK_RETURN_IF_ERROR(HandOn(true));
    if (!is_job_) return Impossible("it is no image of a job");
    const auto progress = [this](uint64_t done, uint64_t total) {
      Report("commit", done, total);
      return !(options_.cancel && options_.cancel->load());
    };
    absl::StatusOr<store::ImageInfo> committed =
        writer_->Commit(progress, [this] { return arena_->CheckSpilled(); });
    if (absl::IsAlreadyExists(committed.status())) {
      // Perhaps somebody else has taken the same one in meanwhile.
      RK_ASSIGN_OR_RETURN(const std::vector<store::ImageInfo> now, store_.List());
      if (const std::optional<store::ImageInfo> there = WhatIsThere(now)) return ReceivedImage{*there, true};
    }
    RK_RETURN_IF_ERROR(committed.status());
    return ReceivedImage{*std::move(committed), false};
  }

 private:
  // Pages that the writer has not got yet.
  struct Coming {
    std::string object;
    ImageStreamPages pages;
    const std::byte* data;                                   // of DATA
    std::shared_ptr<const StreamDecompressor::Piece> piece;  // until it is done; null: they are there
  };

  bool IsOurs(const store::ImageInfo& image, const std::string& origin) const {
    return image.owner == options_.owner && store::OriginOf(image) == origin;
  }

  // The image that is to be taken in, where the store has it under the name that it is to get.
  std::optional<store::ImageInfo> WhatIsThere(const std::vector<store::ImageInfo>& images) const {
    for (const store::ImageInfo& image : images) {
      if (image.reference == reference_ && IsOurs(image, header_.origin())) return image;
    }
    return std::nullopt;
  }

  absl::Status FindBase(const std::vector<store::ImageInfo>& images) {
    if (header_.base().empty()) return absl::OkStatus();
    for (const store::ImageInfo& image : images) {
      if (IsOurs(image, header_.base())) base_ = image.digest;
    }
    if (!base_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "taking in ", header_.reference(), ": it is what has changed since ", header_.base_reference(), " (",
        header_.base(), "), which is not in this store: take that one in first, or send this one whole"));
  }

  absl::Status MakeRoom() {
    uint64_t budget = options_.staging_budget_bytes;
    rest_left_ = options_.rest_budget_bytes;
    if (budget == 0 || rest_left_ == 0) {
      RK_ASSIGN_OR_RETURN(const uint64_t available, OwnAvailableMemoryBytes());
      if (budget == 0) budget = available / 2;
      if (rest_left_ == 0) rest_left_ = std::max(available / kPartForRest, kLeastForRest);
    }
    rest_budget_ = rest_left_;
    // No more than that is believed of what it says of itself.
    RK_ASSIGN_OR_RETURN(arena_, StagingArena::Create(std::min(header_.page_bytes(), budget), budget,
                                                     options_.spill_directory, nullptr,
                                                     "let Rekindle have more memory, of which half may be "
                                                     "taken"));
    return absl::OkStatus();
  }

  absl::Status Begin() {
    store::NewImageOptions image;
    image.reference = reference_;
    image.parent = base_;
    image.owner = options_.owner;
    image.replace = options_.replace;
    image.labels.insert(header_.labels().begin(), header_.labels().end());
    RK_RETURN_IF_ERROR(store::CheckLabels(image.labels));
    image.labels[v1::kOriginLabel] = header_.origin();
    image.coming_bytes = header_.page_bytes();
    RK_ASSIGN_OR_RETURN(writer_, store_.NewImage(image));
    return absl::OkStatus();
  }

  absl::Status Take(const v1::ImageStreamRecord& record) {
    switch (record.record_case()) {
      case v1::ImageStreamRecord::kObject:
        object_ = record.object().name();
        return Keep(kObjectBytes + 2 * object_.size());
      case v1::ImageStreamRecord::kPages:
        return TakePages(record.pages());
      case v1::ImageStreamRecord::kBlob:
        return TakeBlob(record.blob());
      case v1::ImageStreamRecord::kEnd:
        return blob_.empty() ? absl::OkStatus() : Impossible("a blob has no end");
      default:
        return Impossible("a record of unknown kind");
    }
    return absl::OkStatus();
  }

  // All that is no memory of the job is kept until the image is complete, and takes far fewer bytes of the
  // stream where it was made to.
  absl::Status Keep(uint64_t bytes) {
    if (bytes <= rest_left_) {
      rest_left_ -= bytes;
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("taking in ", header_.reference(),
                     ": what it has beside its job's memory (CRIU's image files, contents "
                     "of files) takes more than ",
                     FormatBytes(rest_budget_),
                     ": let Rekindle have more memory, of which a quarter may be taken for that; if no job "
                     "that you know can "
                     "have so much of it, don't trust where the image comes from"));
  }

  absl::Status TakeBlob(const v1::ImageStreamBlob& piece) {
    if (blob_name_ != piece.name() && !blob_.empty()) return Impossible("a blob has no end");
    blob_name_ = piece.name();
    RK_ASSIGN_OR_RETURN(const std::string data, stream_.ReadData());
    if (blob_.size() + data.size() > kMaxBlobBytes) return Impossible("a blob is larger than any can be");
    RK_RETURN_IF_ERROR(Keep(data.size()));
    blob_ += data;
    if (!piece.last()) return absl::OkStatus();
    RK_RETURN_IF_ERROR(Keep(kObjectBytes + 2 * blob_name_.size()));
    is_job_ = is_job_ || blob_name_ == v1::kJobManifestObject;
    RK_RETURN_IF_ERROR(writer_->AddBlob(blob_name_, blob_));
    blob_.clear();
    return absl::OkStatus();
  }

  absl::Status TakePages(const ImageStreamPages& pages) {
    if (pages.address() % store::kPageSize != 0 || pages.pages() == 0 ||
        pages.pages() > (UINT64_MAX - pages.address()) / store::kPageSize) {
      return Impossible("pages at no possible address");
    }
    RK_RETURN_IF_ERROR(Keep(kRangeBytes));
    switch (pages.kind()) {
      case ImageStreamPages::ZERO:
        coming_.push_back({object_, pages, nullptr, {}});
        return HandOn(false);
      case ImageStreamPages::BASE:
        if (base_.empty()) return Impossible("it leaves pages out and names no base");
        if (!writer_->ParentHas(object_, pages.address(), pages.pages())) {
          return absl::DataLossError(
              absl::StrCat("taking in ", header_.reference(), ": pages that ", header_.base_reference(),
                           " should have are not in this store, or are damaged: send it whole"));
        }
        coming_.push_back({object_, pages, nullptr, {}});
        return HandOn(false);
      case ImageStreamPages::DATA:
        break;
      default:
        return Impossible("pages of unknown kind");
    }
    if (pages.pages() > store::kMaxStreamData / store::kPageSize) return Impossible("too many pages at once");
    const size_t bytes = pages.pages() * store::kPageSize;
    if (room_.size() < bytes) {
      RK_ASSIGN_OR_RETURN(room_, arena_->NextBlock());
    }
    const absl::Span<std::byte> place = room_.subspan(0, bytes);
    room_.remove_prefix(bytes);
    std::string compressed;
    RK_RETURN_IF_ERROR(stream_.ReadDataAsSent(place, &compressed));
    coming_.push_back({object_, pages, place.data(), {}});
    if (!compressed.empty()) coming_.back().piece = decompressor_.Begin(std::move(compressed), place);
    staged_ += bytes;
    Report("receive", staged_, header_.page_bytes());
    return HandOn(false);
  }

  // Gives the writer what is decompressed, in the order in which it came. `all`: waits for it.
  absl::Status HandOn(bool all) {
    for (; !coming_.empty(); coming_.pop_front()) {
      const Coming& next = coming_.front();
      if (next.piece != nullptr) {
        if (!all && !next.piece->done()) break;
        RK_RETURN_IF_ERROR(next.piece->Await());
      }
      RK_RETURN_IF_ERROR(Add(next));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const Coming& coming) {
    const ImageStreamPages& pages = coming.pages;
    switch (pages.kind()) {
      case ImageStreamPages::ZERO:
        return writer_->AddZeroPages(coming.object, pages.address(), pages.pages());
      case ImageStreamPages::BASE:
        return writer_->AddParentPages(coming.object, pages.address(), pages.pages());
      default:
        return writer_->AddPages(coming.object, pages.address(),
                                 {coming.data, pages.pages() * store::kPageSize});
    }
  }

  void Report(const char* phase, uint64_t done, uint64_t total) {
    if (options_.observer) options_.observer->OnProgress({phase, done, total, watch_.seconds()});
  }

  store::Store& store_;
  const ReceiveOptions& options_;
  store::ImageStreamReader stream_;
  Stopwatch watch_;
  v1::ImageStreamHeader header_;
  std::string reference_, base_;
  std::unique_ptr<StagingArena> arena_;  // outlives the writer, which refers to it
  std::unique_ptr<store::ImageWriter> writer_;
  StreamDecompressor decompressor_;  // ends before the arena does, which it fills
  std::deque<Coming> coming_;
  absl::Span<std::byte> room_;  // of the arena's last block, not used yet
  std::string object_, blob_name_, blob_;
  bool is_job_ = false;
  uint64_t staged_ = 0;
  uint64_t rest_budget_ = 0, rest_left_ = 0;
};

}  // namespace

absl::StatusOr<ReceivedImage> ReceiveImage(store::Store& store, const ReceiveOptions& options,
                                           store::ImageStreamReader::Source source) {
  return Receiving(store, options, std::move(source)).Run();
}

}  // namespace rekindle::ckpt
