#include "dedup_store/image_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "dedup_store/frame_loader.h"

namespace rekindle::store {

namespace {

// One read: small enough that copying, verifying and handing on all find it in the processor's cache.
constexpr uint64_t kReadBytes = uint64_t{512} << 10;
// Bytes between two wanted pieces that are read along rather than skipped.
constexpr uint64_t kMaxGapBytes = uint64_t{32} << 10;
// How far ahead of the readers the kernel is asked to fetch from disk.
constexpr size_t kTasksAhead = 32;
constexpr int kOpenAttempts = 10;
constexpr size_t kManyBytes = size_t{4} << 20;

// The object that holds an image's blobs has no name of its own; errors call it so.
constexpr char kBlobStreamName[] = "(blobs)";

}  // namespace

// Consecutive pages of one frame that go to one address.
struct ImageReaderImpl::Piece {
  uint64_t address;
  uint32_t pack;
  uint32_t frame;
  uint32_t page;
  uint32_t pages;
};

// A range of one pack that is read at once, and the pieces that lie in it.
struct ImageReaderImpl::Task {
  uint32_t pack = 0;
  uint64_t offset = 0;
  uint64_t end = 0;
  size_t first_piece = 0;
  size_t end_piece = 0;
};

// One thread's buffers.
class ImageReaderImpl::TaskRunner {
 public:
  TaskRunner(const ImageReaderImpl& image, absl::string_view object, const std::vector<Piece>& pieces,
             const Target& target)
      : image_(image),
        object_(object),
        pieces_(pieces),
        target_(target),
        loader_(image.core_->fingerprinter()) {}

  absl::Status Run(const Task& task) {
    const Pack& pack = *image_.packs_[task.pack];
    const size_t bytes = task.end - task.offset;
    // Whole raw frames in the order of their addresses are read to where they go.
    std::byte* stored = DirectTarget(task, pack);
    const bool direct = stored != nullptr;
    if (!direct) {
      if (buffer_bytes_ < bytes) {
        buffer_.reset(new std::byte[bytes]);
        buffer_bytes_ = bytes;
      }
      stored = buffer_.get();
    }
    absl::Status status = pack.file().ReadAt(task.offset, {stored, bytes});
    if (!status.ok()) return Damaged(pieces_[task.first_piece], status.message(), status.code());

    uint32_t loaded = ~uint32_t{0};
    absl::Span<const std::byte> frame_pages;
    for (size_t i = task.first_piece; i < task.end_piece; ++i) {
      const Piece& piece = pieces_[i];
      const FrameEntry& frame = pack.frame(piece.frame);
      if (loaded != piece.frame) {
        // What was handed to Emit before may point into the loader's buffers.
        if (frame.codec() != Codec::kRaw) RK_RETURN_IF_ERROR(Flush());
        auto decoded = loader_.Decode(pack, piece.frame, stored + (frame.offset() - task.offset));
        if (!decoded.ok()) return Damaged(piece, decoded.status().message());
        frame_pages = *decoded;
        loaded = piece.frame;
      }
      if (direct) continue;
      RK_RETURN_IF_ERROR(Emit(piece.address,
                              frame_pages.data() + size_t{piece.page - frame.first_page} * kPageSize,
                              size_t{piece.pages} * kPageSize));
    }
    return Flush();
  }

 private:
  std::byte* DirectTarget(const Task& task, const Pack& pack) const {
    if (target_.memory.empty()) return nullptr;
    uint64_t offset = task.offset, address = pieces_[task.first_piece].address;
    for (size_t i = task.first_piece; i < task.end_piece; ++i) {
      const Piece& piece = pieces_[i];
      const FrameEntry& frame = pack.frame(piece.frame);
      if (frame.codec() != Codec::kRaw || frame.stored_bytes != size_t{piece.pages} * kPageSize ||
          frame.offset() != offset || piece.address != address) {
        return nullptr;
      }
      offset += frame.stored_bytes;
      address += frame.stored_bytes;
    }
    return target_.memory.data() + (pieces_[task.first_piece].address - target_.address);
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
  absl::Status Damaged(const Piece& piece, absl::string_view why,
                       absl::StatusCode code = absl::StatusCode::kDataLoss) const {
    return absl::Status(
        code,
        absl::StrFormat(
            "image %s, object %s, address %#x: %s (pack %s). Other images are not affected unless "
            "they share this page: `rekindle fsck --read` names them.",
            image_.record_.info.reference, object_, piece.address, why, image_.packs_[piece.pack]->path()));
  }

  const ImageReaderImpl& image_;
  const absl::string_view object_;
  const std::vector<Piece>& pieces_;
  const Target target_;
  FrameLoader loader_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffer_bytes_ = 0;
  uint64_t held_address_ = 0;
  const std::byte* held_ = nullptr;
  size_t held_bytes_ = 0;
};

absl::StatusOr<Manifest> ReadManifest(StoreCore& core, const ImageRecord& image) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const Pack> home, core.OpenPack(image.manifest_pack));
  RK_ASSIGN_OR_RETURN(std::string encoded, home->ReadSection(kManifest));
  return Manifest::Decode(encoded);
}

