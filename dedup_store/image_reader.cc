#include "dedup_store/image_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/parallel.h"
#include "base/status.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

constexpr int kOpenAttempts = 10;
constexpr size_t kOpenThreads = 8;  // they wait for the disk, or the file server
constexpr uint64_t kMaxZeroRunPages = uint64_t{1} << 30;
constexpr size_t kManyBytes = size_t{4} << 20;
// Of a blob whose neighbours are read with it.
constexpr uint64_t kMostBytesOfSmallBlob = uint64_t{1} << 20;

// The object that holds an image's blobs has no name of its own; errors call it so.
constexpr char kBlobStreamName[] = "(blobs)";

}  // namespace

// One thread's buffers.
class ImageReaderImpl::RangeReader {
 public:
  RangeReader(const ImageReaderImpl& image, absl::string_view object, const std::vector<WantedPages>& pieces,
              const Target& target)
      : image_(image),
        object_(object),
        pieces_(pieces),
        target_(target),
        loader_(image.core_->fingerprinter()) {}

  absl::Status Run(const PackRead& read) {
    const Pack& pack = *image_.packs_[read.pack];
    const size_t bytes = read.end - read.offset;
    // Whole raw frames in the order of their addresses are read to where they go.
    std::byte* stored = DirectTarget(read, pack);
    const bool direct = stored != nullptr;
    if (!direct) {
      if (buffer_bytes_ < bytes) {
        buffer_.reset(new std::byte[bytes]);
        buffer_bytes_ = bytes;
      }
      stored = buffer_.get();
    }
    if (!pack.file().ReadAt(read.offset, {stored, bytes}).ok()) {
      RK_RETURN_IF_ERROR(ReadOneByOne(read, pack, stored));
    }

    uint32_t loaded = ~uint32_t{0};
    absl::Span<const std::byte> frame_pages;
    for (size_t i = read.first_wanted; i < read.end_wanted; ++i) {
      const WantedPages& piece = pieces_[i];
      const FrameEntry& frame = pack.frame(piece.frame);
      if (loaded != piece.frame) {
        // What was handed to Emit before may point into the loader's buffers.
        if (!IsRaw(frame.codec())) RK_RETURN_IF_ERROR(Flush());
        auto decoded = loader_.Decode(pack, piece.frame, stored + (frame.offset() - read.offset));
        if (!decoded.ok()) {
          ForgetFrames(image_.core_.get(), pack, {piece.frame});
          return Damaged(piece, decoded.status().message());
        }
        frame_pages = *decoded;
        loaded = piece.frame;
      }
      if (direct) continue;
      RK_RETURN_IF_ERROR(Emit(piece.target,
                              frame_pages.data() + size_t{piece.page - frame.first_page} * kPageSize,
                              size_t{piece.pages} * kPageSize));
    }
    return Flush();
  }

 private:
  // What can't be read at once may be but for one frame: that one is named, and forgotten.
  absl::Status ReadOneByOne(const PackRead& read, const Pack& pack, std::byte* stored) const {
    absl::Status first_error;
    std::vector<uint32_t> lost;
    for (size_t i = read.first_wanted; i < read.end_wanted; ++i) {
      const WantedPages& piece = pieces_[i];
      if (i > read.first_wanted && piece.frame == pieces_[i - 1].frame) continue;
      const FrameEntry& frame = pack.frame(piece.frame);
      const absl::Status status =
          pack.file().ReadAt(frame.offset(), {stored + (frame.offset() - read.offset), frame.stored_bytes});
      if (absl::IsDataLoss(status)) lost.push_back(piece.frame);
      if (!status.ok())
        first_error.Update(WithMessage(status, Damaged(piece, status.message(), status.code()).message()));
    }
    ForgetFrames(image_.core_.get(), pack, lost);
    return first_error;
  }

  std::byte* DirectTarget(const PackRead& read, const Pack& pack) const {
    if (target_.memory.empty()) return nullptr;
    uint64_t offset = read.offset, address = pieces_[read.first_wanted].target;
    for (size_t i = read.first_wanted; i < read.end_wanted; ++i) {
      const WantedPages& piece = pieces_[i];
      const FrameEntry& frame = pack.frame(piece.frame);
      if (!IsRaw(frame.codec()) || frame.stored_bytes != size_t{piece.pages} * kPageSize ||
          frame.offset() != offset || piece.target != address) {
        return nullptr;
      }
      offset += frame.stored_bytes;
      address += frame.stored_bytes;
    }
    return target_.memory.data() + (pieces_[read.first_wanted].target - target_.address);
  }

