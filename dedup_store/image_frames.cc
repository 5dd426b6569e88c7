// ImageReader's reading of whole frames.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

constexpr size_t kLoadersKept = 8;

}  // namespace

// One thread's buffers.
class ImageReaderImpl::FrameReader {
 public:
  FrameReader(const ImageReaderImpl& image, const std::vector<WantedPages>& wanted, const FrameTarget& where,
              const FrameLoaded& loaded)
      : image_(image),
        wanted_(wanted),
        where_(where),
        loaded_(loaded),
        loader_(image.core_->fingerprinter()) {}

  absl::Status Run(const PackRead& read) {
    const Pack& pack = *image_.packs_[read.pack];
    const size_t count = read.end_wanted - read.first_wanted;
    targets_.resize(count);
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      const WantedPages& frame = wanted_[read.first_wanted + i];
      targets_[i] = where_(frame.target);
      if (targets_[i].empty()) continue;
      RK_RETURN_IF_ERROR(image_.CheckRoom(frame, targets_[i].size()));
      any = true;
    }
    if (!any) return absl::OkStatus();
    const WantedPages& first = wanted_[read.first_wanted];
    // A raw frame that is read alone is read to where it goes.
    std::byte* stored =
        count == 1 && IsRaw(pack.frame(first.frame).codec()) ? targets_[0].data() : Buffer(read);
    // What can't be read at once may be but for one frame: then each is read alone, and that one is named.
    const bool whole = pack.file().ReadAt(read.offset, {stored, read.end - read.offset}).ok();
    for (size_t i = 0; i < count; ++i) {
      if (targets_[i].empty()) continue;
      const WantedPages& frame = wanted_[read.first_wanted + i];
      const std::byte* from = stored + (pack.frame(frame.frame).offset() - read.offset);
      absl::Status status = whole ? loader_.DecodeTo(pack, frame.frame, from, targets_[i])
                                  : loader_.LoadTo(pack, frame.frame, targets_[i]);
      if (!status.ok()) return image_.FrameDamaged(frame, status);
      RK_RETURN_IF_ERROR(loaded_(frame.target));
    }
    return absl::OkStatus();
  }

 private:
  std::byte* Buffer(const PackRead& read) {
    const size_t bytes = read.end - read.offset;
    if (buffer_bytes_ < bytes) {
      buffer_.reset(new std::byte[bytes]);
      buffer_bytes_ = bytes;
    }
    return buffer_.get();
  }

  const ImageReaderImpl& image_;
  const std::vector<WantedPages>& wanted_;
  const FrameTarget& where_;
  const FrameLoaded& loaded_;
  FrameLoader loader_;
  std::vector<absl::Span<std::byte>> targets_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffer_bytes_ = 0;
};

absl::StatusOr<WantedPages> ImageReaderImpl::Locate(FrameId frame) const {
  auto position = pack_positions_.find(frame.pack);
  if (position == pack_positions_.end() || frame.frame >= packs_[position->second]->frames()) {
    return absl::OutOfRangeError(absl::StrFormat("image %s uses no chunk %d of pack %016x",
                                                 record_.info.reference, frame.frame, frame.pack));
  }
  const Pack& pack = *packs_[position->second];
  const uint32_t first = pack.frame(frame.frame).first_page;
  return WantedPages{0, position->second, frame.frame, first, pack.FirstPageAfter(frame.frame) - first};
}

uint32_t ImageReaderImpl::FramePages(FrameId frame) const {
  auto wanted = Locate(frame);
  return wanted.ok() ? wanted->pages : 0;
}

absl::Status ImageReaderImpl::CheckRoom(const WantedPages& frame, size_t bytes) const {
  if (bytes == size_t{frame.pages} * kPageSize) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("chunk %d of pack %s has %d pages, not %d bytes",
                                                    frame.frame, packs_[frame.pack]->path(), frame.pages,
                                                    bytes));
}

absl::Status ImageReaderImpl::FrameDamaged(const WantedPages& frame, const absl::Status& why) const {
  if (absl::IsDataLoss(why)) ForgetFrames(core_.get(), *packs_[frame.pack], {frame.frame});
  return WithMessage(
      why, absl::StrFormat(
               "image %s, chunk %d: %s (pack %s). Other images are not affected unless they share this "
               "chunk: `rekindle fsck --read` names them.",
               record_.info.reference, frame.frame, why.message(), packs_[frame.pack]->path()));
}

std::unique_ptr<FrameLoader> ImageReaderImpl::TakeLoader() const {
  absl::MutexLock lock(&loaders_mutex_);
  if (loaders_.empty()) return std::make_unique<FrameLoader>(core_->fingerprinter());
  std::unique_ptr<FrameLoader> loader = std::move(loaders_.back());
  loaders_.pop_back();
  return loader;
}

void ImageReaderImpl::GiveBack(std::unique_ptr<FrameLoader> loader) const {
  absl::MutexLock lock(&loaders_mutex_);
  if (loaders_.size() < kLoadersKept) loaders_.push_back(std::move(loader));
}

absl::Status ImageReaderImpl::LoadFrame(FrameId frame, absl::Span<std::byte> out) const {
  RK_ASSIGN_OR_RETURN(WantedPages wanted, Locate(frame));
  RK_RETURN_IF_ERROR(CheckRoom(wanted, out.size()));
  std::unique_ptr<FrameLoader> loader = TakeLoader();
  absl::Status status = loader->LoadTo(*packs_[wanted.pack], wanted.frame, out);
  GiveBack(std::move(loader));
  return status.ok() ? status : FrameDamaged(wanted, status);
}

absl::Status ImageReaderImpl::LoadFrames(absl::Span<const FrameId> frames, const FrameTarget& where,
                                         const FrameLoaded& loaded) const {
  std::vector<WantedPages> wanted;
  wanted.reserve(frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    RK_ASSIGN_OR_RETURN(WantedPages frame, Locate(frames[i]));
    frame.target = i;
    wanted.push_back(frame);
  }
  const std::vector<PackRead> reads = PlanReads(packs_, wanted);
  return RunReads(packs_, reads, core_->threads(), [&]() -> ReadWorker {
    auto reader = std::make_shared<FrameReader>(*this, wanted, where, loaded);
    return [reader](const PackRead& read) { return reader->Run(read); };
  });
}

}  // namespace rekindle::store