absl::StatusOr<std::unique_ptr<ImageReaderImpl>> ImageReaderImpl::Open(const std::shared_ptr<StoreCore>& core,
                                                                       ImageRecord record) {
  absl::Status status;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    auto reader = std::unique_ptr<ImageReaderImpl>(new ImageReaderImpl(core, record));
    status = reader->Load();
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
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
  RK_ASSIGN_OR_RETURN(manifest_, ReadManifest(*core_, record_));
  for (uint64_t id : manifest_.packs) {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, core_->OpenPack(id));
    packs_.push_back(std::move(pack));
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
  }
  for (const Blob& blob : manifest_.blobs) objects_.push_back({blob.name, false, blob.bytes});
  return whole ? absl::OkStatus() : absl::DataLossError("the manifest points outside its packs");
}

const std::vector<Extent>* ImageReaderImpl::FindExtents(absl::string_view name) const {
  for (const PagedObject& object : manifest_.objects) {
    if (object.name == name) return &object.extents;
  }
  return nullptr;
}

namespace {

absl::Status NoSuchObject(const ImageInfo& info, absl::string_view name, absl::string_view kind) {
  return absl::NotFoundError(absl::StrCat("image ", info.reference, " has no ", kind, " '", name, "'"));
}

// The first extent that ends behind `page`.
std::vector<Extent>::const_iterator FirstBehind(const std::vector<Extent>& extents, uint64_t page) {
  return std::upper_bound(extents.begin(), extents.end(), page,
                          [](uint64_t p, const Extent& e) { return p < e.page + e.pages; });
}

// OutOfRange when one of the pages [first, end) is not populated: it must not be taken for a zero page.
absl::Status CheckPopulated(const ImageInfo& info, absl::string_view object,
                            const std::vector<Extent>& extents, uint64_t first, uint64_t end) {
  for (auto it = FirstBehind(extents, first); first < end; ++it) {
    if (it == extents.end() || it->page > first) {
      return absl::OutOfRangeError(absl::StrFormat("image %s, object %s: no page at address %#x",
                                                   info.reference, object, first * kPageSize));
    }
    first = it->page + it->pages;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ImageReaderImpl::ReadBlob(absl::string_view name) const {
  for (const Blob& blob : manifest_.blobs) {
    if (blob.name != name) continue;
    uint64_t begin = blob.offset / kPageSize * kPageSize;
    uint64_t end = (blob.offset + blob.bytes + kPageSize - 1) / kPageSize * kPageSize;
    std::string pages(end - begin, '\0');
    RK_RETURN_IF_ERROR(ReadExtents(kBlobStreamName, manifest_.blob_stream, begin,
                                   {reinterpret_cast<std::byte*>(pages.data()), pages.size()}));
    return pages.substr(blob.offset - begin, blob.bytes);
  }
  return NoSuchObject(record_.info, name, "blob");
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

std::vector<ImageReaderImpl::Task> ImageReaderImpl::Plan(const std::vector<Extent>& extents,
                                                         absl::Span<const PageRun> ranges,
                                                         std::vector<Piece>& pieces) const {
  for (const PageRun& range : ranges) {
    uint64_t first = range.address / kPageSize;
    uint64_t end = first + range.pages;
    for (auto it = FirstBehind(extents, first); it != extents.end() && it->page < end; ++it) {
      if (it->zero()) continue;
      uint64_t from = std::max(first, it->page);
      uint64_t to = std::min(end, it->page + it->pages);
      auto page = static_cast<uint32_t>(it->pack_page + (from - it->page));
      const Pack& pack = *packs_[it->pack];
      uint32_t frame = pack.FrameOfPage(page);
      while (from < to) {
        auto n = static_cast<uint32_t>(std::min<uint64_t>(to - from, pack.FirstPageAfter(frame) - page));
        pieces.push_back({from * kPageSize, it->pack, frame++, page, n});
        from += n;
        page += n;
      }
    }
  }
  // The order on disk. Within a pack, page numbers ascend with offsets.
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.pack != b.pack ? a.pack < b.pack : a.page < b.page;
  });
  std::vector<Task> tasks;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const FrameEntry& frame = packs_[piece.pack]->frame(piece.frame);
    uint64_t begin = frame.offset();
    uint64_t end = begin + frame.stored_bytes;
    Task* last = tasks.empty() ? nullptr : &tasks.back();
    if (last == nullptr || last->pack != piece.pack || begin > last->end + kMaxGapBytes ||
        std::max(end, last->end) - last->offset > kReadBytes) {
      tasks.push_back({piece.pack, begin, end, i, i + 1});
    } else {
      last->end = std::max(last->end, end);
      last->end_piece = i + 1;
    }
  }
  return tasks;
}

absl::Status ImageReaderImpl::Run(absl::string_view object, const std::vector<Extent>& extents,
                                  absl::Span<const PageRun> ranges, size_t max_threads,
                                  const Target& target) const {
  std::vector<Piece> pieces;
  const std::vector<Task> tasks = Plan(extents, ranges, pieces);
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  absl::Status first_error;
  auto work = [&] {
    TaskRunner runner(*this, object, pieces, target);
    for (size_t i; !stop && (i = next.fetch_add(1)) < tasks.size();) {
      if (i + kTasksAhead < tasks.size()) {
        const Task& ahead = tasks[i + kTasksAhead];
        packs_[ahead.pack]->file().WillNeed(ahead.offset, ahead.end - ahead.offset);
      }
      if (absl::Status status = runner.Run(tasks[i]); !status.ok()) {
        absl::MutexLock lock(&mutex);
        first_error.Update(status);
        stop = true;
      }
    }
  };
  size_t threads = std::min(max_threads, (tasks.size() + 3) / 4);
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return first_error;
}

}  // namespace rekindle::store