  // Neighbours in both places are handed on together.
  absl::Status Emit(uint64_t address, const std::byte* pages, size_t bytes) {
    if (held_bytes_ > 0 && held_address_ + held_bytes_ == address && held_ + held_bytes_ == pages) {
      held_bytes_ += bytes;
      return absl::OkStatus();
    }
    RK_RETURN_IF_ERROR(Flush());
    held_address_ = address;
    held_ = pages;
    held_bytes_ = bytes;
    return absl::OkStatus();
  }
  absl::Status Flush() {
    if (held_bytes_ == 0) return absl::OkStatus();
    const size_t bytes = std::exchange(held_bytes_, 0);
    if (target_.sink != nullptr) return (*target_.sink)(held_address_, {held_, bytes});
    memcpy(target_.memory.data() + (held_address_ - target_.address), held_, bytes);
    return absl::OkStatus();
  }
  absl::Status Damaged(const WantedPages& piece, absl::string_view why,
                       absl::StatusCode code = absl::StatusCode::kDataLoss) const {
    return absl::Status(
        code,
        absl::StrFormat(
            "image %s, object %s, address %#x: %s (pack %s). Other images are not affected unless "
            "they share this page: `rekindle fsck --read` names them.",
            image_.record_.info.reference, object_, piece.target, why, image_.packs_[piece.pack]->path()));
  }

  const ImageReaderImpl& image_;
  const absl::string_view object_;
  const std::vector<WantedPages>& pieces_;
  const Target target_;
  FrameLoader loader_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffer_bytes_ = 0;
  uint64_t held_address_ = 0;
  const std::byte* held_ = nullptr;
  size_t held_bytes_ = 0;
};

absl::StatusOr<Manifest> ReadManifest(StoreCore& core, const ImageRecord& image) {
  const uint64_t id = image.manifest_pack;
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, core.io()->Open(core.pack_path(id), false));
  // Who has it asks the file server how long the file is.
  RK_RETURN_IF_ERROR(file->Lock(LockMode::kShared, true).status());
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<Pack> home,
                      Pack::OpenForSections(std::move(file), id, core.identity().uuid));
  RK_ASSIGN_OR_RETURN(std::string encoded, home->ReadSection(kManifest));
  return Manifest::Decode(encoded);
}

absl::Status ReadManifests(
    StoreCore& core, absl::Span<const ImageRecordPtr> images, const std::atomic<bool>* cancel,
    absl::FunctionRef<absl::Status(const ImageRecord&, absl::StatusOr<Manifest>)> each) {
  constexpr size_t kThreads = 8, kAtOnce = 64;
  const auto cancelled = [cancel] { return cancel != nullptr && *cancel; };
  for (; !images.empty(); images.remove_prefix(std::min(kAtOnce, images.size()))) {
    std::vector<absl::StatusOr<Manifest>> manifests(std::min(kAtOnce, images.size()), absl::UnknownError(""));
    ForEachInParallel(manifests.size(), kThreads, [&](size_t i) {
      if (!cancelled()) manifests[i] = ReadManifest(core, *images[i]);
    });
    for (size_t i = 0; i < manifests.size(); ++i) {
      if (cancelled()) return absl::CancelledError("cancelled");
      RK_RETURN_IF_ERROR(each(*images[i], std::move(manifests[i])));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ImageReaderImpl>> ImageReaderImpl::Open(const std::shared_ptr<StoreCore>& core,
                                                                       ImageRecord record) {
  absl::Status status;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    auto reader = std::unique_ptr<ImageReaderImpl>(new ImageReaderImpl(core, record));
    status = reader->Load();
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().ReadNow());
    // The packs are locked now; an image that is still in the catalog stays readable.
    RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> now, txn.FindImage(record.id));
    if (!now)
      return absl::NotFoundError(absl::StrCat("the image ", record.info.reference, " was just removed"));
    if (status.ok()) return reader;
    if (now->manifest_pack == record.manifest_pack) break;
    record = *std::move(now);  // gc moved it
  }
  if (absl::IsNotFound(status)) status = absl::DataLossError(status.message());
  return Annotate(status, absl::StrCat("image ", record.info.reference));
}

absl::Status ImageReaderImpl::Load() {
  {
    RK_ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> home, core_->OpenPack(record_.manifest_pack));
    RK_ASSIGN_OR_RETURN(const std::string encoded, home->ReadSection(kManifest));
    RK_ASSIGN_OR_RETURN(manifest_, Manifest::Decode(encoded));
  }
  const std::vector<uint64_t>& ids = manifest_.packs;
  packs_.resize(ids.size());
  std::vector<absl::Status> opened(ids.size());
  ForEachInParallel(ids.size(), kOpenThreads, [&](size_t i) {
    auto pack = core_->OpenPack(ids[i]);
    opened[i] = pack.status();
    if (pack.ok()) packs_[i] = *std::move(pack);
  });
  for (size_t i = 0; i < ids.size(); ++i) {
    RK_RETURN_IF_ERROR(opened[i]);
    pack_positions_.emplace(ids[i], static_cast<uint32_t>(i));
  }
  auto in_range = [this](const std::vector<Extent>& extents) {
    return std::all_of(extents.begin(), extents.end(), [this](const Extent& e) {
      return e.zero() || e.pack_page + e.pages <= packs_[e.pack]->pages();
    });
  };
  bool whole = in_range(manifest_.blob_stream);
  for (const PagedObject& object : manifest_.objects) {
    whole &= in_range(object.extents);
    uint64_t pages = 0;
    for (const Extent& e : object.extents) pages += e.pages;
    objects_.push_back({object.name, true, pages * kPageSize});
    extents_by_name_.emplace(object.name, &object.extents);
  }
  for (const Blob& blob : manifest_.blobs) {
    objects_.push_back({blob.name, false, blob.bytes});
    blobs_by_name_.emplace(blob.name, &blob);
  }
  return whole ? absl::OkStatus() : absl::DataLossError("the manifest points outside its packs");
}

const std::vector<Extent>* ImageReaderImpl::FindExtents(absl::string_view name) const {
  const auto found = extents_by_name_.find(name);
  return found == extents_by_name_.end() ? nullptr : found->second;
}

namespace {

absl::Status NoSuchObject(const ImageInfo& info, absl::string_view name, absl::string_view kind) {
  return absl::NotFoundError(absl::StrCat("image ", info.reference, " has no ", kind, " '", name, "'"));
}

// The first of the pages [first, end) that is not populated; `end` or more when all are.
uint64_t FirstMissing(const std::vector<Extent>& extents, uint64_t first, uint64_t end) {
  for (auto it = FirstBehind(extents, first); first < end; ++it) {
    if (it == extents.end() || it->page > first) break;
    first = it->page + it->pages;
  }
  return first;
}

// OutOfRange when one of the pages [first, end) is not populated: it must not be taken for a zero page.
absl::Status CheckPopulated(const ImageInfo& info, absl::string_view object,
                            const std::vector<Extent>& extents, uint64_t first, uint64_t end) {
  uint64_t missing = FirstMissing(extents, first, end);
  if (missing >= end) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat("image %s, object %s: no page at address %#x", info.reference,
                                               object, missing * kPageSize));
}

// Those of the pages [from, to) of an extent as pieces of one frame each.
void SplitAtFrames(const Pack& pack, const Extent& extent, uint64_t from, uint64_t to,
                   std::vector<WantedPages>& pieces) {
  auto page = static_cast<uint32_t>(extent.pack_page + (from - extent.page));
  uint32_t frame = pack.FrameOfPage(page);
  while (from < to) {
    auto n = static_cast<uint32_t>(std::min<uint64_t>(to - from, pack.FirstPageAfter(frame) - page));
    pieces.push_back({from * kPageSize, extent.pack, frame++, page, n});
    from += n;
    page += n;
  }
}

}  // namespace

bool ImageReaderImpl::HasPages(absl::string_view name, uint64_t address, uint64_t pages) const {
  const std::vector<Extent>* extents = FindExtents(name);
  const uint64_t first = address / kPageSize, end = first + pages;
  if (extents == nullptr || FirstMissing(*extents, first, end) < end) return false;
  if (!core_->damaged_frames().any()) return true;
  std::vector<WantedPages> pieces;
  for (auto it = FirstBehind(*extents, first); it != extents->end() && it->page < end; ++it) {
    if (it->zero()) continue;
    SplitAtFrames(*packs_[it->pack], *it, std::max(first, it->page), std::min(end, it->page + it->pages),
                  pieces);
  }
  return std::none_of(pieces.begin(), pieces.end(), [this](const WantedPages& piece) {
    return core_->damaged_frames().Has({packs_[piece.pack]->id(), piece.frame});
  });
}

std::shared_ptr<const std::string> ImageReaderImpl::BlobPiece(uint64_t piece) const {
  absl::MutexLock lock(&pieces_mutex_);
  if (auto kept = core_->blob_cache().Find(blob_reader_, piece)) return kept;
  const Extent& last = manifest_.blob_stream.back();
  const uint64_t stream_bytes = (last.page + last.pages) * kPageSize;
  if (pieces_.size() <= piece) pieces_.resize(piece + 1);
  PieceState& state = pieces_[piece];
  if (state != PieceState::kAskedFor) {
    // Many want to know what job it is, and nothing else of the image.
    if (state == PieceState::kNotAskedFor) state = PieceState::kAskedFor;
    return nullptr;
  }
  const uint64_t begin = piece * BlobCache::kPieceBytes;
  std::string bytes(std::min(BlobCache::kPieceBytes, stream_bytes - begin), '\0');
  const absl::Status read = ReadExtents(kBlobStreamName, manifest_.blob_stream, begin,
                                        {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  if (!read.ok()) {
    // One frame of it may be damaged: that costs the blobs that lie there, and no others.
    state = PieceState::kUnreadable;
    return nullptr;
  }
  auto kept = std::make_shared<const std::string>(std::move(bytes));
  core_->blob_cache().Put(blob_reader_, piece, kept);
  return kept;
}

absl::StatusOr<std::string> ImageReaderImpl::ReadBlob(absl::string_view name) const {
  const auto found = blobs_by_name_.find(name);
  if (found == blobs_by_name_.end()) return NoSuchObject(record_.info, name, "blob");
  const Blob& blob = *found->second;
  if (blob.bytes == 0) return std::string();
  const uint64_t blob_end = blob.offset + blob.bytes;
  if (blob.bytes <= kMostBytesOfSmallBlob) {
    std::string bytes;
    for (uint64_t at = blob.offset; at < blob_end;) {
      const uint64_t piece = at / BlobCache::kPieceBytes, within = at % BlobCache::kPieceBytes;
      const std::shared_ptr<const std::string> kept = BlobPiece(piece);
      if (kept == nullptr) break;
      bytes.append(*kept, within, blob_end - at);
      at = (piece + 1) * BlobCache::kPieceBytes;
    }
    if (bytes.size() == blob.bytes) return bytes;
  }
  const uint64_t begin = blob.offset / kPageSize * kPageSize;
  const uint64_t end = (blob_end + kPageSize - 1) / kPageSize * kPageSize;
  std::string pages(end - begin, '\0');
  RK_RETURN_IF_ERROR(ReadExtents(kBlobStreamName, manifest_.blob_stream, begin,
                                 {reinterpret_cast<std::byte*>(pages.data()), pages.size()}));
  return pages.substr(blob.offset - begin, blob.bytes);
}

absl::StatusOr<std::vector<PageRun>> ImageReaderImpl::Runs(absl::string_view name) const {
  const std::vector<Extent>* extents = FindExtents(name);
  if (extents == nullptr) return NoSuchObject(record_.info, name, "paged object");
  std::vector<PageRun> runs;
  for (const Extent& e : *extents) {
    uint64_t address = e.page * kPageSize;
    if (!runs.empty() && runs.back().zero == e.zero() &&
        runs.back().address + runs.back().pages * kPageSize == address) {
      runs.back().pages += e.pages;
    } else {
      runs.push_back({address, e.pages, e.zero()});
    }
  }
  return runs;
}

absl::Status ImageReaderImpl::ReadPages(absl::string_view name, uint64_t address,
                                        absl::Span<std::byte> out) const {
  const std::vector<Extent>* extents = FindExtents(name);
  if (extents == nullptr) return NoSuchObject(record_.info, name, "paged object");
  return ReadExtents(name, *extents, address, out);
}

absl::Status ImageReaderImpl::ReadExtents(absl::string_view object, const std::vector<Extent>& extents,
                                          uint64_t address, absl::Span<std::byte> out) const {
  if (address % kPageSize != 0 || out.size() % kPageSize != 0) {
    return absl::InvalidArgumentError("pages are read at whole pages");
  }
  if (out.empty()) return absl::OkStatus();
  const uint64_t first = address / kPageSize;
  const uint64_t end = first + out.size() / kPageSize;
  RK_RETURN_IF_ERROR(CheckPopulated(record_.info, object, extents, first, end));
  uint64_t page = first;
  for (auto it = FirstBehind(extents, first); page < end; ++it) {
    uint64_t to = std::min(end, it->page + it->pages);
    if (it->zero()) memset(out.data() + (page - first) * kPageSize, 0, (to - page) * kPageSize);
    page = to;
  }
  PageRun range{address, out.size() / kPageSize, false};
  // A small one is not worth a thread.
  size_t threads = out.size() >= kManyBytes ? core_->threads() : 1;
  return Run(object, extents, {&range, 1}, threads, {nullptr, address, out});
}

absl::Status ImageReaderImpl::ReadRanges(absl::string_view name, absl::Span<const PageRun> ranges,
                                         const PageSink& sink) const {
  const std::vector<Extent>* extents = FindExtents(name);
  if (extents == nullptr) return NoSuchObject(record_.info, name, "paged object");
  for (const PageRun& range : ranges) {
    uint64_t first = range.address / kPageSize;
    RK_RETURN_IF_ERROR(CheckPopulated(record_.info, name, *extents, first, first + range.pages));
  }
  return Run(name, *extents, ranges, core_->threads(), {&sink, 0, {}});
}

absl::Status ImageReaderImpl::Run(absl::string_view object, const std::vector<Extent>& extents,
                                  absl::Span<const PageRun> ranges, size_t max_threads,
                                  const Target& target) const {
  std::vector<WantedPages> pieces;
  for (const PageRun& range : ranges) {
    uint64_t first = range.address / kPageSize;
    uint64_t end = first + range.pages;
    for (auto it = FirstBehind(extents, first); it != extents.end() && it->page < end; ++it) {
      if (it->zero()) continue;
      uint64_t from = std::max(first, it->page);
      uint64_t to = std::min(end, it->page + it->pages);
      SplitAtFrames(*packs_[it->pack], *it, from, to, pieces);
    }
  }
  const std::vector<PackRead> reads = PlanReads(packs_, pieces);
  return RunReads(packs_, reads, max_threads, [&]() -> ReadWorker {
    auto reader = std::make_shared<RangeReader>(*this, object, pieces, target);
    return [reader](const PackRead& read) { return reader->Run(read); };
  });
}

absl::StatusOr<std::vector<StoredRun>> ImageReaderImpl::Layout(absl::string_view name) const {
  const std::vector<Extent>* extents = FindExtents(name);
  if (extents == nullptr) return NoSuchObject(record_.info, name, "paged object");
  std::vector<StoredRun> runs;
  std::vector<WantedPages> pieces;
  for (const Extent& e : *extents) {
    for (uint64_t done = 0; e.zero() && done < e.pages;) {
      auto n = static_cast<uint32_t>(std::min<uint64_t>(e.pages - done, kMaxZeroRunPages));
      runs.push_back({(e.page + done) * kPageSize, n, true, {}, 0});
      done += n;
    }
    if (e.zero()) continue;
    const Pack& pack = *packs_[e.pack];
    pieces.clear();
    SplitAtFrames(pack, e, e.page, e.page + e.pages, pieces);
    for (const WantedPages& piece : pieces) {
      runs.push_back({piece.target,
                      piece.pages,
                      false,
                      {pack.id(), piece.frame},
                      piece.page - pack.frame(piece.frame).first_page});
    }
  }
  return runs;
}

}  // namespace rekindle::store
